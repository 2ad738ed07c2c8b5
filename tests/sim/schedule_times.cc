// Times of an all-gather between nodes on the simulated fabric, as multiples of the wire floor:
// every schedule, every pacing, M and size. The fabric has no switch that could congest: what it
// shows is what rounds and round trips cost, not what bursts do to a network (doc/schedules.md).
//
//   schedule_times [Gb/s a NIC] [one way, us]
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "tests/sim/simulation.h"

namespace tide::sim {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;

struct Wire {
  double bytes_per_ns;
  Time latency;
};

double time_us(const Wire& wire, layout::Schedule schedule, pacing::Pacing pacing, int nodes,
               uint64_t bytes, uint64_t head_bytes) {
  const layout::GatherLayout layout = layout::gather_layout({&bytes, 1}, nodes);
  Scenario scenario;
  scenario.nodes = nodes;
  scenario.rounds = {.pacing = pacing,
                     .head_bytes = head_bytes,
                     .queue_pairs = 4,
                     .write_bytes = 256 * kKiB,
                     .exchanges = 1,
                     .rounds = nodes};
  scenario.exchanges.push_back(all_gather_plan(schedule, layout, nodes, 1, 0, false));
  scenario.timeout = 60'000'000'000;
  scenario.bytes_per_ns = wire.bytes_per_ns;
  scenario.latency = wire.latency;
  scenario.handling = 300;
  scenario.check_data = false;
  const Outcome outcome = simulate(scenario);
  if (!outcome.error.empty()) throw std::runtime_error(outcome.error);
  return static_cast<double>(outcome.finished) / 1000;
}

std::string size_of(uint64_t bytes) {
  return bytes >= kMiB ? std::to_string(bytes / kMiB) + " MiB"
                       : std::to_string(bytes / kKiB) + " KiB";
}

double floor_us(const Wire& wire, int nodes, uint64_t bytes) {
  const double wire_ns = static_cast<double>(bytes) * (nodes - 1) / wire.bytes_per_ns;
  return (wire_ns + static_cast<double>(wire.latency)) / 1000;
}

void print_schedules(const Wire& wire) {
  constexpr layout::Schedule kSchedules[] = {layout::Schedule::kNearFirst,
                                             layout::Schedule::kFarFirst, layout::Schedule::kRing};
  constexpr pacing::Pacing kPacings[] = {pacing::Pacing::kHead, pacing::Pacing::kFull,
                                         pacing::Pacing::kOff};
  std::printf("| M | a rank | floor, us |");
  for (layout::Schedule schedule : kSchedules) {
    for (pacing::Pacing pacing : kPacings) {
      std::printf(" %s %s |", layout::name_of(schedule), pacing::name_of(pacing));
    }
  }
  std::printf("\n| --- | --- | --- |%s\n",
              " --- | --- | --- | --- | --- | --- | --- | --- | --- |");
  for (int nodes : {2, 3, 4, 8, 16, 64}) {
    for (uint64_t bytes : {64 * kKiB, 512 * kKiB, 4 * kMiB, 8 * kMiB, 16 * kMiB, 64 * kMiB}) {
      const double floor = floor_us(wire, nodes, bytes);
      std::printf("| %d | %s | %.0f |", nodes, size_of(bytes).c_str(), floor);
      for (layout::Schedule schedule : kSchedules) {
        for (pacing::Pacing pacing : kPacings) {
          std::printf(" %.2f |", time_us(wire, schedule, pacing, nodes, bytes, 8 * kMiB) / floor);
        }
      }
      std::printf("\n");
    }
  }
}

// Of what full pays over off, the part that early acknowledgement saves.
void print_heads(const Wire& wire) {
  constexpr uint64_t kHeads[] = {256 * kKiB, kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB};
  std::printf("\n| M, near-first | a rank | full - off, us |");
  for (uint64_t head : kHeads) std::printf(" head %s |", size_of(head).c_str());
  std::printf("\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (int nodes : {4, 8, 64}) {
    for (uint64_t bytes : {kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
      const auto time = [&](pacing::Pacing pacing, uint64_t head) {
        return time_us(wire, layout::Schedule::kNearFirst, pacing, nodes, bytes, head);
      };
      const double off = time(pacing::Pacing::kOff, 1);
      const double full = time(pacing::Pacing::kFull, 1);
      std::printf("| %d | %s | %.1f |", nodes, size_of(bytes).c_str(), full - off);
      for (uint64_t head : kHeads) {
        const double saved = full - time(pacing::Pacing::kHead, head);
        std::printf(" %.0f %% |", full - off < 0.05 ? 100.0 : 100 * saved / (full - off));
      }
      std::printf("\n");
    }
  }
}

}  // namespace
}  // namespace tide::sim

int main(int count, char** arguments) {
  const double gbps = count > 1 ? std::atof(arguments[1]) : 400;
  const double latency_us = count > 2 ? std::atof(arguments[2]) : 5;
  if (gbps <= 0 || latency_us < 0) {
    std::fprintf(stderr, "usage: schedule_times [Gb/s] [one way, us]\n");
    return 2;
  }
  const tide::sim::Wire wire{.bytes_per_ns = gbps / 8,
                             .latency = static_cast<tide::sim::Time>(latency_us * 1000)};
  std::printf("%.0f Gb/s a NIC, %.1f us one way; times as multiples of the wire floor\n\n", gbps,
              latency_us);
  tide::sim::print_schedules(wire);
  tide::sim::print_heads(wire);
}
