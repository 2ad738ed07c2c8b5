// See installation.h.
#include "shim/cli/installation.h"

#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

namespace tide::cli {
namespace {

constexpr char kShimSource[] = "/shim/torch/init.cc";

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string home() {
  if (const char* folder = getenv("HOME"); folder != nullptr && folder[0] == '/') return folder;
  const passwd* user = getpwuid(getuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "";
}

std::string folder_with(const std::string& folder, const char* file) {
  return file_exists(folder + "/" + file) ? folder : "";
}

}  // namespace

bool file_exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string Installation::shim() const {
  const std::string own = user_prefix + "/lib/libtide-shim.so";
  if (!user_prefix.empty() && file_exists(own)) return own;
  return libraries.empty() ? "" : libraries + "/libtide-shim.so";
}

Installation find_installation() {
  Installation found;
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return found;
  found.command.assign(path, static_cast<size_t>(length));
  const std::string prefix = parent(parent(found.command)), share = prefix + "/share/tide";
  found.build_tree = access((prefix + "/lib/tide").c_str(), F_OK) != 0;
  found.libraries =
      folder_with(prefix + (found.build_tree ? "/lib" : "/lib/tide"), "libtide-shim.so");
  // A build tree lies somewhere in the checkout, under any name.
  std::string top = found.build_tree ? prefix : share + "/src";
  while (found.build_tree && !top.empty() && !file_exists(top + kShimSource)) top = parent(top);
  if (file_exists(top + kShimSource)) found.sources = top;
  const std::string configs = (found.build_tree ? top : share) + "/configs";
  if (file_exists(configs)) found.configs = configs;
  if (!found.libraries.empty() && file_exists(found.libraries + "/libnccl-net-tide.so")) {
    found.net = found.libraries + "/libnccl-net-tide.so";
  }
  if (const std::string user = home(); !found.build_tree && !user.empty()) {
    found.user_prefix = user + "/.local/lib/tide/" TIDE_VERSION;
  }
  return found;
}

}  // namespace tide::cli
