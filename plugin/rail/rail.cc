// A rail's life and the requests of its caller: see rail.h.
#include "plugin/rail/rail.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <random>

#include "plugin/rail/port.h"
#include "plugin/rail/set_up.h"

namespace tide::rail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMillisecond = 1'000'000;  // ns
constexpr uint32_t kDepth = 64;               // writes under way on a queue pair, if the device can
constexpr uint32_t kLeastDepth = 8;
constexpr uint32_t kLongestWrite = 1u << 30;  // verbs allows 2^31 bytes
constexpr uint64_t kExtraWait = 5'000 * kMillisecond;

[[noreturn]] void bad(const std::string& what, const std::string& remedy = {}) {
  throw Failed(TIDE_RAIL_BAD_ARGUMENT, what, remedy);
}

net::Settings physical_settings(const Options& options) {
  net::Settings settings;
  try {
    settings = net::settings_of(net::load_profile(profile::environment(), profile::read_machine()));
  } catch (const Error& error) {
    bad(error.what());
  }
  if (!options.devices.empty()) settings.devices = options.devices;
  if (!options.interface.empty()) settings.interface = options.interface;
  return settings;
}

}  // namespace

Options::Options(const tide_rail_options& given) {
  if (given.struct_bytes != sizeof(given)) {
    bad("tide_rail_options has " + std::to_string(given.struct_bytes) + " bytes, not " +
            std::to_string(sizeof(given)),
        "shim and plugin are of different releases");
  }
  auto in_range = [](const char* what, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return;
    bad(std::string(what) + " is " + std::to_string(value) + ", it must be " +
        std::to_string(least) + " to " + std::to_string(most));
  };
  in_range("nodes", given.nodes, 2, TIDE_RAIL_MAX_NODES);
  in_range("node", given.node, 0, given.nodes - 1);
  in_range("rail", given.rail, 0, 4095);
  in_range("pacing", given.pacing, TIDE_RAIL_PACE_OFF, TIDE_RAIL_PACE_FULL);
  in_range("queue_pairs", given.queue_pairs, 1, pacing::kMaxQueuePairs);
  in_range("traffic_class", given.traffic_class, -1, 255);
  in_range("control_traffic_class", given.control_traffic_class, -1, 255);
  in_range("service_level", given.service_level, 0, 15);
  in_range("timeout_ms", given.timeout_ms, 1, INT32_MAX);
  in_range("core", given.core, -1, 4095);
  if (given.pacing == TIDE_RAIL_PACE_HEAD && given.head_bytes == 0) {
    bad("head_bytes is 0", "a head has at least 1 byte; 8 MiB suits most networks");
  }
  node = given.node;
  nodes = given.nodes;
  rail = given.rail;
  for (int i = 0; i < nodes; ++i) {
    const char* text = given.node_names != nullptr ? given.node_names[i] : nullptr;
    names.push_back(text != nullptr ? text : "node " + std::to_string(i));
  }
  if (given.devices != nullptr) devices = given.devices;
  if (given.gpus != nullptr) {
    in_range("rails", given.rails, given.rail + 1, 4096);
    for (int i = 0; i < given.rails; ++i) {
      gpus.emplace_back(given.gpus[i] != nullptr ? given.gpus[i] : "");
    }
  }
  if (given.interface != nullptr) interface = given.interface;
  pacing = given.pacing;
  head_bytes = given.head_bytes;
  queue_pairs = given.queue_pairs;
  traffic_class = std::max(given.traffic_class, 0);
  control_traffic_class =
      given.control_traffic_class < 0 ? traffic_class : given.control_traffic_class;
  service_level = given.service_level;
  timeout_ns = static_cast<uint64_t>(given.timeout_ms) * kMillisecond;
  thread = {given.core, given.spin_ns};
  log = given.log;
  log_context = given.log_context;
}

