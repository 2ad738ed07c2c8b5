// See doctor_gid.h, and ask_verbs() of doctor_facts.h. libibverbs is loaded while the command runs,
// never linked: `tide` works without it.
#include "shim/cli/doctor_gid.h"

#include "shim/cli/doctor_facts.h"

#ifdef TIDE_WITH_VERBS
#include <arpa/inet.h>
#include <dlfcn.h>

#include "include/tide/error.h"
#include "plugin/verbs/gid.h"

namespace tide::cli::doctor {

GidChoice choose_port_gid(const Machine& machine, const std::string& folder) {
  std::vector<verbs::GidEntry> table;
  for (const std::string& index : machine.list(folder + "/gids")) {
    verbs::GidEntry entry;
    entry.index = atoi(index.c_str());
    if (inet_pton(AF_INET6, machine.line(folder + "/gids/" + index).c_str(), entry.gid.raw) != 1) {
      continue;
    }
    // As in the plugin: a port that does not tell is taken as version 2.
    const std::string type = machine.line(folder + "/gid_attrs/types/" + index);
    entry.roce_v2 = type.empty() || type.find("v2") != std::string::npos;
    table.push_back(entry);
  }
  GidChoice choice;
  try {
    const verbs::GidEntry entry = verbs::choose_gid(table, {});
    choice.index = entry.index;
    choice.address = verbs::to_string(entry.gid);
    choice.roce_v2 = entry.roce_v2;
    choice.ipv4 = verbs::is_ipv4(entry.gid);
    choice.link_local = verbs::is_link_local(entry.gid);
  } catch (const Error& error) {
    choice.error = error.what();
  }
  return choice;
}

VerbsFacts ask_verbs() {
  VerbsFacts facts;
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    facts.error = dlerror();
    return facts;
  }
  auto get_list =
      reinterpret_cast<decltype(&::ibv_get_device_list)>(dlsym(library, "ibv_get_device_list"));
  auto open_device =
      reinterpret_cast<decltype(&::ibv_open_device)>(dlsym(library, "ibv_open_device"));
  // The function behind the macro of the same name; it fills the fields of the first release.
  auto query_port = reinterpret_cast<int (*)(ibv_context*, uint8_t, ibv_port_attr*)>(
      dlsym(library, "ibv_query_port"));
  auto query_device =
      reinterpret_cast<decltype(&::ibv_query_device)>(dlsym(library, "ibv_query_device"));
  if (get_list == nullptr || open_device == nullptr || query_port == nullptr ||
      query_device == nullptr) {
    facts.error = "libibverbs.so.1 lacks functions";
    return facts;
  }
  facts.dma_buf = dlsym(library, "ibv_reg_dmabuf_mr") != nullptr;
  int count = 0;
  ibv_device** devices = get_list(&count);
  for (int i = 0; devices != nullptr && i < count; ++i) {
    facts.devices.push_back(devices[i]->name);
    ibv_context* context = open_device(devices[i]);
    ibv_device_attr attributes = {};
    if (context == nullptr || query_device(context, &attributes) != 0) continue;
    for (int port = 1; port <= attributes.phys_port_cnt; ++port) {
      ibv_port_attr state = {};
      if (query_port(context, static_cast<uint8_t>(port), &state) != 0) continue;
      // enum ibv_mtu: 1 is 256 bytes, 5 is 4096
      facts.ports.push_back({devices[i]->name, port, 128 << state.active_mtu});
    }
  }
  return facts;  // devices stay open: the process ends
}

}  // namespace tide::cli::doctor
#else
namespace tide::cli::doctor {

GidChoice choose_port_gid(const Machine&, const std::string&) {
  GidChoice choice;
  choice.known = false;
  return choice;
}

VerbsFacts ask_verbs() {
  VerbsFacts facts;
  facts.error = "this tide was built without libibverbs' headers";
  return facts;
}

}  // namespace tide::cli::doctor
#endif
