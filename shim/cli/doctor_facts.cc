// See doctor_facts.h: the facts of this machine, and their JSON.
#include "shim/cli/doctor_facts.h"

#include <elf.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "include/tide/error.h"
#include "shim/cli/doctor_machine.h"
#include "shim/cli/installation.h"
#include "shim/cli/process.h"

extern char** environ;

namespace tide::cli::doctor {

#define TIDE_JSON NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT
TIDE_JSON(CudaDevice, name, bus_id, major, minor, multiprocessors, multicast, dma_buf, gpu_direct,
          peers)
TIDE_JSON(CudaFacts, absent, error, error_code, version, devices)
TIDE_JSON(PythonFacts, asked, error, executable, version, preloads, torch_version, torch_cuda,
          torch_error, nccl_version, nccl_file)
TIDE_JSON(TideLibrary, path, release)
TIDE_JSON(TideFacts, command, shim, net, net_versions, tuner_versions, torch)
TIDE_JSON(VerbsPort, device, port, mtu)
TIDE_JSON(VerbsFacts, error, dma_buf, devices, ports)
TIDE_JSON(Facts, host, tide, python, cuda, verbs, flow_control, environment, programs)
#undef TIDE_JSON

namespace {

// The first call of the CUDA driver takes seconds on a machine with many GPUs.
constexpr std::chrono::seconds kCudaDeadline{60}, kDeadline{20};

constexpr char kPythonScript[] =
#include "probe_python.inc"  // shim/cli/python/probe_python.py as a string, made by the build
    ;

constexpr const char* kPrograms[] = {"ib_write_bw", "ibstat",   "nvidia-smi",
                                     "dcb",         "mlnx_qos", "ethtool"};

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// The note that shim/install/stamp.c puts into every library.
std::string release_of(const std::string& elf) {
  Elf64_Ehdr header;
  if (elf.size() < sizeof(header)) return "";
  memcpy(&header, elf.data(), sizeof(header));
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phoff > elf.size()) return "";
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const size_t place = header.e_phoff + i * sizeof(segment);
    if (place + sizeof(segment) > elf.size()) return "";
    memcpy(&segment, elf.data() + place, sizeof(segment));
    if (segment.p_type != PT_NOTE || segment.p_offset > elf.size()) continue;
    const std::string notes = elf.substr(segment.p_offset, segment.p_filesz);
    const size_t padding = std::max<size_t>(segment.p_align, 4) - 1;
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
      Elf64_Nhdr note;
      memcpy(&note, notes.data() + at, sizeof(note));
      const size_t name = at + sizeof(note);
      const size_t text = name + ((note.n_namesz + padding) & ~padding);
      if (text > notes.size()) break;
      if (notes.compare(name, 5, "Tide\0", 5) == 0) {
        return notes.substr(text, note.n_descsz).c_str();
      }
      at = text + ((note.n_descsz + padding) & ~padding);
    }
  }
  return "";
}

TideLibrary library(const std::string& path) {
  if (path.empty() || !file_exists(path)) return {};
  return {path, release_of(file_bytes(path))};
}

// Versions N for which the library has the symbol PREFIX_vN.
std::vector<int> exported_versions(const std::string& elf, const std::string& prefix) {
  std::vector<int> versions;
  for (int version = 1; version <= 32; ++version) {
    const std::string symbol = prefix + "_v" + std::to_string(version);
    if (elf.find(symbol + '\0') != std::string::npos) versions.push_back(version);
  }
  return versions;
}

std::string flow_control_of(const std::string& interface) {
  const Outcome answer =
      run_program({"dcb", "pfc", "show", "dev", interface, "prio-pfc"}, {}, kDeadline);
  // "prio-pfc 0:off 1:off 2:off 3:on ..."
  std::istringstream words(answer.error.empty() && answer.status == 0 ? answer.output : "");
  std::vector<std::string> on;
  bool seen = false;
  for (std::string word; words >> word;) {
    seen = seen || word == "prio-pfc";
    if (word.size() == 4 && word.compare(1, 3, ":on") == 0) on.push_back(word.substr(0, 1));
  }
  return !seen ? "" : on.empty() ? "none" : join(on, ",");
}

bool on_path(const std::string& program) {
  const char* path = getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

template <typename T>
T from_child(T (*ask)(), std::chrono::seconds deadline) {
  T facts;
  const Outcome outcome = in_child([ask] { return nlohmann::json(ask()).dump(); }, deadline);
  const nlohmann::json answer =
      nlohmann::json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
  if (outcome.error.empty() && answer.is_object()) {
    facts = answer.get<T>();
  } else {
    facts.error = outcome.error.empty() ? "no answer" : outcome.error;
  }
  return facts;
}

}  // namespace

TideFacts look_for_tide() {
  const Installation tide = find_installation();
  TideFacts facts{tide.command, library(tide.shim()), library(tide.net), {}, {}, {}};
  if (!tide.net.empty()) {
    const std::string elf = file_bytes(tide.net);
    facts.net_versions = exported_versions(elf, "ncclNetPlugin");
    facts.tuner_versions = exported_versions(elf, "ncclTunerPlugin");
  }
  const std::string folder = facts.shim.path.substr(0, facts.shim.path.rfind('/'));
  const std::string prefix = "libtide-torch-", suffix = ".so";
  for (const std::string& name : Machine("").list(folder.empty() ? "/nowhere" : folder)) {
    if (name.starts_with(prefix) && name.ends_with(suffix)) {
      const std::string version =
          name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
      facts.torch[version] = library(folder + "/" + name);
    }
  }
  return facts;
}

PythonFacts ask_python(const std::string& python, const std::string& preload) {
  PythonFacts facts;
  const Outcome outcome = run_program({python, "-c", kPythonScript},
                                      {{"LD_PRELOAD", preload}, {"TIDE_SHIM", "off"}}, kDeadline);
  const nlohmann::json answer =
      nlohmann::json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
  if (outcome.error.empty() && answer.is_object()) {
    facts = answer.get<PythonFacts>();
  } else {
    facts.error =
        !outcome.error.empty() ? outcome.error : "exit status " + std::to_string(outcome.status);
  }
  facts.asked = python;
  return facts;
}

Facts gather_facts(const std::string& python) {
  Facts facts;
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  facts.host = host;
  facts.tide = look_for_tide();
  facts.python = ask_python(python, facts.tide.shim.path);
  facts.cuda = from_child(ask_cuda, kCudaDeadline);
  facts.verbs = from_child(ask_verbs, kDeadline);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.starts_with("NCCL_") || text.starts_with("TIDE_")) {
      const size_t equals = text.find('=');
      facts.environment[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  for (const char* program : kPrograms) {
    if (on_path(program)) facts.programs.push_back(program);
  }
  const Machine machine("");
  for (const std::string& device : machine.list("/sys/class/infiniband")) {
    const std::string folder = "/sys/class/infiniband/" + device + "/device/net";
    for (const std::string& interface : machine.list(folder)) {
      const std::string priorities = flow_control_of(interface);
      if (!priorities.empty()) facts.flow_control[interface] = priorities;
    }
  }
  return facts;
}

Facts read_facts(const std::string& file) {
  try {
    std::ifstream stream(file);
    if (!stream) throw Error("cannot read " + file + ": " + strerror(errno));
    return nlohmann::json::parse(stream).get<Facts>();
  } catch (const nlohmann::json::exception& error) {
    throw Error(file + ": " + error.what());
  }
}

std::string facts_json(const Facts& facts) { return nlohmann::json(facts).dump(1) + "\n"; }

}  // namespace tide::cli::doctor