Rail::Rail(const tide_rail_options& given)
    : options_(given), settings_(physical_settings(options_)), process_(getpid()) {
  // Before anything is registered: a data loader that forks must not move pages from under the NIC.
  // It fails where something was, on kernels that need it not at all.
  (void)ibv_fork_init();
  const ChosenPort chosen = choose_port(options_, settings_);
  nic_ = Nic::share(chosen.port, options_.thread);
  if (options_.thread.core >= 0 && nic_->core() != options_.thread.core) {
    log(LogLevel::kWarn,
        nic_->name() + " has its progress thread on " +
            (nic_->core() < 0 ? std::string("any core") : "core " + std::to_string(nic_->core())) +
            ", not on core " + std::to_string(options_.thread.core) +
            ": another rail opened it first");
  }
  std::random_device random;
  nonce_ = uint64_t{random()} << 32 | random();
  listener_ = net::listen_on(net::choose_interface(settings_.interface), &handle_);
  address_ = encode(Address{handle_, nonce_});
  pacing::RoundSettings rounds;
  rounds.pacing = options_.pacing == TIDE_RAIL_PACE_OFF    ? pacing::Pacing::kOff
                  : options_.pacing == TIDE_RAIL_PACE_FULL ? pacing::Pacing::kFull
                                                           : pacing::Pacing::kHead;
  rounds.head_bytes = std::max<uint64_t>(options_.head_bytes, 1);
  rounds.queue_pairs = options_.queue_pairs;
  rounds.write_bytes = kLongestWrite;
  rounds.exchanges = kExchanges;
  create_queue();
  rounds.depth = static_cast<int>(shape_.depth);
  rounds_ = std::make_unique<pacing::Rounds>(rounds, options_.node, options_.nodes);
  register_control_memory();
  log(LogLevel::kInfo, self() + " opened, " + std::to_string(nic_->port().speed / 1000) +
                           " Gb/s, " + chosen.reason + ", set-up on " + net::address_text(handle_));
}

Rail::~Rail() = default;

// As deep as the device allows.
void Rail::create_queue() {
  shape_.queue_pairs = options_.queue_pairs;
  const auto peers = static_cast<uint64_t>(options_.nodes - 1);
  const auto most = static_cast<uint64_t>(nic_->device().attributes().max_cqe);
  for (shape_.depth = kDepth;; shape_.depth /= 2) {
    if (shape_.depth < kLeastDepth) {
      throw Failed(TIDE_RAIL_SYSTEM,
                   nic_->name() + " cannot serve " + std::to_string(options_.queue_pairs) +
                       " queue pairs to each of " + std::to_string(peers) +
                       " nodes: a completion queue holds " + std::to_string(most),
                   "lower the number of queue pairs of a rail");
    }
    shape_.receive_depth = shape_.depth + 32;
    if (shape_.completions() * peers + kFlushes <= most) break;
  }
  queue_.reset(ibv_create_cq(nic_->device().context(),
                             static_cast<int>(shape_.completions() * peers + kFlushes), nullptr,
                             nic_->channel(), 0));
  if (!queue_) {
    throw Failed(TIDE_RAIL_SYSTEM,
                 "no completion queue on " + nic_->name() + ": " + std::strerror(errno),
                 errno == ENOMEM ? "raise the locked memory limit (ulimit -l)" : "");
  }
}

Rail::Pages Rail::zeroed_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t whole = (bytes + page - 1) / page * page;
  Pages pages(static_cast<uint8_t*>(std::aligned_alloc(page, whole)));
  if (pages == nullptr) throw std::bad_alloc();
  std::memset(pages.get(), 0, whole);
  return pages;
}

void Rail::register_control_memory() {
  const auto nodes = static_cast<size_t>(options_.nodes);
  control_memory_ = zeroed_pages(nodes * ControlMemory::kBytes);
  control_region_.reset((ibv_reg_mr)(nic_->device().domain(), control_memory_.get(),
                                     nodes * ControlMemory::kBytes, IBV_ACCESS_LOCAL_WRITE));
  if (!control_region_) {
    throw Failed(TIDE_RAIL_SYSTEM,
                 "cannot register control buffers on " + nic_->name() + ": " + std::strerror(errno),
                 "raise the locked memory limit (ulimit -l)");
  }
  peers_.resize(nodes);
  for (size_t i = 0; i < nodes; ++i) {
    if (!is_peer(static_cast<int>(i))) continue;
    peers_[i] = std::make_unique<Peer>();
    peers_[i]->memory = {control_memory_.get() + i * ControlMemory::kBytes, control_region_->lkey};
    peers_[i]->outbox.resize(2 * kExchanges);
  }
}

std::unique_ptr<Link> Rail::make_link(int node, uint32_t generation) {
  return std::make_unique<Link>(nic_->device(), nic_->port().number, queue_.get(), shape_,
                                peer(node).memory, node, generation, settings_.ece != 0);
}

