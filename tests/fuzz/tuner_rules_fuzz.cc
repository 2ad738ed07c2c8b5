// Fuzzes the tuner's rule engine and the wave rule: rules, communicator, user's choices, cost table
// and question are read from the bytes. What must hold whatever they are: no entry that was not
// possible becomes so, at most one entry changes, what the user decided is left alone, a count is
// within the rule's limit, the same question has the same answer.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "include/tide/error.h"
#include "plugin/tuner/engine.h"
#include "plugin/tuner/wave.h"

using namespace tide;
using profile::TunerRule;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Takes values off the front; zeros when nothing is left.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  template <typename T>
  T take() {
    T value{};
    const size_t count = left_ < sizeof(T) ? left_ : sizeof(T);
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count;
    left_ -= count;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Values as a profile may hold them, and no others.
TunerRule take_rule(Bytes* bytes) {
  TunerRule rule;
  const auto set = bytes->take<uint8_t>();
  rule.collectives = bytes->take<uint8_t>() & 31;
  if (set & 1) rule.min_bytes = static_cast<int64_t>(bytes->take<uint64_t>() >> 23);
  if (set & 2) rule.max_bytes = static_cast<int64_t>(bytes->take<uint64_t>() >> 23);
  if (set & 4) rule.min_ranks = rule.min_nodes = bytes->take<uint8_t>();
  if (set & 8) rule.max_ranks = rule.max_nodes = bytes->take<uint8_t>();
  if (set & 16) rule.max_ctas = 1 + bytes->take<uint8_t>() % 64;
  if (set & 32) rule.algorithm = static_cast<profile::Algorithm>(bytes->take<uint8_t>() % 7);
  if (set & 64) rule.protocol = static_cast<profile::Protocol>(bytes->take<uint8_t>() % 3);
  if (set & 128) rule.chunk_bytes = 1024 + bytes->take<uint16_t>() * 1023;
  return rule;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ask(Bytes* bytes, const tuner::Engine& engine, tuner::UserChoices user) {
  const int algorithms = bytes->take<uint8_t>() % 10, protocols = bytes->take<uint8_t>() % 5;
  const int collective = bytes->take<int8_t>();
  const auto size = bytes->take<uint64_t>();
  std::vector<float> before(static_cast<size_t>(algorithms * protocols));
  for (float& cost : before) cost = bytes->take<float>();
  std::vector<float> after = before, again = before;
  const auto decision =
      engine.decide(collective, size, tuner::CostTable(after.data(), algorithms, protocols));
  const auto second =
      engine.decide(collective, size, tuner::CostTable(again.data(), algorithms, protocols));
  require(same(after, again) && decision.ctas == second.ctas && decision.entry == second.entry);
  require(decision.rule >= 0 || (same(before, after) && decision.ctas == 0));
  for (size_t i = 0; i < before.size(); ++i) {
    const bool chosen =
        decision.entry &&
        i == static_cast<size_t>(decision.entry->algorithm * protocols + decision.entry->protocol);
    require(chosen ? before[i] >= 0 && after[i] == 0
                   : std::memcmp(&before[i], &after[i], sizeof(float)) == 0);
  }
  if (decision.entry) {
    const TunerRule& rule = engine.rules()[static_cast<size_t>(decision.rule)];
    require(user.algorithm || !rule.algorithm ||
            decision.entry->algorithm == static_cast<int>(*rule.algorithm));
    require(user.protocol || !rule.protocol ||
            decision.entry->protocol == static_cast<int>(*rule.protocol));
    require(!(user.algorithm && user.protocol));
  }
  if (decision.ctas != 0) {
    require(!user.channels && decision.ctas > 0);
    require(decision.ctas == *engine.rules()[static_cast<size_t>(decision.rule)].max_ctas);
  }
  const auto support = bytes->take<uint8_t>();
  const auto old = engine.decide(collective, size, (support & 1) != 0, (support & 2) != 0);
  require(!old.entry || !(user.algorithm || user.protocol));
  const tuner::Entry entry{bytes->take<uint8_t>() % 12, bytes->take<uint8_t>() % 4};
  const auto own = bytes->take<uint32_t>();
  const uint64_t chunk = engine.chunk_bytes(collective, size, entry, own);
  require(chunk == own || chunk >= 1920);
}

void solve(Bytes* bytes) {
  profile::Wave wave;
  wave.sms = bytes->take<uint16_t>() % 1025;
  wave.cluster = bytes->take<uint8_t>() % 17;
  wave.ctas_per_sm = bytes->take<uint8_t>() % 33;
  wave.leave = bytes->take<uint16_t>() % 1024;
  for (int i = bytes->take<uint8_t>() % 4; i >= 0; --i) {
    profile::WaveGemm gemm;
    gemm.m = bytes->take<uint32_t>() >> 2;
    gemm.n = bytes->take<uint32_t>() >> 2;
    gemm.k = 1;
    gemm.tile_m = bytes->take<uint16_t>() % 4097;
    gemm.tile_n = bytes->take<uint16_t>() % 4097;
    wave.gemms.push_back(gemm);
  }
  try {
    const tuner::WaveAnswer answer = tuner::solve_wave(wave);
    require(answer.ctas >= 1 && answer.ctas <= 64);
    require(answer.scattered >= 0 && answer.scattered <= answer.ctas);
    for (const tuner::GemmWaves& gemm : answer.gemms) {
      // No more waves than beside one CTA; with a CTA more, some GEMM would have them.
      require(gemm.beside == tuner::waves(gemm.clusters, tuner::cluster_places(wave, 1)));
    }
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  solve(&bytes);
  std::vector<TunerRule> rules;
  for (int i = bytes.take<uint8_t>() % 8; i > 0; --i) rules.push_back(take_rule(&bytes));
  const auto set = bytes.take<uint8_t>();
  const tuner::UserChoices user{
      .algorithm = (set & 1) != 0,
      .protocol = (set & 2) != 0,
      .channels = (set & 4) != 0,
      .threads = (set & 8) != 0,
  };
  const tuner::Engine engine(rules, user, bytes.take<uint16_t>(), bytes.take<uint8_t>());
  while (!bytes.empty()) ask(&bytes, engine, user);
  return 0;
}
