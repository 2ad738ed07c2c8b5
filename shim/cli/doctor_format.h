// The mark of `tide doctor --json`, by which `tide doctor --hosts` knows its files.
#pragma once

namespace tide::cli::doctor {

constexpr char kFormat[] = "tide doctor 1";

}  // namespace tide::cli::doctor
