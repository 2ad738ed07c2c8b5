// The progress thread: see nic.h.
#include "plugin/rail/nic.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "include/tide/error.h"
#include "include/tide/thread.h"

namespace tide::rail {
namespace {

constexpr int kCourtesy = 100;                  // yields to callers before the next turn
constexpr uint64_t kLookNs = 50'000;            // a busy thread looks at its sockets so often
constexpr unsigned long kTimerSlackNs = 1'000;  // short sleeps end when they should

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Nic>> nics;
};
// Never freed: rails may be open while the process ends.
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

std::string name_of(const net::Port& port) {
  return port.device->name() + " port " + std::to_string(port.number);
}

void watch_fd(int poll, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Error(std::string("cannot watch a descriptor: ") + std::strerror(errno));
  }
}

void pin(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core < CPU_SETSIZE) CPU_SET(static_cast<size_t>(core), &set);
  const int error = pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
  if (error != 0) {
    throw Error("cannot run a rail's progress thread on core " + std::to_string(core) + ": " +
                    std::strerror(error),
                "name a core that this process may use (taskset -p), or none");
  }
}

}  // namespace

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

std::shared_ptr<Nic> Nic::share(const net::Port& port, const ThreadOptions& options) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  std::weak_ptr<Nic>& entry = known.nics[name_of(port)];
  std::shared_ptr<Nic> nic = entry.lock();
  // The parent's thread does not exist in a child of fork(), nor may its device be used.
  if (nic != nullptr && nic->process_ == getpid() && !nic->device().fatal) {
    const Hold hold(*nic);
    nic->spin_ns_ = std::max(nic->spin_ns_, options.spin_ns);
    return nic;
  }
  // The parent's rails hold it, and never let go here; this process leaks its own reference.
  if (nic != nullptr && nic->process_ != getpid()) new std::shared_ptr<Nic>(std::move(nic));
  nic = std::shared_ptr<Nic>(new Nic(port, options));
  entry = nic;
  return nic;
}

Nic::Hold::Hold(Nic& nic) : nic_(nic), lock_(nic.mutex_, std::defer_lock) {
  nic_.callers_.fetch_add(1);
  lock_.lock();
}

Nic::Hold::~Hold() { nic_.callers_.fetch_sub(1); }

bool Nic::Hold::wait(std::condition_variable& changed,
                     std::chrono::steady_clock::time_point deadline) {
  nic_.callers_.fetch_sub(1);
  const bool in_time = changed.wait_until(lock_, deadline) == std::cv_status::no_timeout;
  nic_.callers_.fetch_add(1);
  return in_time;
}

Nic::Nic(const net::Port& port, const ThreadOptions& options)
    : port_(port),
      name_(name_of(port)),
      process_(getpid()),
      core_(options.core),
      channel_(ibv_create_comp_channel(port.device->context())),
      poll_([] { return epoll_create1(EPOLL_CLOEXEC); }),
      wake_([] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); }),
      spin_ns_(options.spin_ns) {
  if (!channel_ || !poll_ || !wake_) {
    throw Error("no event descriptors for " + name_ + ": " + std::strerror(errno),
                "raise the limit of open files (ulimit -n)");
  }
  channel_descriptor_.emplace(channel_->fd);
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  watch_fd(poll_.get(), wake_.get());
  watch_fd(poll_.get(), channel_->fd);
  watch_fd(poll_.get(), port_.device->context()->async_fd);
  try {
    thread_ = quiet_thread([this] { run(); });
  } catch (const std::exception& error) {
    throw Error("cannot start a progress thread for " + name_ + ": " + error.what());
  }
  if (core_ < 0) return;
  try {
    pin(thread_, core_);
  } catch (...) {
    {
      const Hold hold(*this);
      stop_ = true;
      wake();
    }
    thread_.join();
    throw;
  }
}

Nic::~Nic() {
  {
    const Hold hold(*this);
    stop_ = true;
    wake();
  }
  thread_.join();
}

void Nic::add(Client* client) {
  clients_.push_back(client);
  armed_ = false;  // its queue is not
  wake();
}

void Nic::remove(Client* client) {
  std::erase(clients_, client);
  for (auto entry = watched_.begin(); entry != watched_.end();) {
    if (entry->second == client) {
      epoll_ctl(poll_.get(), EPOLL_CTL_DEL, entry->first, nullptr);
      entry = watched_.erase(entry);
    } else {
      ++entry;
    }
  }
}

void Nic::watch(int fd, Client* client) {
  watch_fd(poll_.get(), fd);
  watched_[fd] = client;
}

void Nic::unwatch(int fd) {
  if (watched_.erase(fd) > 0) epoll_ctl(poll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Nic::wake() {
  if (!asleep_) return;
  asleep_ = false;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Nic::run() {
  prctl(PR_SET_NAME, "tide-rail");
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  uint64_t looked = 0;
  bool woken = false;
  while (true) {
    // A mutex is not fair, and this thread takes it again and again.
    for (int turns = 0; callers_.load() > 0 && turns < kCourtesy; ++turns) sched_yield();
    uint64_t patience = 0;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      asleep_ = false;
      const uint64_t now = now_ns();
      const bool look = woken || now - looked > kLookNs;
      if (look) looked = now;
      patience = turn(now, look);
      asleep_ = patience > 0;
    }
    woken = patience > 0;
    if (woken) sleep(patience);
  }
}

uint64_t Nic::turn(uint64_t now, bool look) {
  if (look) look_around();
  bool news = false;
  for (size_t i = 0; i < clients_.size(); ++i) news |= clients_[i]->step(now);
  if (news) {
    last_news_ = now;
    armed_ = false;
    return 0;
  }
  if (now - last_news_ < spin_ns_) return 0;
  if (!armed_) {
    // Once more afterwards: what came before the arming raises no event.
    for (Client* client : clients_) client->arm();
    armed_ = true;
    return 0;
  }
  uint64_t patience = 1'000'000'000;
  for (const Client* client : clients_) patience = std::min(patience, client->patience(now));
  return patience;
}

void Nic::sleep(uint64_t nanoseconds) {
  pollfd event{poll_.get(), POLLIN, 0};
  const timespec limit{static_cast<time_t>(nanoseconds / 1'000'000'000),
                       static_cast<long>(nanoseconds % 1'000'000'000)};
  ppoll(&event, 1, &limit, nullptr);
}

void Nic::look_around() {
  epoll_event events[64];
  const int count = epoll_wait(poll_.get(), events, 64, 0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd == wake_.get()) {
      uint64_t ignored;
      (void)!read(fd, &ignored, sizeof(ignored));
    } else if (fd == channel_->fd) {
      ibv_cq* queue = nullptr;
      void* context = nullptr;
      while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
      armed_ = false;
    } else if (fd == port_.device->context()->async_fd) {
      handle_device_events();
    } else if (const auto found = watched_.find(fd); found != watched_.end()) {
      found->second->on_socket(fd);
    }
  }
}

void Nic::handle_device_events() {
  ibv_async_event event;
  while (ibv_get_async_event(port_.device->context(), &event) == 0) {
    if (event.event_type == IBV_EVENT_DEVICE_FATAL) port_.device->fatal = true;
    for (Client* client : clients_) client->on_device_event(event);
    ibv_ack_async_event(&event);
  }
}

}  // namespace tide::rail
