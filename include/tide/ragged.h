// The ragged layout planner: where every tensor of an FSDP group lies in the gathered buffer, so
// that no device border cuts a block of rows and every device owns the same number of elements.
//
// All sizes, starts and ranges are ELEMENTS unless a name ends in _bytes; all ranges are
// half-open. Functions here are pure, and throw tide::Error that names the tensor on bad input
// and on 64-bit overflow. Problem and method: arXiv 2602.22437 (veScale-FSDP), doc/planner.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tide::ragged {

using Shape = std::vector<int64_t>;

// What may not be cut. A block is always a contiguous piece of the flat tensor, counted from the
// tensor's start; the last one may be short. One-dimensional tensors have blocks of 1 element
// under kRows, kDim0 and kTiles.
struct BlockPolicy {
  enum class Kind {
    kElements,  // `size` elements
    kRows,      // `size` rows, a row being the LAST dimension
    kDim0,      // `size` slices of dimension 0: prod(shape[1:]) each
    kTiles,     // tiles of `size` x `columns` of every trailing matrix, for block-wise quantization
    kWhole,     // the whole tensor
  };
  Kind kind = Kind::kRows;
  int64_t size = 1;
  int64_t columns = 1;  // kTiles only; whole rows hold every column, so it does not move a border
  bool operator==(const BlockPolicy&) const = default;
};

// "elements:N", "rows:N", "dim0:N", "tiles:RxC" or "whole".
BlockPolicy parse_policy(std::string_view text);
std::string to_string(const BlockPolicy& policy);

struct Tensor {
  std::string name;
  Shape shape;  // every dimension >= 1; {} is a scalar
  std::string dtype = "bf16";
  bool requires_grad = true;
  std::optional<BlockPolicy> block = {};  // absent: one row
};

// Tensors that are gathered together, in registration order; the model has `count` of them.
struct Group {
  std::string name;
  int64_t count = 1;
  std::vector<Tensor> tensors;
};

// Elements of the tensor, and of one of its blocks.
int64_t numel(const Tensor& tensor);
int64_t block_elements(const Tensor& tensor);

// Canonical name ("float32" -> "fp32") and bytes of a dtype in torch's or our spelling.
std::string canonical_dtype(std::string_view name);
int64_t element_bytes(std::string_view dtype);

// True for routed experts: "experts" in the name, "shared" not.
bool is_expert(std::string_view name);

enum class Order {
  kRegistered,  // the caller's: what people expect when they debug a buffer
  kBlock,       // largest block first
  kShape,       // by row length, then by shape
  kBest,        // the least shard of the three; the caller's on a tie
};

enum class SubBuffers {
  kOff,
  kOn,    // one buffer, and so one collective, per row length
  kAuto,  // on where the model of `Cost` says that it takes less time
};

// Time of one collective: latency + bytes received per device / bandwidth.
struct Cost {
  double latency_s = 30e-6;
  double bytes_per_s = 50e9;  // one 400 Gb/s rail
};

constexpr int64_t kMaxDevices = 1 << 20;

struct Options {
  int64_t devices = 0;          // 1 to kMaxDevices
  int64_t unit = 0;             // the shard is a multiple of it; 0 = as many as fill 16 bytes
  int64_t alignment_bytes = 0;  // of every tensor's start; 0 = none; 16 for cuBLAS and TMA
  Order order = Order::kRegistered;
  SubBuffers sub_buffers = SubBuffers::kOff;
  Cost cost;
  // How many tensor placements the exact search may try before it keeps what it has.
  int64_t exact_budget = 1'000'000;
};

struct Placed {
  int64_t index = 0;  // in the caller's list of tensors
  Tensor tensor;
  int64_t numel = 0;
  int64_t block = 0;  // as planned: the policy's, raised to a multiple of the alignment
  int64_t start = 0;  // in the gathered buffer
};