verbs::PairOptions Rail::pair_options(int traffic_class) const {
  return {traffic_class, options_.service_level, static_cast<int>(settings_.timeout),
          static_cast<int>(settings_.retry_count)};
}

Hello Rail::introduce() const {
  Hello hello;
  hello.release = TIDE_VERSION;
  hello.host = net::host_name();
  hello.process = static_cast<uint32_t>(process_);
  hello.node = options_.node;
  hello.nonce = nonce_;
  hello.shared = {options_.nodes, options_.rail, options_.pacing, options_.head_bytes,
                  options_.queue_pairs};
  hello.device = nic_->name();
  hello.port = verbs::port_address(nic_->device(), nic_->port().number, nic_->port().rule);
  return hello;
}

tide_rail_result Rail::connect(const char* const* addresses) {
  if (result_ != TIDE_RAIL_OK) return result_;
  if (connected_ || closed_ || addresses == nullptr) return TIDE_RAIL_BAD_ARGUMENT;
  std::vector<Address> list;
  for (int node = 0; node < options_.nodes; ++node) {
    const auto address =
        addresses[node] == nullptr ? std::nullopt : decode_address(addresses[node]);
    if (!address || (node == options_.node && address->nonce != nonce_)) {
      const Nic::Hold hold(*nic_);
      fail(TIDE_RAIL_BAD_ARGUMENT, -1,
           "the address of " + options_.name(node) + " is " +
               (addresses[node] == nullptr ? "missing"
                : address                  ? "not that of this rail"
                                           : "\"" + std::string(addresses[node]) + "\""),
           "hand round what tide_rail_address returns");
      return result_;
    }
    list.push_back(*address);
  }
  std::vector<PeerEnd> ends(static_cast<size_t>(options_.nodes));
  try {
    SetUp set_up(
        options_, listener_, introduce(), list, [this](int node) { return make_link(node, 0); },
        pair_options(options_.traffic_class), pair_options(options_.control_traffic_class));
    set_up.run(&ends);
  } catch (const Failed& error) {
    const Nic::Hold hold(*nic_);
    refuse_all(&ends);
    fail(error.result(), error.culprit(), error.what(), "");
    return result_;
  } catch (const Error& error) {
    const Nic::Hold hold(*nic_);
    refuse_all(&ends);
    fail(TIDE_RAIL_SYSTEM, options_.node, error.what(), "");
    return result_;
  }
  const Nic::Hold hold(*nic_);
  listener_ = {};
  connected_ = true;
  const uint64_t now = now_ns();
  for (int node = 0; node < options_.nodes; ++node) {
    if (!is_peer(node)) continue;
    PeerEnd& end = ends[static_cast<size_t>(node)];
    Peer& other = peer(node);
    other.stream = std::move(end.stream);
    other.link = std::move(end.link);
    other.hello = std::move(end.hello);
    node_of_socket_[other.stream.fd()] = node;
    nic_->watch(other.stream.fd(), this);
    unflushed_ |= !other.stream.flushed();
  }
  for (int node = 0; node < options_.nodes; ++node) {
    for (const net::Frame& frame : ends[static_cast<size_t>(node)].early)
      on_frame(node, frame, now);
  }
  nic_->add(this);
  log(LogLevel::kInfo, self() + " connected to " + std::to_string(options_.nodes - 1) + " nodes, " +
                           std::to_string(options_.queue_pairs) + " queue pairs each");
  return result_;
}

// Set-up has failed. Nodes that come later are told why, until close.
void Rail::refuse_all(std::vector<PeerEnd>* ends) {
  for (int node = 0; node < options_.nodes; ++node) {
    if (is_peer(node)) peer(node).stream = std::move((*ends)[static_cast<size_t>(node)].stream);
  }
  nic_->watch(listener_.get(), this);
  nic_->add(this);
}

