// Tensors as the planner sees them: element counts, dtypes, and the block a policy makes of a
// shape.
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "shim/layout/ragged_math.h"
#include "tide/ragged.h"

namespace tide::ragged {
namespace {

struct DtypeFacts {
  std::string_view name;
  std::string_view torch_name;  // without "torch."
  int64_t bytes;
};
constexpr std::array kDtypes = {
    DtypeFacts{"fp64", "float64", 8},
    DtypeFacts{"fp32", "float32", 4},
    DtypeFacts{"bf16", "bfloat16", 2},
    DtypeFacts{"fp16", "float16", 2},
    DtypeFacts{"fp8_e4m3", "float8_e4m3fn", 1},
    DtypeFacts{"fp8_e5m2", "float8_e5m2", 1},
    DtypeFacts{"i64", "int64", 8},
    DtypeFacts{"i32", "int32", 4},
    DtypeFacts{"i8", "int8", 1},
    DtypeFacts{"u8", "uint8", 1},
};

const DtypeFacts& dtype_facts(std::string_view name) {
  std::string_view bare = name.starts_with("torch.") ? name.substr(6) : name;
  for (const DtypeFacts& facts : kDtypes) {
    if (bare == facts.name || bare == facts.torch_name) return facts;
  }
  std::string known;
  for (const DtypeFacts& facts : kDtypes) {
    known += (known.empty() ? "" : ", ") + std::string(facts.name);
  }
  throw Error("unknown dtype '" + std::string(name) + "'", "use one of " + known);
}

[[noreturn]] void bad_policy(std::string_view text) {
  throw Error("'" + std::string(text) + "' is no block policy",
              "use elements:N, rows:N, dim0:N, tiles:RxC or whole, with numbers of at least 1");
}

int64_t parse_count(std::string_view number, std::string_view text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size() || value < 1) bad_policy(text);
  return value;
}

// prod(shape[first:])
int64_t product_from(const Tensor& tensor, size_t first) {
  int64_t product = 1;
  for (size_t d = first; d < tensor.shape.size(); ++d) {
    product = checked_mul(product, tensor.shape[d], "the element count of tensor " + tensor.name);
  }
  return product;
}

// a*b where a larger result than `limit` need not be told from `limit`
int64_t capped_mul(int64_t a, int64_t b, int64_t limit) {
  int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? limit : std::min(result, limit);
}

// Tiles restart in every trailing matrix. Rows of tiles line up over the matrices only when the
// tile height divides the matrix height; else one matrix is the least block that cuts no tile.
int64_t tile_block(const Tensor& tensor, const BlockPolicy& policy, int64_t elements) {
  size_t n = tensor.shape.size();
  int64_t columns = tensor.shape[n - 1], rows = tensor.shape[n - 2];
  bool one_matrix = elements == rows * columns;
  if (one_matrix || rows % policy.size == 0) return capped_mul(policy.size, columns, elements);
  return rows * columns;
}

}  // namespace

BlockPolicy parse_policy(std::string_view text) {
  using Kind = BlockPolicy::Kind;
  if (text == "whole") return {Kind::kWhole, 1, 1};
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) bad_policy(text);
  std::string_view kind = text.substr(0, colon), value = text.substr(colon + 1);
  if (kind == "elements") return {Kind::kElements, parse_count(value, text), 1};
  if (kind == "rows") return {Kind::kRows, parse_count(value, text), 1};
  if (kind == "dim0") return {Kind::kDim0, parse_count(value, text), 1};
  size_t x = value.find('x');
  if (kind != "tiles" || x == std::string_view::npos) bad_policy(text);
  return {Kind::kTiles, parse_count(value.substr(0, x), text),
          parse_count(value.substr(x + 1), text)};
}

std::string to_string(const BlockPolicy& policy) {
  std::string size = std::to_string(policy.size);
  switch (policy.kind) {
    case BlockPolicy::Kind::kElements:
      return "elements:" + size;
    case BlockPolicy::Kind::kRows:
      return "rows:" + size;
    case BlockPolicy::Kind::kDim0:
      return "dim0:" + size;
    case BlockPolicy::Kind::kTiles:
      return "tiles:" + size + "x" + std::to_string(policy.columns);
    case BlockPolicy::Kind::kWhole:
      break;
  }
  return "whole";
}

std::string canonical_dtype(std::string_view name) { return std::string(dtype_facts(name).name); }

int64_t element_bytes(std::string_view dtype) { return dtype_facts(dtype).bytes; }

bool is_expert(std::string_view name) {
  return name.find("experts") != std::string_view::npos &&
         name.find("shared") == std::string_view::npos;
}

int64_t numel(const Tensor& tensor) {
  for (int64_t extent : tensor.shape) {
    if (extent < 1) {
      throw Error("tensor " + tensor.name + " has a dimension of " + std::to_string(extent),
                  "every dimension must be at least 1; leave empty tensors out");
    }
  }
  return product_from(tensor, 0);
}

int64_t block_elements(const Tensor& tensor) {
  const BlockPolicy policy = tensor.block.value_or(BlockPolicy{});
  int64_t elements = numel(tensor);
  if (policy.kind == BlockPolicy::Kind::kWhole) return elements;
  if (policy.kind == BlockPolicy::Kind::kElements) return std::min(policy.size, elements);
  if (tensor.shape.size() < 2) return 1;
  switch (policy.kind) {
    case BlockPolicy::Kind::kDim0:
      return capped_mul(policy.size, product_from(tensor, 1), elements);
    case BlockPolicy::Kind::kTiles:
      return tile_block(tensor, policy, elements);
    default:
      return capped_mul(policy.size, tensor.shape.back(), elements);
  }
}

}  // namespace tide::ragged
