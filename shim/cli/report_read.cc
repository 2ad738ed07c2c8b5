// Reads one rank's report strictly: what is missing or of another type is an error, never a zero.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "shim/cli/report.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

using nlohmann::json;

constexpr uint64_t kMostRanks = 1'000'000;  // above it a number is a slip

class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  // A value of the map `at`, which is called `path` in messages ("" at the top).
  const json& field(const json& at, const std::string& path, const char* key) const {
    if (!at.is_object()) {
      fail((path.empty() ? "the report" : "'" + path.substr(0, path.size() - 1) + "'") +
           " is not a map");
    }
    const auto found = at.find(key);
    if (found == at.end()) fail("there is no '" + path + key + "'");
    return *found;
  }
  std::string text(const json& at, const std::string& path, const char* key) const {
    const json& value = field(at, path, key);
    if (!value.is_string()) fail("'" + path + key + "' is " + value.dump() + ", not a text");
    return value.get<std::string>();
  }
  bool flag(const json& at, const std::string& path, const char* key) const {
    const json& value = field(at, path, key);
    if (!value.is_boolean())
      fail("'" + path + key + "' is " + value.dump() + ", not true or false");
    return value.get<bool>();
  }
  int64_t count(const json& at, const std::string& path, const char* key,
                uint64_t most = INT64_MAX) const {
    const json& value = field(at, path, key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most) {
      fail("'" + path + key + "' is " + value.dump() + ", not a count");
    }
    return value.get<int64_t>();
  }
  double number(const json& at, const std::string& path, const char* key) const {
    const json& value = field(at, path, key);
    if (!value.is_number() || value.get<double>() < 0) {
      fail("'" + path + key + "' is " + value.dump() + ", not a number from 0");
    }
    return value.get<double>();
  }

  Collectives collectives(const json& at, const std::string& path) const {
    return {.all_gathers = count(at, path, "all_gathers"),
            .all_gathers_stock = count(at, path, "all_gathers_stock"),
            .reduce_scatters = count(at, path, "reduce_scatters"),
            .reduce_scatters_stock = count(at, path, "reduce_scatters_stock"),
            .copy_bytes = double(count(at, path, "copy_bytes")),
            .copy_bytes_avoided = double(count(at, path, "copy_bytes_avoided"))};
  }

  // Older files name the tier of one shape only.
  std::vector<Way> ways(const json& at, const std::string& path, const char* key,
                        const Way& only) const {
    if (!at.contains(key)) return {only};
    const json& list = at[key];
    if (!list.is_array() || list.empty()) fail("'" + path + key + "' is not a list of tiers");
    std::vector<Way> result;
    for (const json& way : list) {
      const std::string of = path + key + "[" + std::to_string(result.size()) + "].";
      result.push_back({.tier = text(way, of, "tier"),
                        .reason = text(way, of, "reason"),
                        .shapes = count(way, of, "shapes"),
                        .calls = count(way, of, "calls")});
    }
    return result;
  }

  GroupReport group(const json& at, const std::string& path) const {
    GroupReport result = group_head(at, path);
    result.gathers = ways(at, path, "all_gather_tiers",
                          {.tier = result.tier,
                           .reason = result.reason,
                           .shapes = 1,
                           .calls = result.counters.all_gathers});
    result.reductions = ways(at, path, "reduce_scatter_tiers",
                             {.tier = result.reduce_tier,
                              .reason = result.reduce_reason,
                              .shapes = 1,
                              .calls = result.counters.reduce_scatters});
    return result;
  }

  GroupReport group_head(const json& at, const std::string& path) const {
    return {.index = count(at, path, "index"),
            .name = text(at, path, "name"),
            .parameters = count(at, path, "parameters"),
            .bytes = count(at, path, "bytes"),
            .tier = text(at, path, "tier"),
            .reason = text(at, path, "reason"),
            .reduce_tier = text(at, path, "reduce_scatter_tier"),
            .reduce_reason = text(at, path, "reduce_scatter_reason"),
            .gathers = {},
            .reductions = {},
            .counters = collectives(at, path)};
  }

  std::optional<ObservedReport> observed(const json& at) const {
    const std::string path = "observed.";
    if (count(at, path, "steps") == 0) return {};
    ObservedReport result;
    result.step_seconds = number(at, path, "step_seconds");
    if (result.step_seconds == 0) fail("'observed.step_seconds' is 0");
    result.recoverable_seconds = number(at, path, "recoverable_seconds_per_step");
    for (size_t i = 0; i < kPhases; ++i) {
      const json& phase = field(at, path, kPhaseNames[i]);
      const std::string of = path + kPhaseNames[i] + ".";
      result.phases[i] = {.bytes = number(phase, of, "bytes_per_step"),
                          .seconds = number(phase, of, "seconds_per_step")};
    }
    return result;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(file_ + ": " + what,
                "give files that TIDE_REPORT wrote, of a Tide like this one (" TIDE_VERSION ")");
  }

 private:
  const std::string& file_;
};

