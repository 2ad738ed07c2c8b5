// Loads the plugin: see library.h.
#include "tests/rail/library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <type_traits>

RailLibrary::RailLibrary(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "cannot load %s: %s\n", path, dlerror());
    std::exit(2);
  }
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function != nullptr) return;
    std::fprintf(stderr, "%s lacks %s\n", path, name);
    std::exit(2);
  };
  find(version, "tide_rail_version");
  find(open, "tide_rail_open");
  find(address, "tide_rail_address");
  find(device, "tide_rail_device");
  find(speed, "tide_rail_speed");
  find(connect, "tide_rail_connect");
  find(add_region, "tide_rail_register");
  find(remove_region, "tide_rail_unregister");
  find(begin, "tide_rail_begin");
  find(send, "tide_rail_send");
  find(expect, "tide_rail_expect");
  find(wait_landed, "tide_rail_wait_landed");
  find(wait_sent, "tide_rail_wait_sent");
  find(end, "tide_rail_end");
  find(test, "tide_rail_test");
  find(wait, "tide_rail_wait");
  find(get_stats, "tide_rail_get_stats");
  find(error, "tide_rail_error");
  find(abort, "tide_rail_abort");
  find(close, "tide_rail_close");
}
