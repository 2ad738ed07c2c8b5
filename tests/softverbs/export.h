// Marks what the library exports; symbols.map gives the versions.
#pragma once

#define SOFTVERBS_EXPORT extern "C" __attribute__((visibility("default")))