// Why no smaller shard exists for this order: a smaller one would be at least `lower_bound` (the
// elements shared out evenly, rounded up to the unit) and a multiple of `step` (the unit, and the
// block of every tensor so long that it spans two borders), and none of those can hold the tensors.
struct Proof {
  int64_t lower_bound = 0;
  int64_t step = 0;
  bool minimal = false;  // false: the search stopped at its budget; the shard is within 2x
};

// One gathered buffer: `devices` shards of `shard` elements. Tensors are in buffer order.
struct Buffer {
  std::string name;  // the group's; "/fp32", "/frozen", "/row8192" tell several of one group apart
  std::string dtype;
  bool requires_grad = true;
  int64_t devices = 0;
  int64_t unit = 1;
  int64_t alignment = 1;
  int64_t shard = 0;
  int64_t numel = 0;  // without padding
  std::vector<Placed> tensors;
  Proof proof;

  int64_t padding() const { return shard * devices - numel; }
  double padding_pct() const { return 100.0 * double(padding()) / double(numel); }
};

// Plans one group: a buffer per dtype and requires_grad, and per row length if so asked.
std::vector<Buffer> plan_group(const Group& group, const Options& options);

// Verifies a plan and its proof from the definitions, sharing no code with the planner. Returns
// the first rule that is broken in words, or an empty string.
std::string check(const Buffer& buffer);

// Distinct blocks of a tensor at `start` that borders at multiples of `shard` cut.
int64_t cut_blocks(int64_t start, int64_t numel, int64_t block, int64_t shard);

// ---- What a device holds, and how it is written down -------------------------------------------

struct Owned {
  size_t tensor = 0;  // in Buffer::tensors
  int64_t begin = 0;  // flat range of the tensor
  int64_t end = 0;
  int64_t offset = 0;  // of `begin` in the device's shard
};
std::vector<Owned> owned(const Buffer& buffer, int64_t device);

// Placement of one tensor as veScale's RaggedShard writes it: the first `dims` dimensions are
// flattened and shared out in proportion to local_units (one per device, zeros allowed, the
// tensor divides by their sum). dims = 0: the whole tensor is on one device.
struct RaggedShard {
  int64_t dims = 0;
  std::vector<int64_t> local_units;
};
RaggedShard ragged_shard(const Buffer& buffer, size_t tensor);

// A tensor that another mesh dimension of `mesh_size` ranks already splits along `dim`: its local
// shape, and the block that lets local ranges stay boxes of the global tensor (for dim > 0 the
// LCM with the local stride of dim - 1; Shard(0) leaves ranges contiguous and asks for nothing).
struct MeshLocal {
  Tensor tensor;
  int64_t block = 0;
};
MeshLocal mesh_local(const Tensor& tensor, size_t dim, int64_t mesh_size);

// An n-dimensional box, as checkpoints store them.
struct Box {
  Shape offset;
  Shape size;
  bool operator==(const Box&) const = default;
};
// The flat range [begin, end) of a tensor of `shape` as at most 2n-1 disjoint boxes, in order.
std::vector<Box> boxes(const Shape& shape, int64_t begin, int64_t end);
// The same box in the global tensor, for rank `coordinate` of a mesh dimension that splits `dim`
// into pieces of `local_extent`.
Box to_global(Box box, size_t dim, int64_t coordinate, int64_t local_extent);

// One message of the all-to-all that takes a group from one plan to another.
struct Move {
  int64_t index = 0;  // tensor, in the caller's list
  int64_t begin = 0;  // flat range of the tensor
  int64_t end = 0;
  size_t from_buffer = 0;
  int64_t from_device = 0;
  int64_t from_offset = 0;  // in the shard
  size_t to_buffer = 0;
  int64_t to_device = 0;
  int64_t to_offset = 0;
  bool operator==(const Move&) const = default;
};
// By tensor, then by range. Both plans must hold the same tensors (index and element count).
std::vector<Move> redistribute(const std::vector<Buffer>& from, const std::vector<Buffer>& to);

}  // namespace tide::ragged