tide_rail_result Rail::add_region(void* base, uint64_t bytes, int fd, uint64_t offset,
                                  uint32_t* region) {
  {
    const Nic::Hold hold(*nic_);
    if (result_ != TIDE_RAIL_OK) return result_;
  }
  if (base == nullptr || bytes == 0 || region == nullptr ||
      reinterpret_cast<uint64_t>(base) + bytes < bytes) {
    return TIDE_RAIL_BAD_ARGUMENT;
  }
  // Exactly these bytes, neither rounded to pages nor shared: a peer can write nowhere else.
  const verbs::MemoryRange range{reinterpret_cast<uintptr_t>(base), bytes, fd, offset};
  Region added;
  errno = 0;
  added.handle = verbs::registrar(nic_->device().domain(), settings_.relaxed_ordering != 0)(range);
  if (!added.handle) {
    log(LogLevel::kWarn,
        self() + " cannot register " + std::to_string(bytes) + " bytes of " +
            (fd >= 0 ? "dma-buf" : "host") + " memory: " + std::strerror(errno) +
            (errno == ENOMEM ? "; raise the locked memory limit (ulimit -l)" : ""));
    return TIDE_RAIL_SYSTEM;
  }
  added.base = range.address;
  added.bytes = bytes;
  added.device_memory = fd >= 0;
  const Nic::Hold hold(*nic_);
  try {
    if (added.device_memory && settings_.flush != static_cast<int64_t>(net::Flush::kNever)) {
      create_loopback();
    }
  } catch (const Error& error) {
    log(LogLevel::kWarn, self() + ": " + error.what());
    return TIDE_RAIL_SYSTEM;
  }
  *region = next_region_++;
  regions_[*region] = std::move(added);
  return TIDE_RAIL_OK;
}

tide_rail_result Rail::remove_region(uint32_t region) {
  verbs::RegionHandle handle;  // freed without the lock
  const Nic::Hold hold(*nic_);
  const auto found = regions_.find(region);
  if (found == regions_.end()) return TIDE_RAIL_BAD_ARGUMENT;
  const uint64_t first = found->second.base, last = first + found->second.bytes;
  for (const Exchange& exchange : exchanges_) {
    if (!exchange.open || result_ != TIDE_RAIL_OK) continue;
    bool used = exchange.landing_bytes > 0 && exchange.landing_address >= first &&
                exchange.landing_address < last;
    for (size_t i = 0; i < exchange.send_count; ++i) {
      const Outgoing& transfer = exchange.sends[i];
      used |= transfer.bytes > 0 && transfer.source >= first && transfer.source < last;
    }
    if (used) return TIDE_RAIL_BAD_ARGUMENT;
  }
  handle = std::move(found->second.handle);
  regions_.erase(found);
  return result_;
}

const Exchange* Rail::find(uint64_t exchange) const {
  const Exchange& candidate = exchanges_[exchange % kExchanges];
  return candidate.open && candidate.number == exchange ? &candidate : nullptr;
}

Exchange* Rail::find(uint64_t exchange) {
  return const_cast<Exchange*>(static_cast<const Rail*>(this)->find(exchange));
}

Outgoing* Rail::find_send(Exchange& exchange, uint32_t round) {
  const auto end = exchange.sends.begin() + static_cast<ptrdiff_t>(exchange.send_count);
  const auto at =
      std::lower_bound(exchange.sends.begin(), end, round,
                       [](const Outgoing& send, uint32_t value) { return send.round < value; });
  return at != end && at->round == round ? &*at : nullptr;
}

Incoming* Rail::find_receive(Exchange& exchange, uint32_t round) {
  // The newest are asked for most.
  const auto at = std::find_if(exchange.receives.rbegin(), exchange.receives.rend(),
                               [&](const Incoming& receive) { return receive.round == round; });
  return at == exchange.receives.rend() ? nullptr : &*at;
}

tide_rail_result Rail::ready() const {
  if (result_ != TIDE_RAIL_OK) return result_;
  return connected_ && !closed_ ? TIDE_RAIL_OK : TIDE_RAIL_BAD_ARGUMENT;
}

// The region that holds all of `memory`, null: none.
const Region* Rail::covers(const tide_rail_memory& memory) const {
  const auto found = regions_.find(memory.region);
  if (found == regions_.end()) return nullptr;
  const Region& region = found->second;
  const bool inside = memory.offset <= region.bytes && memory.bytes <= region.bytes - memory.offset;
  return inside ? &region : nullptr;
}

