// The plan as one page: tables, and the buffers drawn as inline SVG. Nothing is loaded from
// outside.
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "shim/cli/plan_report.h"

namespace tide::cli {
namespace {

using ragged::Buffer;
using ragged::Placed;

constexpr int64_t kDevices = 32;         // rows; more are left out, and said so
constexpr double kWidth = 960;           // of a device's row, in pixels
constexpr double kLeft = 64, kRow = 18;  // margin for the device number, height of a row
constexpr double kLeastBlock = 4;        // narrower blocks are not drawn apart
constexpr int64_t kMaxBlocks = 4096;     // of one piece, likewise

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// Colours of neighbours far apart: hues by the golden angle.
std::string colour(size_t tensor) {
  return "hsl(" + std::to_string(tensor * 137 % 360) + " 60% 70%)";
}

void draw_piece(const Buffer& buffer, const ragged::Owned& piece, double y, std::ostream& out) {
  const Placed& placed = buffer.tensors[piece.tensor];
  const double scale = kWidth / double(buffer.shard);
  const double x = kLeft + double(piece.offset) * scale;
  const double width = double(piece.end - piece.begin) * scale;
  out << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << kRow - 4
      << "\" fill=\"" << colour(piece.tensor) << "\"><title>" << escaped(placed.tensor.name) << " "
      << shape_text(placed.tensor.shape) << "\nelements " << grouped(piece.begin) << " to "
      << grouped(piece.end) << " of " << grouped(placed.numel) << "\nblock "
      << grouped(placed.block) << "</title></rect>\n";
  const double block_width = double(placed.block) * scale;
  if (block_width < kLeastBlock || (piece.end - piece.begin) / placed.block > kMaxBlocks) return;
  for (int64_t at = (piece.begin / placed.block + 1) * placed.block; at < piece.end;
       at += placed.block) {
    double line = x + double(at - piece.begin) * scale;
    out << "<path d=\"M" << line << " " << y << "v" << kRow - 4 << "\" stroke=\"#fff\"/>\n";
  }
}

void draw(const Buffer& buffer, std::ostream& out) {
  const int64_t shown = std::min(kDevices, buffer.devices);
  out << "<svg viewBox=\"0 0 " << kLeft + kWidth << " " << double(shown) * kRow
      << "\" width=\"100%\" role=\"img\">\n";
  for (int64_t row = 0; row < shown; ++row) {
    // The last row is the last device, where the padding at the end is.
    const int64_t device = row + 1 == shown ? buffer.devices - 1 : row;
    const double y = double(row) * kRow;
    out << "<text x=\"0\" y=\"" << y + kRow - 7 << "\" font-size=\"11\">" << device
        << "</text><rect class=\"pad\" x=\"" << kLeft << "\" y=\"" << y << "\" width=\"" << kWidth
        << "\" height=\"" << kRow - 4 << "\"><title>padding</title></rect>\n";
    for (const ragged::Owned& piece : owned(buffer, device)) draw_piece(buffer, piece, y, out);
  }
  out << "</svg>\n";
  if (shown < buffer.devices) {
    out << "<p>Devices " << shown - 1 << " to " << buffer.devices - 2 << " are not drawn.</p>\n";
  }
}

void write_buffer(const PlannedBuffer& planned, std::ostream& out) {
  const Buffer& buffer = planned.buffer;
  out << "<h2>" << escaped(buffer.name);
  if (planned.count > 1) out << " (" << planned.count << " times)";
  out << "</h2>\n<p>" << grouped(int64_t(buffer.tensors.size())) << " tensors, "
      << grouped(buffer.numel) << " elements of " << buffer.dtype
      << (buffer.requires_grad ? "" : ", frozen") << ", " << grouped(buffer.devices) << " devices. "
      << (buffer.proof.minimal ? "No smaller shard holds these tensors in this order (verified)."
                               : "Placement verified; whether a smaller shard exists was not "
                                 "searched to the end.")
      << "</p>\n<table><tr><th>system<th>elements per device<th>bytes per device<th>padding"
         "<th>cut blocks</tr>\n";
  for (const ComparedSystem& row : compare(planned)) {
    double bytes = double(row.shard) * double(ragged::element_bytes(buffer.dtype));
    out << "<tr><td>" << row.name << "<td>" << grouped(row.shard) << "<td>" << binary_size(bytes)
        << "<td>" << percent(row.padding_pct) << "<td>" << grouped(row.cut_blocks) << "</tr>\n";
  }
  out << "</table>\n";
  draw(buffer, out);
  out << "<details><summary>Tensors</summary><table><tr><th><th>name<th>shape<th>block<th>start"
         "<th>devices</tr>\n";
  for (size_t i = 0; i < buffer.tensors.size(); ++i) {
    const Placed& placed = buffer.tensors[i];
    out << "<tr><td style=\"background:" << colour(i) << "\"><td>" << escaped(placed.tensor.name)
        << "<td>" << shape_text(placed.tensor.shape) << "<td>" << grouped(placed.block) << "<td>"
        << grouped(placed.start) << "<td>" << devices_text(buffer, placed) << "</tr>\n";
  }
  out << "</table></details>\n";
}

}  // namespace

std::string plan_html(const PlanReport& report) {
  std::ostringstream out;
  out << "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>"
      << escaped(report.model)
      << "</title>\n<style>body{font:14px sans-serif;max-width:1100px;margin:2em auto}"
         "table{border-collapse:collapse}td,th{padding:2px 12px 2px 0;text-align:right}"
         "td:nth-child(-n+2){text-align:left}.pad{fill:#ddd}</style>\n<h1>"
      << escaped(report.model)
      << "</h1>\n<p>A row is one device; grey is padding; white lines part the blocks that no "
         "device border may cut. Point at a piece for its tensor.</p>\n";
  for (const PlannedBuffer& planned : report.buffers) write_buffer(planned, out);
  out << "</html>\n";
  return out.str();
}

}  // namespace tide::cli
