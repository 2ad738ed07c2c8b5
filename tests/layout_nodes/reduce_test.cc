// The Latin-square reduce-scatter: a reference executor of the plan against the documented sum, and
// the properties of the square.
#include "shim/layout/node_reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "include/tide/error.h"

namespace tide::layout {
namespace {

using Vector = std::vector<float>;

struct Job {
  ReduceLayout layout;
  ReduceGrid grid;
  std::vector<std::vector<Vector>> gradients;  // by rank, then by piece

  int world() const { return layout.world; }
};

Job random_job(int nodes, int local_ranks, std::mt19937& random) {
  std::vector<Gradient> shapes(1 + random() % 4);
  for (Gradient& shape : shapes) {
    // From empty over fewer rows than ranks to several rows each.
    shape = {.rows = random() % 4 == 0 ? random() % 3 : random() % 150, .row = 1 + random() % 7};
  }
  Job job;
  job.layout = reduce_layout(shapes, nodes * local_ranks);
  job.grid = reduce_grid(job.layout, nodes, local_ranks);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  for (int rank = 0; rank < job.world(); ++rank) {
    std::vector<Vector> pieces;
    for (const ReducePiece& piece : job.layout.pieces) {
      Vector values(piece.elements);
      // Of very different sizes: another order of additions gives another sum.
      for (float& value : values) value = std::ldexp(mantissa(random), random() % 24);
      pieces.push_back(std::move(values));
    }
    job.gradients.push_back(std::move(pieces));
  }
  return job;
}

// The documented order, from the gradients themselves.
Vector documented_sum(const Job& job, int owner) {
  const int ranks = job.grid.local_ranks;
  const int node = owner / ranks;
  Vector output(job.layout.out, 0.0f);
  for (size_t p = 0; p < job.layout.pieces.size(); ++p) {
    const ReducePiece& piece = job.layout.pieces[p];
    for (uint64_t i = 0; i < piece.chunk; ++i) {
      const uint64_t element = piece.chunk * static_cast<uint64_t>(owner) + i;
      if (element >= piece.elements) break;
      float total = 0;
      for (int c = 0; c < job.grid.nodes; ++c) {
        const int source = job.grid.source(node, c);
        float partial = job.gradients[source * ranks][p][element];
        for (int j = 1; j < ranks; ++j) {
          partial += job.gradients[source * ranks + j][p][element];
        }
        total = c == 0 ? partial : total + partial;
      }
      output[piece.out + i] = total;
    }
  }
  return output;
}

// A receive set that knows which batch wrote what.
struct ReceiveSet {
  Vector values;
  std::vector<int> batch;
};

class Executor {
 public:
  explicit Executor(const Job& job) : job_(job), grid_(job.grid) {
    const ReceiveSet empty{.values = Vector(grid_.set_elements(), 0.0f),
                           .batch = std::vector<int>(grid_.set_elements(), -1)};
    sets_.assign(job.world(), std::vector<ReceiveSet>(ReduceGrid::sets, empty));
    outputs_.assign(job.world(), Vector(job.layout.out, 0.0f));
    written_.assign(job.world(), std::vector<int>(job.layout.out, 0));
  }

  void run() {
    for (int batch = 0; batch < grid_.batches; ++batch) {
      const int end = std::min(grid_.nodes, (batch + 1) * grid_.local_ranks);
      for (int c = batch * grid_.local_ranks; c < end; ++c) {
        for (int node = 0; node < grid_.nodes; ++node) {
          ASSERT_NO_FATAL_FAILURE(send(node, c, partials(node, c)));
        }
      }
      for (int rank = 0; rank < job_.world(); ++rank) {
        ASSERT_NO_FATAL_FAILURE(read(rank, batch));
      }
    }
    for (const std::vector<int>& written : written_) {
      ASSERT_EQ(written, std::vector<int>(job_.layout.out, grid_.nodes));
    }
  }

  const Vector& output(int rank) const { return outputs_[rank]; }