std::string read_file(const std::string& file) {
  std::string why;
  std::ifstream in(file, std::ios::binary);
  if (in.is_open()) {
    try {
      return std::string(std::istreambuf_iterator<char>(in), {});
    } catch (const std::ios_base::failure& error) {  // a folder, or a disk that fails
      why = error.code().message();
    }
  } else {
    why = std::strerror(errno);
  }
  throw Error("cannot read " + file + ": " + why,
              "check the path that TIDE_REPORT named; a rank that was killed in its first minutes "
              "wrote none");
}

[[noreturn]] void refuse(const std::string& file, const json::exception& error) {
  std::string why = error.what();
  why.erase(0, why.find("] ") + 2);  // the library's name and number of the error
  throw Error(file + ": not JSON: " + why, "give files that TIDE_REPORT wrote");
}

json parse(const std::string& file) {
  const std::string text = read_file(file);
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    // The library counts bytes from 1; what remains of a file that was cut is whole up to its end.
    if (error.byte > text.find_last_not_of(" \n\r\t") + 1) {
      throw Error(
          file + ": the report ends in the middle, after " + std::to_string(text.size()) + " bytes",
          "the rank was killed while it wrote, or the disk is full; leave the file out");
    }
    refuse(file, error);
  } catch (const json::exception& error) {  // a number that no double holds
    refuse(file, error);
  }
}

}  // namespace

RankReport read_rank_report(const std::string& file) {
  const json top = parse(file);
  const Reader reader(file);
  RankReport report;
  report.file = file;
  report.version = reader.text(top, "", "version");
  report.torch = reader.text(top, "", "torch");
  report.mode = reader.text(top, "", "mode");
  report.profile = reader.text(top, "", "profile");
  report.rank = reader.count(top, "", "rank", kMostRanks);
  report.world_size = reader.count(top, "", "world_size", kMostRanks);
  report.nodes = reader.count(top, "", "nodes", kMostRanks);
  report.local_ranks = reader.count(top, "", "local_ranks", kMostRanks);
  if (top.contains("written")) report.written = reader.count(top, "", "written");
  if (top.contains("ended")) report.ended = reader.flag(top, "", "ended");
  const json& groups = reader.field(top, "", "groups");
  if (!groups.is_array()) reader.fail("'groups' is not a list");
  for (const json& group : groups) {
    const std::string path = "groups[" + std::to_string(report.groups.size()) + "].";
    report.groups.push_back(reader.group(group, path));
  }
  const json& totals = reader.field(top, "", "totals");
  report.totals = reader.collectives(totals, "totals.");
  report.slot_bytes = reader.count(totals, "totals.", "slot_bytes");
  report.bytes_pushed = reader.count(totals, "totals.", "bytes_pushed");
  if (top.contains("observed")) report.observed = reader.observed(top["observed"]);
  return report;
}

}  // namespace tide::cli
