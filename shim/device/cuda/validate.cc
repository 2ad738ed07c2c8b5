// Arithmetic that cannot overflow, on numbers that may be anything.
#include "shim/device/cuda/validate.h"

#include <string>

#include "include/tide/error.h"

namespace tide::device::cuda {
namespace {

void check(bool good, const Exchange& exchange, const std::string& what) {
  if (!good) throw Error(exchange.what + " cannot start: " + what);
}

bool fits(uint64_t begin, uint64_t bytes, uint64_t limit) {
  return begin <= limit && bytes <= limit - begin;
}

bool aligned(const void* address, DType type) {
  return reinterpret_cast<uintptr_t>(address) % size_of(type) == 0;
}

}  // namespace

void validate(const Exchange& exchange, int rank, int size) {
  const uint64_t landing = exchange.landing.bytes;
  for (const Push& push : exchange.pushes) {
    check(push.peer >= 0 && push.peer < size, exchange,
          "a push to rank " + std::to_string(push.peer) + " of " + std::to_string(size));
    check(push.from != nullptr || push.bytes == 0, exchange, "a push from no memory");
    check(push.bytes == 0 || fits(push.to, push.bytes, landing), exchange,
          "a push past the end of the landing slot");
  }

  const Sum& sum = exchange.sum;
  check(sum.out != DType::kFloat16, exchange, "a sum gives fp32 or bf16, not fp16");
  check(aligned(sum.output, sum.out), exchange, "the output of a sum is not aligned");
  const bool of_ranks = sum.sources < 0;
  check(sum.sources != 0, exchange, "a sum of nothing");
  if (sum.reduce_scatter) {
    check(of_ranks && sum.place_bytes <= landing / static_cast<uint64_t>(size), exchange,
          "a reduce-scatter whose slot has no place for every rank");
    const uint64_t place = static_cast<uint64_t>(rank) * sum.place_bytes;
    for (const Push& push : exchange.pushes) {
      check(push.bytes == 0 || (push.peer != rank && push.to >= place &&
                                fits(push.to - place, push.bytes, sum.place_bytes)),
            exchange, "a push of a reduce-scatter outside this rank's place");
    }
    for (const SumRun& run : sum.runs) {
      check(run.count <= sum.place_bytes / size_of(sum.in) &&
                fits(run.landing, run.count * size_of(sum.in), sum.place_bytes),
            exchange, "a sum of a reduce-scatter past the end of its place");
    }
  }
  const auto sources = static_cast<uint64_t>(of_ranks ? size : sum.sources);
  const uint64_t places = sources - (of_ranks && rank == size - 1 ? 2 : 1);  // last one read
  for (const SumRun& run : sum.runs) {
    check(of_ranks || (run.own == nullptr) == (sum.runs.front().own == nullptr), exchange,
          "a sum over places with own memory in some runs only");
    if (run.count == 0) continue;
    check(sum.output != nullptr, exchange, "a sum without an output");
    check(run.own != nullptr || !of_ranks, exchange, "a sum without this rank's own source");
    check(aligned(run.own, sum.in) && run.landing % size_of(sum.in) == 0 &&
              sum.place_bytes % size_of(sum.in) == 0,
          exchange, "a source of a sum is not aligned");
    if (of_ranks && size == 1) continue;
    check(run.count <= landing / size_of(sum.in) && sum.place_bytes <= landing &&
              (places == 0 || sum.place_bytes <= landing / places) &&
              fits(places * sum.place_bytes, run.landing, landing) &&
              fits(places * sum.place_bytes + run.landing, run.count * size_of(sum.in), landing),
          exchange, "a sum reads past the end of the landing slot");
  }
  for (const auto& zeros : sum.zeros) {
    check(sum.output != nullptr || zeros.second == 0, exchange, "a sum without an output");
  }
}

}  // namespace tide::device::cuda