// Waits for `what`, with the lock given up, until `done` or a failure. The progress thread watches
// the deadlines; what it cannot see, or does not get to see, ends here.
template <typename Condition>
tide_rail_result Rail::block(Nic::Hold& hold, uint64_t timeout_ns, const char* what,
                             Condition done) {
  const auto deadline = Clock::now() + std::chrono::nanoseconds(2 * timeout_ns + kExtraWait);
  while (result_ == TIDE_RAIL_OK && !done()) {
    if (hold.wait(changed_, deadline) || done()) continue;
    fail(TIDE_RAIL_TIMEOUT, options_.node, std::string("waited in vain for ") + what,
         "end every exchange that was begun; give the progress thread a core of its own");
  }
  return result_;
}

tide_rail_result Rail::begin(const tide_rail_memory* landing, const char* what, int timeout_ms,
                             uint64_t* number) {
  Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  if (number == nullptr || timeout_ms < 0) return TIDE_RAIL_BAD_ARGUMENT;
  const Region* region = landing == nullptr ? nullptr : covers(*landing);
  if (landing != nullptr && region == nullptr) return TIDE_RAIL_BAD_ARGUMENT;
  const uint64_t timeout_ns =
      timeout_ms > 0 ? static_cast<uint64_t>(timeout_ms) * kMillisecond : options_.timeout_ns;
  Exchange& exchange = exchanges_[next_exchange_ % kExchanges];
  const auto result =
      block(hold, timeout_ns, "one of 32 open exchanges to end", [&] { return !exchange.open; });
  if (result != TIDE_RAIL_OK) return result;
  // A region may have gone while this waited; an exchange that had begun would never end.
  if (landing != nullptr && (region = covers(*landing)) == nullptr) return TIDE_RAIL_BAD_ARGUMENT;
  for (int node = 0; node < options_.nodes; ++node) {
    if (!is_peer(node) || peer(node).lost.empty()) continue;
    fail(TIDE_RAIL_PEER, node,
         options_.name(node) + " went away before exchange " + std::to_string(next_exchange_) +
             (what != nullptr ? " (" + std::string(what) + ")" : "") + " began (" +
             peer(node).lost + ")",
         "its process or machine died; see its log");
    return result_;
  }
  const uint64_t now = now_ns();
  const auto begun = rounds_->begin(timeout_ns, now);
  if (!begun || *begun != next_exchange_) {
    fail(TIDE_RAIL_SYSTEM, options_.node, "the rounds refuse to begin an exchange", "");
    return result_;
  }
  exchange.number = next_exchange_++;
  exchange.open = true;
  exchange.end_called = exchange.end_handed = false;
  exchange.what = what != nullptr ? what : "";
  exchange.timeout_ns = timeout_ns;
  exchange.landing_address = exchange.landing_bytes = exchange.landing_key = 0;
  exchange.device_memory = false;
  if (region != nullptr) {
    exchange.landing_address = region->base + landing->offset;
    exchange.landing_bytes = landing->bytes;
    exchange.landing_key = region->handle->rkey;
    exchange.device_memory = region->device_memory;
  }
  exchange.send_count = exchange.sends_handed = 0;
  exchange.receives.clear();
  exchange.rounds_done = false;
  exchange.flushes = 0;
  *number = exchange.number;
  requested_ = true;
  nic_->wake();
  return TIDE_RAIL_OK;
}

tide_rail_result Rail::send(uint64_t number, const tide_rail_transfer& given) {
  const Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  Exchange* exchange = find(number);
  if (exchange == nullptr || exchange->end_called || !is_peer(given.node) ||
      given.round >= pacing::kMaxRounds || (given.ranges == nullptr && given.range_count > 0)) {
    return TIDE_RAIL_BAD_ARGUMENT;
  }
  if (exchange->send_count > 0 && exchange->sends[exchange->send_count - 1].round >= given.round) {
    return TIDE_RAIL_BAD_ARGUMENT;
  }
  const Region* region = given.range_count == 0 ? nullptr : covers(given.source);
  if (given.range_count > 0 && region == nullptr) return TIDE_RAIL_BAD_ARGUMENT;
  uint64_t bytes = 0, remote_end = 0;
  for (uint32_t i = 0; i < given.range_count; ++i) {
    const tide_rail_range& range = given.ranges[i];
    uint64_t end = 0;
    if (range.local > given.source.bytes || range.bytes > given.source.bytes - range.local ||
        range.after < -1 || range.after >= pacing::kMaxRounds ||
        __builtin_add_overflow(range.remote, range.bytes, &end) ||
        __builtin_add_overflow(bytes, range.bytes, &bytes)) {
      return TIDE_RAIL_BAD_ARGUMENT;
    }
    if (range.bytes > 0) remote_end = std::max(remote_end, end);
  }
  if (peer(given.node).leaving) {
    fail(TIDE_RAIL_PEER, given.node,
         options_.name(given.node) + " has closed its rail, " +
             place(number, static_cast<int>(given.round)) + " goes to it",
         "see its log");
    return result_;
  }
  if (exchange->send_count == exchange->sends.size()) exchange->sends.emplace_back();
  Outgoing& transfer = exchange->sends[exchange->send_count++];
  transfer.node = given.node;
  transfer.round = given.round;
  transfer.source = region != nullptr ? region->base + given.source.offset : 0;
  transfer.key = region != nullptr ? region->handle->lkey : 0;
  transfer.ranges.clear();
  for (uint32_t i = 0; i < given.range_count; ++i) {
    const tide_rail_range& range = given.ranges[i];
    transfer.ranges.push_back({range.local, range.remote, range.bytes, range.after});
  }
  transfer.bytes = bytes;
  transfer.remote_end = remote_end;
  transfer.start = given.start;
  transfer.sent = given.sent;
  transfer.handed = transfer.begun = transfer.done = false;
  waiting_.push({number, given.round, now_ns()});
  requested_ = true;
  nic_->wake();
  return TIDE_RAIL_OK;
}

