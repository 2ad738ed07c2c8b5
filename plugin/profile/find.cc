// See find.h.
#include "plugin/profile/find.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "include/tide/nearest.h"
#include "plugin/profile/errors.h"

namespace tide::profile {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".yaml";

fs::path parent_of(const char* file) {
  std::error_code failed;
  return fs::canonical(file, failed).parent_path();
}

// The directory of the library, or program, that this code is in; then that of libtide-shim.so
// where it is loaded: libtide-torch.so may lie in the home of the user who built it.
std::vector<fs::path> own_directories() {
  std::vector<fs::path> found;
  Dl_info info = {};
  void* entry = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&own_directories), &info, &entry, RTLD_DL_LINKMAP) != 0) {
    const char* name = static_cast<const link_map*>(entry)->l_name;
    const bool program = name == nullptr || *name == '\0';
    found.push_back(parent_of(program ? "/proc/self/exe" : name));
  }
  const auto add_shim = [](dl_phdr_info* object, size_t, void* list) {
    if (std::string_view(object->dlpi_name).ends_with("/libtide-shim.so")) {
      static_cast<std::vector<fs::path>*>(list)->push_back(parent_of(object->dlpi_name));
    }
    return 0;
  };
  dl_iterate_phdr(add_shim, &found);
  return found;
}

bool directory_exists(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

bool contains(std::string text, std::string part) {
  const auto lower = [](std::string& word) {
    std::transform(word.begin(), word.end(), word.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  };
  lower(text);
  lower(part);
  return text.find(part) != std::string::npos;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

Lookup environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

std::string profile_directory(const Lookup& lookup) {
  if (const auto given = lookup(std::string(kDirectoryVariable))) {
    if (directory_exists(*given)) return *given;
    throw Errors(
        {std::string(kDirectoryVariable) + " is \"" + shown(*given) +
         "\", which is no directory that can be read; allowed: one with profiles, or unset "
         "for the installed ones"});
  }
  constexpr int kDeepest = 4;  // of a build directory in the checkout
  for (const fs::path& own : own_directories()) {
    // lib or bin of a prefix, and lib/tide or lib/ARCHITECTURE of one.
    for (const char* relative : {"../share/tide/configs", "../../share/tide/configs"}) {
      const fs::path candidate = (own / relative).lexically_normal();
      if (directory_exists(candidate)) return candidate.string();
    }
    // As built: somewhere in the checkout, whose configs/ also holds the schema.
    fs::path above = own;
    for (int depth = 0; depth < kDeepest && above.has_relative_path(); ++depth) {
      above = above.parent_path();
      std::error_code failed;
      if (fs::exists(above / "configs/profile.schema.json", failed)) {
        return (above / "configs").string();
      }
    }
  }
  return {};
}

std::vector<std::string> profile_names(const std::string& directory) {
  std::vector<std::string> names;
  if (directory.empty()) return names;
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path().extension() == kExtension) names.push_back(entry->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ProfileFile find_profile(const std::string& name_or_path, const std::string& directory) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(kExtension)) {
    return read_profile_file(name_or_path);
  }
  const std::vector<std::string> names = profile_names(directory);
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) {
    return read_profile_file(
        (fs::path(directory) / (name_or_path + std::string(kExtension))).string());
  }
  const std::string what = "there is no profile \"" + shown(name_or_path) + "\" ";
  if (directory.empty()) {
    throw Errors({what +
                  "because none are installed beside Tide's libraries; allowed: a path, or "
                  "none; " +
                  std::string(kDirectoryVariable) + " may name a directory of profiles"});
  }
  if (names.empty())
    throw Errors({what + "in " + directory + ", which has no profiles; allowed: a path, or none"});
  throw Errors({what + "in " + directory + "; the nearest is \"" +
                std::string(nearest(name_or_path, names)) +
                "\"; allowed: a path, none, or one of " + listed(names)});
}

int fulfils(const Machine& machine, const Match& match) {
  if (machine.gpu.empty()) return 0;
  int conditions = 0;
  if (!match.gpus.empty()) {
    if (std::none_of(match.gpus.begin(), match.gpus.end(),
                     [&](const std::string& gpu) { return contains(machine.gpu, gpu); })) {
      return 0;
    }
    ++conditions;
  }
  if (match.gpus_per_node) {
    if (*match.gpus_per_node != machine.gpus_per_node) return 0;
    ++conditions;
  }
  if (match.link_gbps) {
    if (*match.link_gbps != machine.link_gbps) return 0;
    ++conditions;
  }
  return conditions;
}

Chosen choose_profile(const Lookup& lookup, const Machine& machine) {
  const std::string variable(kProfileVariable);
  if (const auto given = lookup(variable)) {
    if (*given == "none") return {std::nullopt, variable + "=none"};
    try {
      return {find_profile(*given, profile_directory(lookup)), variable + "=" + *given};
    } catch (const Errors& errors) {
      // The file's own lines name the file; who asked for it is said once.
      std::vector<std::string> lines = errors.lines();
      lines.front() = variable + "=" + shown(*given) + ": " + lines.front();
      throw Errors(std::move(lines));
    }
  }
  const std::string here = "this machine: " + to_string(machine);
  const std::string directory = profile_directory(lookup);
  Chosen chosen{std::nullopt, here + ", and no installed profile is for it"};
  if (machine.gpu.empty()) return chosen;
  int best = 0;
  for (const std::string& name : profile_names(directory)) {
    ProfileFile file = find_profile(name, directory);
    const int conditions = file.match ? fulfils(machine, *file.match) : 0;
    if (conditions == 0 || conditions < best) continue;
    if (conditions == best) {
      const std::string other = chosen.file ? chosen.file->name + " and " : "";
      chosen = {std::nullopt, here + ", and several profiles are for it alike: " + other + name +
                                  "; choose one with " + variable};
      continue;
    }
    best = conditions;
    chosen = {std::move(file), here};
  }
  return chosen;
}

}  // namespace tide::profile
