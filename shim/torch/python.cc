#include "shim/torch/python.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "include/tide/error.h"
#include "shim/torch/log.h"

namespace tide::shim {
namespace {

// Python's C functions are looked up in the running interpreter, so that one build serves every
// Python version; only names of the stable ABI, plus the frame accessor that is part of it.
using Object = void;

#define TIDE_PYTHON_FUNCTIONS(_)                                \
  _(int, PyGILState_Ensure, (void))                             \
  _(void, PyGILState_Release, (int))                            \
  _(int, Py_IsInitialized, (void))                              \
  _(Object*, PyEval_GetFrame, (void))                           \
  _(Object*, PyObject_GetAttrString, (Object*, const char*))    \
  _(Object*, PyObject_GetItem, (Object*, Object*))              \
  _(int, PyObject_IsTrue, (Object*))                            \
  _(Object*, PyObject_Type, (Object*))                          \
  _(Object*, PyObject_CallObject, (Object*, Object*))           \
  _(Object*, PyUnicode_FromString, (const char*))               \
  _(Object*, PyWeakref_NewRef, (Object*, Object*))              \
  _(const char*, PyUnicode_AsUTF8AndSize, (Object*, intptr_t*)) \
  _(intptr_t, PyList_Size, (Object*))                           \
  _(Object*, PyList_GetItem, (Object*, intptr_t))               \
  _(Object*, PyImport_ImportModule, (const char*))              \
  _(Object*, PySys_GetObject, (const char*))                    \
  _(Object*, PyDict_New, (void))                                \
  _(Object*, Py_CompileString, (const char*, const char*, int)) \
  _(Object*, PyEval_EvalCode, (Object*, Object*, Object*))      \
  _(long, PyLong_AsLong, (Object*))                             \
  _(void, PyErr_Clear, (void))                                  \
  _(Object*, PyErr_Occurred, (void))                            \
  _(void, PyErr_SetString, (Object*, const char*))              \
  _(int, Py_AddPendingCall, (int (*)(void*), void*))            \
  _(void, Py_IncRef, (Object*))                                 \
  _(void, Py_DecRef, (Object*))

struct Python {
#define TIDE_FIELD(result, name, arguments) result(*name) arguments = nullptr;
  TIDE_PYTHON_FUNCTIONS(TIDE_FIELD)
#undef TIDE_FIELD
  bool complete = true;

