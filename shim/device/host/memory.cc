// memfd_create, seals, mmap.
#include "shim/device/host/memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "include/tide/error.h"

namespace tide::device::host {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const std::string& what, int code, const std::string& remedy = {}) {
  throw Error(what + ": " + std::strerror(code), remedy);
}

// The mappings of this process by (device, inode).
struct Mappings {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Mapping>> known;
};

Mappings& mappings() {
  static Mappings* const instance = new Mappings;  // outlives every team
  return *instance;
}

std::shared_ptr<Mapping> map_once(int fd, const struct stat& info) {
  Mappings& all = mappings();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::erase_if(all.known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Mapping>& known = all.known[{info.st_dev, info.st_ino}];
  if (auto mapping = known.lock()) return mapping;
  auto bytes = static_cast<uint64_t>(info.st_size);
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, /*offset=*/0);
  if (data == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " shared bytes", errno);
  auto mapping = std::make_shared<Mapping>(static_cast<std::byte*>(data), bytes);
  known = mapping;
  return mapping;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Descriptor::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Mapping::~Mapping() { munmap(data_, bytes_); }

SharedMemory create_memory(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > (uint64_t{1} << 62)) fail("cannot make a slot", EFBIG);
  bytes = bytes == 0 ? page : (bytes + page - 1) / page * page;
  const std::string what = "cannot make " + std::to_string(bytes) + " bytes of shared memory";
  Descriptor fd(memfd_create("tide", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail(what, errno, errno == EMFILE ? "raise the limit of open files (ulimit -n)" : "");
  int code;
  // Takes the pages now: later a shortage of memory would be a SIGBUS in the middle of a step.
  do {
    code = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code != 0) fail(what, code, "give the job more memory or use smaller FSDP groups");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) fail(what, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) fail(what, errno);
  auto mapping = map_once(fd.get(), info);
  return {std::move(fd), std::move(mapping)};
}

std::shared_ptr<Mapping> map_memory(int fd, uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &info) != 0 || bytes == 0 ||
      static_cast<uint64_t>(info.st_size) != bytes) {
    throw Error("what arrived is not a sealed memfd of " + std::to_string(bytes) + " bytes");
  }
  return map_once(fd, info);
}

}  // namespace tide::device::host