 private:
  // Level 1 of one node and step; by local rank.
  std::vector<Vector> partials(int node, int c) {
    const int ranks = grid_.local_ranks;
    std::vector<LevelOneStep> steps;
    for (int j = 0; j < ranks; ++j) {
      steps.push_back(level_one_step(job_.layout, grid_, node, j, c));
    }
    // landing[q][j]: what j pushed to q.
    std::vector<std::vector<Vector>> landing(ranks,
                                             std::vector<Vector>(ranks, Vector(grid_.place, NAN)));
    for (int j = 0; j < ranks; ++j) {
      int next = (j + 1) % ranks;
      for (const LevelOnePush& push : steps[j].pushes) {
        EXPECT_EQ(push.peer, next) << "staggered";
        next = (next + 1) % ranks;
        EXPECT_EQ(push.segment, steps[push.peer].segment);
        for (const PartialRun& run : push.runs) {
          const float* from = &job_.gradients[node * ranks + j][run.piece][run.from];
          std::copy(from, from + run.count, &landing[push.peer][j][run.at]);
        }
      }
    }
    std::vector<Vector> partials;
    for (int q = 0; q < ranks; ++q) {
      Vector partial(grid_.partial(steps[q].segment), NAN);
      for (const auto& [at, count] : steps[q].sum.zeros) {
        std::fill_n(partial.begin() + static_cast<ptrdiff_t>(at), count, 0.0f);
      }
      for (const PartialRun& run : steps[q].sum.runs) {
        for (uint64_t i = 0; i < run.count; ++i) {
          float sum = 0;
          for (int j = 0; j < ranks; ++j) {
            const float term = j == q ? job_.gradients[node * ranks + q][run.piece][run.from + i]
                                      : landing[q][j][run.at + i];
            sum = j == 0 ? term : sum + term;
          }
          EXPECT_TRUE(std::isnan(partial[run.at + i])) << "written twice";
          partial[run.at + i] = sum;
        }
      }
      partials.push_back(std::move(partial));
    }
    return partials;
  }

  void send(int node, int c, const std::vector<Vector>& partials) {
    for (int j = 0; j < grid_.local_ranks; ++j) {
      const LevelTwoSend send = level_two_sends(grid_, node, j)[c];
      ASSERT_EQ(send.c, c);
      ASSERT_EQ(partials[j].size(), send.elements);
      const int to = send.destination * grid_.local_ranks + j;  // rails are aligned
      ReceiveSet& set = sets_[to][send.set];
      for (uint64_t i = 0; i < send.elements; ++i) {
        // Only what the batch before the last has left may be there: it was read.
        ASSERT_LT(set.batch[send.offset + i], send.batch) << "a place is filled once a batch";
        set.batch[send.offset + i] = send.batch;
        set.values[send.offset + i] = partials[j][i];
      }
    }
  }

  void read(int rank, int batch) {
    const int node = rank / grid_.local_ranks;
    for (const FinalRead& read : final_reads(grid_, rank % grid_.local_ranks)) {
      if (read.batch != batch) continue;
      const ReceiveSet& set = sets_[node * grid_.local_ranks + read.from][read.set];
      for (uint64_t i = 0; i < read.count; ++i) {
        ASSERT_EQ(set.batch[read.offset + i], batch);
        ASSERT_EQ(written_[rank][read.out + i]++, read.c) << "in the order of c";
        float& out = outputs_[rank][read.out + i];
        const float term = set.values[read.offset + i];
        out = read.c == 0 ? term : out + term;
      }
    }
  }