tide_rail_result Rail::expect(uint64_t number, int node, uint32_t round, tide_rail_flag flag) {
  const Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  Exchange* exchange = find(number);
  if (exchange == nullptr || exchange->end_called || !is_peer(node) ||
      round >= pacing::kMaxRounds) {
    return TIDE_RAIL_BAD_ARGUMENT;
  }
  Incoming* receive = find_receive(*exchange, round);
  if (receive != nullptr && receive->announced) return TIDE_RAIL_BAD_ARGUMENT;
  const uint64_t now = now_ns();
  rounds_->expect(number, node, static_cast<int>(round), now);
  if (receive == nullptr) receive = &exchange->receives.emplace_back();
  receive->node = node;
  receive->round = round;
  receive->flag = flag;
  receive->announced = true;
  take_actions(now);
  if (result_ != TIDE_RAIL_OK) return result_;
  if (receive->landed) {
    landed(*exchange, *receive, now);
  } else if (peer(node).state == LinkState::kGone) {
    fail(TIDE_RAIL_PEER, node,
         options_.name(node) + " has closed its rail, " + place(number, static_cast<int>(round)) +
             " should come from it",
         "see its log");
  }
  requested_ = true;
  nic_->wake();
  return result_;
}

tide_rail_result Rail::wait_landed(uint64_t number, int node, uint32_t round) {
  Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  if (number == 0 || number >= next_exchange_) return TIDE_RAIL_BAD_ARGUMENT;
  Exchange* exchange = find(number);
  if (exchange == nullptr) return TIDE_RAIL_OK;
  const Incoming* receive = find_receive(*exchange, round);
  if (receive == nullptr || !receive->announced || receive->node != node) {
    return TIDE_RAIL_BAD_ARGUMENT;
  }
  return block(hold, exchange->timeout_ns, "a transfer to land", [&] {
    exchange = find(number);
    return exchange == nullptr || find_receive(*exchange, round)->landed;
  });
}

tide_rail_result Rail::wait_sent(uint64_t number, int node, uint32_t round) {
  Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  if (number == 0 || number >= next_exchange_) return TIDE_RAIL_BAD_ARGUMENT;
  Exchange* exchange = find(number);
  if (exchange == nullptr) return TIDE_RAIL_OK;
  const Outgoing* transfer = find_send(*exchange, round);
  if (transfer == nullptr || transfer->node != node) return TIDE_RAIL_BAD_ARGUMENT;
  return block(hold, exchange->timeout_ns, "a transfer to leave", [&] {
    exchange = find(number);
    return exchange == nullptr || find_send(*exchange, round)->done;
  });
}

tide_rail_result Rail::end(uint64_t number) {
  const Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  Exchange* exchange = find(number);
  if (exchange == nullptr || exchange->end_called) return TIDE_RAIL_BAD_ARGUMENT;
  exchange->end_called = true;
  requested_ = true;
  nic_->wake();
  return TIDE_RAIL_OK;
}

