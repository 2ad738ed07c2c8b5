// What is written from the table of keys: the JSON Schema that editors check profiles by, and the
// tables of doc/configuration.md.
#pragma once

#include <string>

namespace tide::cli {

std::string profile_schema();     // configs/profile.schema.json
std::string profile_reference();  // Markdown, what is between the two markers of the page

}  // namespace tide::cli
