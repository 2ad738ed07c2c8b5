#include "plugin/tuner/tuner.h"

#include <cstdio>
#include <utility>

#include "plugin/tuner/log.h"
#include "plugin/tuner/names.h"

namespace tide::tuner {
namespace {

// Everything but the size, so that a decision is told once and not for every size.
uint64_t key_of(int collective, const Decision& decision) {
  uint64_t key = static_cast<uint64_t>(decision.rule) + 1;
  key = key << 3 | static_cast<uint64_t>(collective);
  key = key << 8 | static_cast<uint64_t>(decision.ctas);
  key = key << 8 | static_cast<uint64_t>(decision.entry ? decision.entry->algorithm + 1 : 0);
  key = key << 8 | static_cast<uint64_t>(decision.entry ? decision.entry->protocol + 1 : 0);
  return key << 1 | static_cast<uint64_t>(decision.impossible);
}

}  // namespace

bool Announced::first(uint64_t key) {
  const size_t home = key * 0x9E3779B97F4A7C15u >> 56;  // Fibonacci hashing, to 256 places
  for (size_t i = 0; i < keys_.size(); ++i) {
    std::atomic<uint64_t>& place = keys_[(home + i) % keys_.size()];
    uint64_t there = 0;
    if (place.compare_exchange_strong(there, key, std::memory_order_relaxed)) return true;
    if (there == key) return false;
  }
  return false;
}

Tuner::Tuner(Engine engine, ncclDebugLogger_t log, size_t ranks, size_t nodes)
    : engine_(std::move(engine)), log_(log), ranks_(ranks), nodes_(nodes) {}

void Tuner::ask(int collective, size_t bytes, CostTable table, int* channels) {
  const Decision decision = engine_.decide(collective, bytes, table);
  if (decision.ctas > 0) *channels = decision.ctas;
  announce(collective, bytes, decision);
}

void Tuner::ask(int collective, size_t bytes, bool collnet, bool nvls, int* algorithm,
                int* protocol, int* channels) {
  const Decision decision = engine_.decide(collective, bytes, collnet, nvls);
  if (decision.entry) {
    *algorithm = decision.entry->algorithm;
    *protocol = decision.entry->protocol;
  }
  if (decision.ctas > 0) *channels = decision.ctas;
  announce(collective, bytes, decision);
}

void Tuner::ask_chunk(int collective, size_t bytes, Entry entry, size_t* chunk) {
  *chunk = engine_.chunk_bytes(collective, bytes, entry, *chunk);
}

void Tuner::announce(int collective, size_t bytes, const Decision& decision) {
  if (log_ == nullptr || !decision.speaks()) return;
  if (!announced_.first(key_of(collective, decision))) return;
  char ctas[32] = "CTAs as NCCL has them", entry[48] = "";
  if (decision.ctas > 0) std::snprintf(ctas, sizeof(ctas), "at most %d CTAs", decision.ctas);
  if (decision.entry) {
    std::snprintf(entry, sizeof(entry), ", %s, %s", algorithm_name(decision.entry->algorithm),
                  protocol_name(decision.entry->protocol));
  }
  const profile::TunerRule& rule = engine_.rules()[static_cast<size_t>(decision.rule)];
  TIDE_TUNER_LOG(log_, NCCL_LOG_INFO, NCCL_TUNING,
                 "%s (first of %zu bytes; %zu ranks, %zu nodes): %s%s, by the rule of line %d%s",
                 collective_name(collective), bytes, ranks_, nodes_, ctas, entry, rule.line,
                 decision.impossible ? ", whose algorithm or protocol is not possible here" : "");
}

}  // namespace tide::tuner
