// Where the parts of Tide lie, seen from the running command: an installed prefix or a build tree.
#pragma once

#include <string>

namespace tide::cli {

// An empty string: not there.
struct Installation {
  std::string command;    // /usr/bin/tide, links resolved
  std::string libraries;  // folder of libtide-shim.so: PREFIX/lib/tide, or build/lib
  std::string net;        // PREFIX/lib/tide/libnccl-net-tide.so
  std::string configs;    // folder of the profiles that came with Tide
  std::string sources;  // what `tide build-torch` compiles: PREFIX/share/tide/src, or the checkout
  bool build_tree = false;

  // What `tide build-torch` made for a user who may not write to `libraries`, a small prefix of its
  // own: ~/.local/lib/tide/RELEASE. Its lib/ has a copy of libtide-shim.so, which looks for
  // libtide-torch beside itself. A build tree has none.
  std::string user_prefix;

  // The libtide-shim.so that a job of this user gets; empty: none is installed.
  std::string shim() const;
};

Installation find_installation();

bool file_exists(const std::string& path);

}  // namespace tide::cli
