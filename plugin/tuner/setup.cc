// From the profile to the tuner of a communicator.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "include/tide/error.h"
#include "plugin/profile/errors.h"
#include "plugin/profile/profile.h"
#include "plugin/tuner/device.h"
#include "plugin/tuner/log.h"
#include "plugin/tuner/tuner.h"
#include "plugin/tuner/user_choices.h"
#include "plugin/tuner/wave.h"

namespace tide::tuner {
namespace {

using profile::TunerRule;

constexpr std::string_view kSections[] = {"tuner"};

// What is wrong holds for the process: it is told once, however many communicators there are.
void tell_once(ncclDebugLogger_t log, const char* what) {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  TIDE_TUNER_LOG(log, NCCL_LOG_WARN, NCCL_INIT | NCCL_TUNING, "every choice is NCCL's: %s", what);
}

// What `max_ctas: wave` stands for; kMostCtas is no limit.
int count_of_wave(profile::Wave wave, ncclDebugLogger_t log) {
  if (wave.sms == 0) wave.sms = multiprocessors();
  if (wave.sms == 0) {
    throw Error("tuner.wave (line " + std::to_string(wave.line) +
                    ") counts the device's multiprocessors, and no CUDA device is current",
                "set tuner.wave.sms");
  }
  const WaveAnswer answer = solve_wave(wave);
  std::string lost;
  for (const size_t i : answer.lost) lost += (lost.empty() ? "" : ", ") + wave.gemms[i].name;
  TIDE_TUNER_LOG(log, NCCL_LOG_INFO, NCCL_INIT | NCCL_TUNING,
                 "wave rule: at most %d CTAs beside %zu GEMM%s on %d multiprocessors%s%s",
                 answer.ctas, wave.gemms.size(), wave.gemms.size() == 1 ? "" : "s", wave.sms,
                 lost.empty() ? "" : "; a wave is lost to any CTA by ", lost.c_str());
  return answer.ctas;
}

// Rules with numbers only.
std::vector<TunerRule> resolve_waves(const profile::TunerRules& all, ncclDebugLogger_t log) {
  std::vector<TunerRule> rules = all.rules;
  const auto asks = [](const TunerRule& rule) { return rule.max_ctas == profile::kCtasFromWave; };
  if (!all.wave || std::none_of(rules.begin(), rules.end(), asks)) return rules;
  const int ctas = count_of_wave(*all.wave, log);
  for (TunerRule& rule : rules) {
    if (!asks(rule)) continue;
    rule.max_ctas.reset();
    if (ctas < kMostCtas) rule.max_ctas = ctas;
  }
  return rules;
}

Tuner* make(size_t ranks, size_t nodes, ncclDebugLogger_t log) {
  const profile::Profile chosen = profile::load_profile(profile::environment(), kSections);
  if (chosen.number("tuner.enabled") == 0) {
    TIDE_TUNER_LOG(log, NCCL_LOG_INFO, NCCL_INIT | NCCL_TUNING, "off, by %s",
                   chosen.value("tuner.enabled").source.where.c_str());
    return nullptr;
  }
  const UserChoices user =
      read_user_choices([](const char* name) -> const char* { return std::getenv(name); });
  Engine engine(resolve_waves(chosen.tuner(), log), user, static_cast<int64_t>(ranks),
                static_cast<int64_t>(nodes));
  TIDE_TUNER_LOG(log, NCCL_LOG_INFO, NCCL_INIT | NCCL_TUNING,
                 "profile %s (%s): %zu of %zu rules are for %zu ranks on %zu nodes%s%s%s",
                 chosen.name().c_str(), chosen.reason().c_str(), engine.rules().size(),
                 chosen.tuner().rules.size(), ranks, nodes,
                 user.algorithm ? "; NCCL_ALGO is the user's" : "",
                 user.protocol ? "; NCCL_PROTO is the user's" : "",
                 user.channels ? "; the number of CTAs is the user's" : "");
  return new Tuner(std::move(engine), log, ranks, nodes);
}

}  // namespace

Tuner* make_tuner(size_t ranks, size_t nodes, ncclDebugLogger_t log) noexcept {
  try {
    try {
      return make(ranks, nodes, log);
    } catch (const profile::Errors& errors) {
      tell_once(log, errors.brief().c_str());
    }
  } catch (const std::exception& error) {
    tell_once(log, error.what());
  }
  return nullptr;
}

}  // namespace tide::tuner