  const Job& job_;
  const ReduceGrid& grid_;
  std::vector<std::vector<ReceiveSet>> sets_;  // by rank
  std::vector<Vector> outputs_;
  std::vector<std::vector<int>> written_;  // how many sources each output element has
};

TEST(NodeReduce, EqualsTheDocumentedSumBitForBit) {
  std::mt19937 random(7);
  for (int nodes = 1; nodes <= 9; ++nodes) {
    for (int local_ranks = 1; local_ranks <= 8; ++local_ranks) {
      const Job job = random_job(nodes, local_ranks, random);
      Executor executor(job);
      ASSERT_NO_FATAL_FAILURE(executor.run()) << "M " << nodes << " L " << local_ranks;
      for (int rank = 0; rank < job.world(); ++rank) {
        const Vector expected = documented_sum(job, rank);
        ASSERT_TRUE(expected.empty() || std::memcmp(executor.output(rank).data(), expected.data(),
                                                    expected.size() * sizeof(float)) == 0)
            << "M " << nodes << " L " << local_ranks << " rank " << rank;
      }
    }
  }
}

TEST(NodeReduce, AnotherOrderGivesAnotherSum) {
  std::mt19937 random(7);
  const Job job = random_job(4, 2, random);
  Job turned = job;
  std::swap(turned.gradients[0], turned.gradients[5]);
  bool differs = false;
  for (int rank = 0; rank < job.world(); ++rank) {
    differs |= documented_sum(job, rank) != documented_sum(turned, rank);
  }
  EXPECT_TRUE(differs) << "the values of the test could not tell";
}

// Shapes of no consequence: one output of `out` elements.
ReduceGrid grid_of(int nodes, int local_ranks, uint64_t out) {
  const Gradient gradient{.rows = static_cast<uint64_t>(nodes * local_ranks), .row = out};
  return reduce_grid(reduce_layout({&gradient, 1}, nodes * local_ranks), nodes, local_ranks);
}

// For every M and L: in a batch the sources of a segment are on different GPUs, every place of a
// set is filled at most once, rails are aligned, and every element of the output has every source.
TEST(LatinSquare, EveryMAndL) {
  for (int nodes = 1; nodes <= 64; ++nodes) {
    for (int local_ranks = 1; local_ranks <= 8; ++local_ranks) {
      const ReduceGrid grid = grid_of(nodes, local_ranks, 1000);
      // (batch, segment, local rank) of what arrives at a node, and (batch, local rank, place).
      std::set<std::array<int, 3>> cells;
      for (int j = 0; j < local_ranks; ++j) {
        std::set<std::array<int, 2>> places;
        const std::vector<LevelTwoSend> sends = level_two_sends(grid, 0, j);
        ASSERT_EQ(sends.size(), static_cast<size_t>(nodes));
        std::set<int> destinations;
        for (const LevelTwoSend& send : sends) {
          destinations.insert(send.destination);
          ASSERT_TRUE(cells.insert({send.batch, send.segment, j}).second);
          ASSERT_TRUE(
              places.insert({send.batch, static_cast<int>(send.offset / grid.place)}).second);
          ASSERT_LE(send.offset + send.elements, grid.set_elements());
        }
        ASSERT_EQ(destinations.size(), static_cast<size_t>(nodes)) << "one send to each node";
      }
      ASSERT_EQ(cells.size(), static_cast<size_t>(nodes * local_ranks));
      // A read finds its source's segment where the source has sent it.
      for (int k = 0; k < local_ranks; ++k) {
        std::vector<int> sources(grid.out, 0);
        for (const FinalRead& read : final_reads(grid, k)) {
          const LevelTwoSend send =
              level_two_sends(grid, grid.source(0, read.c), read.from)[read.c];
          ASSERT_EQ(send.destination, 0);
          ASSERT_EQ(send.segment, read.segment);
          ASSERT_EQ(send.set, read.set);
          ASSERT_GE(read.offset, send.offset);
          ASSERT_LE(read.offset + read.count, send.offset + send.elements);
          for (uint64_t i = 0; i < read.count; ++i) ASSERT_EQ(sources[read.out + i]++, read.c);
        }
        ASSERT_EQ(sources, std::vector<int>(grid.out, nodes));
      }
    }
  }
}

// collectives.md, section 3: L = 4, D with A, B, C numbered 1, 2, 3: segment 0 of D on GPU 0, of A
// on 3, of B on 2, of C on 1.
TEST(LatinSquare, WorkedExample) {
  const ReduceGrid grid = grid_of(4, 4, 64);
  std::vector<int> gpus;
  for (const FinalRead& read : final_reads(grid, 0)) {
    if (read.segment == 0) gpus.push_back(read.from);
  }
  EXPECT_EQ(gpus, (std::vector<int>{0, 3, 2, 1}));
}

TEST(LatinSquare, MemoryDoesNotGrowWithTheNodes) {
  const ReduceGrid two = grid_of(2, 8, 100'000);
  for (int nodes : {4, 8, 16, 64}) {
    const ReduceGrid grid = grid_of(nodes, 8, 100'000);
    EXPECT_EQ(grid.place, two.place);
    EXPECT_EQ(grid.set_elements(), two.set_elements());
  }
  // About L times the output.
  EXPECT_LT(two.set_elements(), 8 * (100'000 + 8 * kSegmentUnit));
}

TEST(LatinSquare, ShortOutputsHaveEmptySegments) {
  const ReduceGrid grid = grid_of(3, 8, 5);
  uint64_t total = 0;
  for (int s = 0; s < 8; ++s) total += grid.length(s);
  EXPECT_EQ(total, 5u);
  EXPECT_EQ(final_reads(grid, 3).size(), 3u) << "one segment that is not empty, three sources";
}

TEST(ReduceGrid, BadArguments) {
  const Gradient gradient{.rows = 8, .row = 1};
  const ReduceLayout layout = reduce_layout({&gradient, 1}, 8);
  EXPECT_THROW(reduce_grid(layout, 3, 2), Error);
  EXPECT_THROW(reduce_grid(layout, 8, 0), Error);
  const Gradient huge{.rows = 8, .row = uint64_t{1} << 59};
  EXPECT_THROW(reduce_grid(reduce_layout({&huge, 1}, 8), 1, 8), Error);
}

}  // namespace
}  // namespace tide::layout
