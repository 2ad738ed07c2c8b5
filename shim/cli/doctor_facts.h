// What files do not tell: the answers of the CUDA driver, of a python, of libibverbs and of a few
// programs. Each is asked in a process of its own with a deadline, so that a driver that crashes or
// hangs is a finding. In tests they come from a file.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tide::cli::doctor {

// cuDeviceGetAttribute and cuDeviceCanAccessPeer.
struct CudaDevice {
  std::string name, bus_id;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  bool multicast = false, dma_buf = false, gpu_direct = false;
  std::vector<int> peers;  // devices whose memory it can map
};

struct CudaFacts {
  bool absent = false;  // there is no libcuda.so.1
  std::string error;    // empty: CUDA started
  int error_code = 0;   // the CUresult of cuInit
  int version = 0;      // of the driver API: 12080
  std::vector<CudaDevice> devices;
};

struct PythonFacts {
  std::string asked;  // as the user named it
  std::string error;  // it did not run, or took too long
  std::string executable, version;
  bool preloads = false;  // a library named in LD_PRELOAD is in its process
  std::string torch_version, torch_cuda, torch_error;  // "2.13.0+cu130"; torch_error: no torch
  std::string nccl_version, nccl_file;                 // the NCCL that this torch loads
};

// One library of Tide. release: from its note; empty: it has none. path empty: not there.
struct TideLibrary {
  std::string path, release;
};

struct TideFacts {
  std::string command;
  TideLibrary shim, net;
  std::vector<int> net_versions, tuner_versions;  // NCCL interfaces that `net` exports
  std::map<std::string, TideLibrary> torch;       // by torch release: "2.13.0"
};

struct VerbsPort {
  std::string device;
  int port = 0;
  int mtu = 0;  // bytes, active
};

struct VerbsFacts {
  std::string error;  // empty: libibverbs.so.1 loads and lists devices
  bool dma_buf = false;
  std::vector<std::string> devices;
  std::vector<VerbsPort> ports;
};

struct Facts {
  std::string host;
  TideFacts tide;
  PythonFacts python;
  CudaFacts cuda;
  VerbsFacts verbs;
  // Priorities with flow control by network interface, "3" or "none"; not there: not readable.
  std::map<std::string, std::string> flow_control;
  std::map<std::string, std::string> environment;  // NCCL_* and TIDE_*
  std::vector<std::string> programs;               // those of kPrograms that are on the PATH
};

// Asks this machine. python: a path or a name on the PATH.
Facts gather_facts(const std::string& python);
// Reads what facts_json() wrote. Throws tide::Error.
Facts read_facts(const std::string& file);
std::string facts_json(const Facts& facts);

// The parts of gather_facts() that run in a process of their own.
CudaFacts ask_cuda();
VerbsFacts ask_verbs();

TideFacts look_for_tide();
PythonFacts ask_python(const std::string& python, const std::string& preload);

}  // namespace tide::cli::doctor
