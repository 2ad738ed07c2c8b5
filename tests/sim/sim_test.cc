// Ten thousand seeds of the simulation. SIM_SEEDS=n runs as many from SIM_FIRST (0) on; SIM_SEED=n
// runs that one alone and prints all that happens in it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/sim/simulation.h"

namespace tide::sim {
namespace {

// Instrumented code is ten times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 500;
#else
constexpr uint64_t kSeeds = 10'000;
#endif

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void replay(uint64_t seed) {
  std::vector<std::string> trace;
  const Outcome outcome = simulate(random_scenario(seed), &trace);
  for (const std::string& line : trace) std::puts(line.c_str());
  std::printf("seed %llu: hash %016llx\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(outcome.hash));
  EXPECT_EQ(outcome.error, "");
}

TEST(Simulation, EverySeedKeepsItsPromises) {
  if (std::getenv("SIM_SEED") != nullptr) return replay(number_from("SIM_SEED", 0));
  const uint64_t first = number_from("SIM_FIRST", 0);
  const uint64_t seeds = number_from("SIM_SEEDS", kSeeds);
  uint64_t events = 0, deaths = 0, failures = 0, broken = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Scenario scenario = random_scenario(seed);
    const Outcome outcome = simulate(scenario);
    EXPECT_EQ(outcome.error, "") << "SIM_SEED=" << seed << " replays it";
    events += outcome.events;
    deaths += scenario.dies >= 0 ? 1 : 0;
    failures += static_cast<uint64_t>(outcome.failures);
    broken += outcome.error.empty() ? 0 : 1;
    ASSERT_LT(broken, 10u) << "and more";
  }
  std::printf("%llu seeds, %llu events, %llu with a death, of which %llu nodes failed\n",
              static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(events),
              static_cast<unsigned long long>(deaths), static_cast<unsigned long long>(failures));
}

TEST(Simulation, TheSameSeedDoesTheSame) {
  for (uint64_t seed = 0; seed < kSeeds / 50; ++seed) {
    std::vector<std::string> trace;
    const Outcome once = simulate(random_scenario(seed));
    const Outcome again = simulate(random_scenario(seed), &trace);
    ASSERT_EQ(once.hash, again.hash) << seed << ": a trace changes nothing either";
    ASSERT_EQ(once.events, again.events);
  }
}

}  // namespace
}  // namespace tide::sim
