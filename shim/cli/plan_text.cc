// The plan for a terminal: a table per buffer and a picture of it.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <iomanip>
#include <map>
#include <sstream>

#include "shim/cli/plan_report.h"

namespace tide::cli {
namespace {

using ragged::Buffer;
using ragged::Placed;

constexpr int64_t kCells = 64;       // of a device's line
constexpr int64_t kDevices = 8;      // lines; the last device is always among them
constexpr size_t kLegendLines = 26;  // one per letter

char letter(size_t tensor) { return char('a' + tensor % 26); }

// The cell shows the tensor that fills most of it; blocks at least a cell wide alternate between
// small and capital letters.
char cell(const Buffer& buffer, int64_t begin, int64_t end) {
  int64_t most = 0;
  char shown = '.';
  int64_t used = 0;
  auto first = std::partition_point(
      buffer.tensors.begin(), buffer.tensors.end(),
      [&](const Placed& placed) { return placed.start + placed.numel <= begin; });
  for (auto it = first; it != buffer.tensors.end() && it->start < end; ++it) {
    int64_t from = std::max(begin, it->start), to = std::min(end, it->start + it->numel);
    used += to - from;
    if (to - from <= most) continue;
    most = to - from;
    shown = letter(size_t(it - buffer.tensors.begin()));
    int64_t block = (from + (to - from) / 2 - it->start) / it->block;
    if (it->block >= end - begin && block % 2 == 1) shown = char(std::toupper(shown));
  }
  return end - begin - used > most ? '.' : shown;
}

void draw(const Buffer& buffer, std::ostream& out) {
  for (int64_t device = 0; device < buffer.devices; ++device) {
    if (buffer.devices > kDevices && device == kDevices - 2) {
      out << "       ...\n";
      device = buffer.devices - 1;
    }
    out << std::setw(7) << device << " |";
    const int64_t cells = std::min(kCells, buffer.shard);
    for (int64_t c = 0; c < cells; ++c) {
      // Wide enough for shard * cells.
      auto edge = [&](int64_t i) {
        return device * buffer.shard + int64_t(__int128(buffer.shard) * i / cells);
      };
      out << cell(buffer, edge(c), edge(c + 1));
    }
    out << "|\n";
  }
  size_t width = 0;
  const size_t lines = std::min(kLegendLines, buffer.tensors.size());
  for (size_t i = 0; i < lines; ++i) width = std::max(width, buffer.tensors[i].tensor.name.size());
  for (size_t i = 0; i < lines; ++i) {
    const Placed& placed = buffer.tensors[i];
    out << "  " << letter(i) << "  " << std::left << std::setw(int(width)) << placed.tensor.name
        << std::right << "  " << shape_text(placed.tensor.shape) << ", block "
        << grouped(placed.block) << ", starts at " << grouped(placed.start) << ", "
        << devices_text(buffer, placed) << "\n";
  }
  if (lines < buffer.tensors.size()) {
    out << "  and " << buffer.tensors.size() - lines << " more, with the letters again\n";
  }
  out << "  .  padding; A and a: neighbouring blocks of a tensor; a line: one device\n";
}

}  // namespace

std::string grouped(int64_t number) {
  const std::string digits = std::to_string(number);
  const size_t sign = number < 0;
  std::string result;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) result += ',';
    result += digits[i];
  }
  return result;
}

std::string binary_size(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

std::string percent(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %%", value);
  return text;
}

std::string shape_text(const ragged::Shape& shape) {
  std::string text = "[";
  for (int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

std::string devices_text(const Buffer& buffer, const Placed& placed) {
  int64_t first = placed.start / buffer.shard;
  int64_t last = (placed.start + placed.numel - 1) / buffer.shard;
  if (first == last) return "device " + std::to_string(first);
  return "devices " + std::to_string(first) + "-" + std::to_string(last);
}

std::vector<ComparedSystem> compare(const PlannedBuffer& planned) {
  const Buffer& buffer = planned.buffer;
  std::vector<ComparedSystem> rows{{"tide", buffer.shard, buffer.padding_pct(), 0}};
  for (const ragged::Baseline& baseline : planned.baselines) {
    double padded = double(baseline.shard) * double(buffer.devices);
    rows.push_back({baseline.name, baseline.shard, 100 * (padded / double(buffer.numel) - 1),
                    baseline.cut_blocks});
  }
  return rows;
}

std::string plan_text(const PlanReport& report) {
  std::ostringstream out;
  out << report.model << "\n";
  for (const PlannedBuffer& planned : report.buffers) {
    const Buffer& buffer = planned.buffer;
    out << "\n" << buffer.name;
    if (planned.count > 1) out << " (" << planned.count << " times)";
    out << ": " << grouped(int64_t(buffer.tensors.size()))
        << (buffer.tensors.size() == 1 ? " tensor" : " tensors") << ", " << grouped(buffer.numel)
        << " elements of " << buffer.dtype << (buffer.requires_grad ? "" : ", frozen") << ", "
        << grouped(buffer.devices) << (buffer.devices == 1 ? " device" : " devices") << "\n";
    out << "  system     elements/device   bytes/device     padding   cut blocks\n";
    for (const ComparedSystem& row : compare(planned)) {
      double bytes = double(row.shard) * double(ragged::element_bytes(buffer.dtype));
      out << "  " << std::left << std::setw(9) << row.name << std::right << std::setw(17)
          << grouped(row.shard) << std::setw(15) << binary_size(bytes) << std::setw(12)
          << percent(row.padding_pct) << std::setw(13) << grouped(row.cut_blocks) << "\n";
    }
    out << (buffer.proof.minimal
                ? "  no smaller shard holds these tensors in this order (verified)\n"
                : "  placement verified; whether a smaller shard exists was not searched to the "
                  "end\n");
    draw(buffer, out);
  }
  return out.str();
}

}  // namespace tide::cli