tide_rail_result Rail::test(uint64_t number) {
  const Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  if (number == 0 || number >= next_exchange_) return TIDE_RAIL_BAD_ARGUMENT;
  return find(number) == nullptr ? TIDE_RAIL_OK : TIDE_RAIL_PENDING;
}

tide_rail_result Rail::wait(uint64_t number) {
  Nic::Hold hold(*nic_);
  if (const auto result = ready(); result != TIDE_RAIL_OK) return result;
  if (number == 0 || number >= next_exchange_) return TIDE_RAIL_BAD_ARGUMENT;
  const Exchange* exchange = find(number);
  if (exchange == nullptr) return TIDE_RAIL_OK;
  // Nobody else would ever end it.
  if (!exchange->end_called) return TIDE_RAIL_BAD_ARGUMENT;
  return block(hold, exchange->timeout_ns, "the end of an exchange",
               [&] { return find(number) == nullptr; });
}

tide_rail_result Rail::stats(tide_rail_stats* stats) {
  if (stats == nullptr) return TIDE_RAIL_BAD_ARGUMENT;
  const Nic::Hold hold(*nic_);
  *stats = stats_;
  for (const auto& other : peers_) {
    if (other != nullptr) stats->bytes_received += other->received;
  }
  return result_;
}

const char* Rail::error() {
  const Nic::Hold hold(*nic_);
  // Once there is a failure its text stays.
  return result_ == TIDE_RAIL_OK ? "" : failure_.c_str();
}

tide_rail_result Rail::abort(const std::string& reason) {
  const Nic::Hold hold(*nic_);
  if (closed_) return TIDE_RAIL_BAD_ARGUMENT;
  fail(TIDE_RAIL_ABORTED, options_.node,
       options_.name(options_.node) + " gave up: " + (reason.empty() ? "no reason given" : reason),
       "");
  return TIDE_RAIL_OK;
}

void Rail::close() {
  {
    const Nic::Hold hold(*nic_);
    closed_ = true;
    nic_->remove(this);
    for (const auto& other : peers_) {
      if (other == nullptr || other->stream.fd() < 0) continue;
      if (result_ == TIDE_RAIL_OK && connected_) {
        other->stream.send(static_cast<net::FrameType>(FrameType::kBye),
                           encode_number(oldest_exchange_));
      }
      other->stream.flush();
      shutdown(other->stream.fd(), SHUT_WR);
    }
  }
  // Queue pairs before the memory they use. The thread no longer knows this rail.
  loopback_ = {};
  for (const auto& other : peers_) {
    if (other != nullptr) other->link.reset();
  }
  queue_.reset();
  flush_region_.reset();
  regions_.clear();
  control_region_.reset();
}

void Rail::changed() { changed_.notify_all(); }

void Rail::log(LogLevel level, const std::string& line) const {
  if (options_.log != nullptr)
    options_.log(options_.log_context, static_cast<int>(level), line.c_str());
}

std::string Rail::self() const {
  return "rail " + std::to_string(options_.rail) + " (" + (nic_ ? nic_->name() : "no NIC") + ")";
}

// "round 2 of exchange 17 (all-gather of layers.3)"
std::string Rail::place(uint64_t number, int round) const {
  std::string text = round < 0 ? "" : "round " + std::to_string(round) + " of ";
  text += "exchange " + std::to_string(number);
  const Exchange* exchange = find(number);
  if (exchange != nullptr && !exchange->what.empty()) text += " (" + exchange->what + ")";
  return text;
}

// The rail is over; callers, the log and the other nodes hear of it. The first failure counts.
void Rail::fail(tide_rail_result result, int culprit, const std::string& what,
                const std::string& remedy) {
  if (result_ != TIDE_RAIL_OK) return;
  failure_ = self() + " of " + options_.name(options_.node) + " failed: " + what;
  if (!remedy.empty()) failure_ += "; " + remedy;
  result_ = result;
  log(result == TIDE_RAIL_ABORTED ? LogLevel::kWarn : LogLevel::kError, failure_);
  const std::vector<uint8_t> body = encode(Abort{culprit, what});
  for (const auto& other : peers_) {
    if (other == nullptr) continue;
    if (other->link != nullptr) other->link->to_error();
    if (other->stream.fd() < 0) continue;
    other->stream.send(static_cast<net::FrameType>(FrameType::kAbort), body);
    unflushed_ |= !other->stream.flushed();
  }
  waiting_.clear();
  changed();
}

}  // namespace tide::rail