  Python() {
#define TIDE_LOAD(result, name, arguments)                                  \
  name = reinterpret_cast<result(*) arguments>(dlsym(RTLD_DEFAULT, #name)); \
  complete = complete && name != nullptr;
    TIDE_PYTHON_FUNCTIONS(TIDE_LOAD)
#undef TIDE_LOAD
  }
};

const Python& python() {
  static const Python table;
  return table;
}

class Gil {
 public:
  Gil() : state_(python().PyGILState_Ensure()) {}
  ~Gil() { python().PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  int state_;
};

struct DecRef {
  void operator()(Object* object) const { python().Py_DecRef(object); }
};
using Ref = std::unique_ptr<Object, DecRef>;

bool available() { return python().complete && python().Py_IsInitialized(); }

// Null, with no Python error left behind, where the attribute is absent.
Ref attribute(const Ref& object, const char* name) {
  if (!object) return nullptr;
  Ref value(python().PyObject_GetAttrString(object.get(), name));
  if (!value) python().PyErr_Clear();
  return value;
}

Ref item(const Ref& mapping, const char* key) {
  if (!mapping) return nullptr;
  const Ref name(python().PyUnicode_FromString(key));
  Ref value(python().PyObject_GetItem(mapping.get(), name.get()));
  if (!value) python().PyErr_Clear();
  return value;
}

std::string text_of(const Ref& object) {
  if (!object) return {};
  intptr_t size = 0;
  const char* text = python().PyUnicode_AsUTF8AndSize(object.get(), &size);
  if (text == nullptr) {
    python().PyErr_Clear();
    return {};
  }
  return std::string(text, size);
}

Ref current_frame() {
  Object* frame = python().PyEval_GetFrame();  // borrowed
  if (frame != nullptr) python().Py_IncRef(frame);
  return Ref(frame);
}

// Code objects of FSDP2's two functions, once seen: comparing pointers is cheaper than names.
// Kept for ever, as functions of a module are.
Object* known_code[2] = {nullptr, nullptr};

bool is_function(const Ref& code, FsdpFunction function) {
  Object*& known = known_code[static_cast<int>(function)];
  if (known != nullptr) return code.get() == known;
  const char* name = function == FsdpFunction::kAllGather ? "foreach_all_gather" : "foreach_reduce";
  if (text_of(attribute(code, "co_name")) != name) return false;
  if (text_of(attribute(code, "co_filename")).find("_fully_shard") == std::string::npos)
    return false;
  python().Py_IncRef(code.get());
  known = code.get();
  return true;
}

// The class of FSDP2's own communication objects, as "module.Class".
std::string class_of(const Ref& object) {
  const Ref type(python().PyObject_Type(object.get()));
  return text_of(attribute(type, "__module__")) + "." + text_of(attribute(type, "__qualname__"));
}

// Import machinery catches errors (torch probes for numpy that way): not before torch is there.
bool torch_is_imported() {
  Object* modules = python().PySys_GetObject("modules");  // borrowed
  if (modules == nullptr) return false;
  python().Py_IncRef(modules);
  const Ref torch = item(Ref(modules), "torch");
  const Ref initializing = attribute(attribute(torch, "__spec__"), "_initializing");
  return torch && (!initializing || python().PyObject_IsTrue(initializing.get()) == 0);
}

struct PendingError {
  std::string text;
  std::atomic<bool> over{false};  // it was raised, or Python ends
  pid_t process = getpid();
  std::thread asking{};
};
PendingError* awaited = nullptr;

// By Python, when it ends: ctypes has let go of the GIL. A child of fork has no such thread.
void stop_asking() {
  if (awaited->process != getpid()) return;
  awaited->over.store(true);
  if (awaited->asking.joinable()) awaited->asking.join();
}

// In the main thread, between two byte codes. Nothing before torch is there whole: code of torch
// that is being imported may catch the exception.
int raise_pending(void* argument) {
  auto& pending = *static_cast<PendingError*>(argument);
  if (pending.over.load() || !torch_is_imported()) return 0;
  pending.over.store(true);
  auto* const* type = static_cast<Object* const*>(dlsym(RTLD_DEFAULT, "PyExc_RuntimeError"));
  if (type == nullptr) return 0;
  python().PyErr_SetString(*type, pending.text.c_str());
  return -1;
}

// Which group a live FSDPParam belongs to. The weak reference tells a new object at an old address
// from the old one. Guarded by the GIL.
struct Membership {
  Ref weak;
  int group = -1;
};
std::unordered_map<Object*, Membership>& memberships() {
  static auto& instance = *new std::unordered_map<Object*, Membership>;
  return instance;
}
int groups_seen = 0;

bool alive(Object* parameter, const Membership& of) {
  const Ref referent(python().PyObject_CallObject(of.weak.get(), nullptr));
  return referent.get() == parameter;
}

int group_of(Object* parameter) {
  const auto found = memberships().find(parameter);
  if (found == memberships().end() || !alive(parameter, found->second)) return -1;
  return found->second.group;
}

// A process may build models without end. Looks at all of them when they have doubled.
void forget_dead_parameters() {
  static size_t next_look = 4096;
  if (memberships().size() < next_look) return;
  std::erase_if(memberships(), [](const auto& of) { return !alive(of.first, of.second); });
  next_look = std::max<size_t>(4096, 2 * memberships().size());
}

std::vector<Ref> items_of(const Ref& list) {
  const intptr_t size = python().PyList_Size(list.get());
  if (size <= 0) {
    python().PyErr_Clear();
    throw Error("FSDP2's fsdp_params is not a list of parameters in this torch");
  }
  std::vector<Ref> items;
  for (intptr_t i = 0; i < size; ++i) {
    Object* borrowed = python().PyList_GetItem(list.get(), i);
    python().Py_IncRef(borrowed);
    items.emplace_back(borrowed);
  }
  return items;
}

// "layers.3" of "layers.3.wq.weight" and "layers.3.wo.weight": the longest common prefix of whole
// names between dots; of a single parameter, its module.
std::string common_module(const std::vector<std::string>& names) {
  const auto [low, high] = std::minmax_element(names.begin(), names.end());
  const size_t common =
      std::mismatch(low->begin(), low->end(), high->begin(), high->end()).first - low->begin();
  const size_t dot = low->rfind('.', common == 0 ? 0 : common - 1);
  return dot == std::string::npos ? std::string() : low->substr(0, dot);
}

GroupFacts facts_of(const std::vector<Ref>& parameters) {
  GroupFacts facts;
  facts.parameters = static_cast<int>(parameters.size());
  std::vector<std::string> names;
  for (const Ref& parameter : parameters) {
    const Ref offload = attribute(parameter, "offload_to_cpu");
    const Ref trainable = attribute(attribute(parameter, "sharded_param"), "requires_grad");
    if (!offload || !trainable)
      throw Error("FSDP2's FSDPParam has no offload_to_cpu or no sharded_param in this torch");
    facts.offloaded |= python().PyObject_IsTrue(offload.get()) == 1;
    facts.trainable += python().PyObject_IsTrue(trainable.get()) == 1;
    names.push_back(text_of(attribute(parameter, "_param_fqn")));
  }
  facts.name = common_module(names);
  return facts;
}

}  // namespace

Caller find_caller(FsdpFunction function) try {
  if (!available()) return {};
  const Gil gil;
  const bool gathers = function == FsdpFunction::kAllGather;
  // torch.ops' __call__, FSDP2's copy-in helper and its decorators lie between; more means that
  // somebody else calls.
  constexpr int kFrames = 10;
  Ref frame = current_frame();
  for (int depth = 0; frame && depth < kFrames; ++depth, frame = attribute(frame, "f_back")) {
    if (!is_function(attribute(frame, "f_code"), function)) continue;
    const Ref locals = attribute(frame, "f_locals");
    const Ref list = item(locals, "fsdp_params");
    const Ref communication = item(locals, gathers ? "all_gather_comm" : "reduce_scatter_comm");
    if (!list || !communication) return {};

    Caller caller;
    const std::string type = class_of(communication);
    const char* own = gathers ? ".DefaultAllGather" : ".DefaultReduceScatter";
    if (!type.starts_with("torch.distributed.fsdp.") || !type.ends_with(own)) caller.custom = type;

    // foreach_reduce gets a new list, of the parameters that have gradients: its first parameter
    // tells the group.
    const std::vector<Ref> parameters = items_of(list);
    caller.group = group_of(parameters[0].get());
    if (caller.group < 0) {
      caller.facts = facts_of(parameters);
      caller.group = groups_seen++;
      forget_dead_parameters();
      for (const Ref& parameter : parameters) {
        Ref weak(python().PyWeakref_NewRef(parameter.get(), nullptr));
        memberships()[parameter.get()] = {std::move(weak), caller.group};
      }
    }
    return caller;
  }
  return {};
} catch (const Error& error) {
  log_once(LogLevel::kWarn, std::string("training goes on stock: ") + error.what());
  return {};
}

std::string run_python(const char* source) {
  if (!available()) return "this process has no Python";
  const Gil gil;
  constexpr int kStatements = 257;  // Py_file_input
  const Ref globals(python().PyDict_New());
  const Ref code(python().Py_CompileString(source, "<tide>", kStatements));
  const Ref done(code ? python().PyEval_EvalCode(code.get(), globals.get(), globals.get())
                      : nullptr);
  if (done) return {};
  Object* type = python().PyErr_Occurred();  // borrowed
  python().Py_IncRef(type);
  const Ref raised(type);
  python().PyErr_Clear();
  return text_of(attribute(raised, "__name__"));
}

int global_rank() {
  if (!available()) return -1;
  const Gil gil;
  const Ref module(python().PyImport_ImportModule("torch.distributed"));
  if (!module) {
    python().PyErr_Clear();
    return -1;
  }
  const Ref function = attribute(module, "get_rank");
  const Ref rank(function ? python().PyObject_CallObject(function.get(), nullptr) : nullptr);
  if (!rank) {
    python().PyErr_Clear();
    return -1;
  }
  return static_cast<int>(python().PyLong_AsLong(rank.get()));
}

void raise_in_main_thread(const std::string& text) {
  if (!available()) return;
  auto* pending = new PendingError{.text = text};  // a call of it may be due for ever
  awaited = pending;
  // Python's end is no time to ask any more.
  const std::string at_exit = "import atexit, ctypes\natexit.register(ctypes.CFUNCTYPE(None)(" +
                              std::to_string(reinterpret_cast<uintptr_t>(&stop_asking)) + "))\n";
  if (const std::string error = run_python(at_exit.c_str()); !error.empty()) {
    log(LogLevel::kWarn, "this goes on until FSDP2's first all-gather: " + error);
    return;
  }
  // A thread asks now and then: a pending call that renewed itself would run at every byte code of
  // torch's import. Py_AddPendingCall needs no GIL.
  pending->asking = std::thread([pending] {
    while (!pending->over.load()) {
      python().Py_AddPendingCall(&raise_pending, pending);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
}

}  // namespace tide::shim
