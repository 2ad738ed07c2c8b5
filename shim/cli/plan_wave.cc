// `tide plan wave`: how many CTAs communication may take beside the GEMMs of a model. The
// arithmetic is the tuner's own (plugin/tuner/wave.h), so the tuner will do what is printed here.
#include <algorithm>
#include <charconv>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "plugin/profile/find.h"
#include "plugin/tuner/wave.h"
#include "shim/cli/commands.h"
#include "shim/cli/plan_report.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

using nlohmann::ordered_json;
using profile::Wave;
using profile::WaveGemm;

struct WaveOptions {
  std::string profile;
  std::vector<std::string> gemms;
  std::optional<int> sms, cluster, ctas_per_sm, leave;
  bool json = false;
};

[[noreturn]] void bad_gemm(const std::string& text, const std::string& why) {
  throw Error("--gemm " + text + ": " + why,
              "write [NAME=]MxNxK[:TMxTN], such as up=256x8192x8192:128x128");
}

// "8192x128" as numbers, as many as asked.
std::vector<int64_t> numbers(const std::string& text, size_t count, int64_t most,
                             const std::string& all) {
  std::vector<int64_t> result;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (result.size() < count) {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || value > most) {
      bad_gemm(all, "'" + text + "' is not " + std::to_string(count) + " numbers from 1 to " +
                        std::to_string(most) + " with an x between");
    }
    result.push_back(value);
    at = next;
    if (result.size() < count && (at == end || *at++ != 'x')) {
      bad_gemm(all, "'" + text + "' has fewer than " + std::to_string(count) + " numbers");
    }
  }
  if (at != end) bad_gemm(all, "'" + std::string(at, end) + "' is left over");
  return result;
}

// The limits are those of a profile (plugin/profile/keys.cc).
WaveGemm parse_gemm(const std::string& all) {
  constexpr int64_t kMostExtent = int64_t{1} << 30, kMostTile = 4096;
  WaveGemm gemm;
  std::string shape = all;
  if (const size_t equals = shape.find('='); equals != std::string::npos) {
    gemm.name = shape.substr(0, equals);
    shape.erase(0, equals + 1);
  }
  if (const size_t colon = shape.find(':'); colon != std::string::npos) {
    const auto tile = numbers(shape.substr(colon + 1), 2, kMostTile, all);
    gemm.tile_m = tile[0];
    gemm.tile_n = tile[1];
    shape.erase(colon);
  }
  const auto extents = numbers(shape, 3, kMostExtent, all);
  gemm.m = extents[0];
  gemm.n = extents[1];
  gemm.k = extents[2];
  if (gemm.name.empty()) gemm.name = shape;
  return gemm;
}

Wave read_wave(const WaveOptions& options) {
  Wave wave;
  if (!options.profile.empty()) {
    const auto lookup = profile::environment();
    const auto file = profile::find_profile(options.profile, profile::profile_directory(lookup));
    if (!file.tuner.wave) {
      throw Error("profile " + file.path + " has no tuner.wave", "give --gemm and --sms instead");
    }
    wave = *file.tuner.wave;
  }
  for (const std::string& text : options.gemms) wave.gemms.push_back(parse_gemm(text));
  wave.sms = options.sms.value_or(wave.sms);
  wave.cluster = options.cluster.value_or(wave.cluster);
  wave.ctas_per_sm = options.ctas_per_sm.value_or(wave.ctas_per_sm);
  wave.leave = options.leave.value_or(wave.leave);
  if (wave.sms == 0) {
    throw Error("profile " + options.profile + " leaves tuner.wave.sms to the device",
                "say with --sms how many multiprocessors the GPU has (H100 and H200 SXM: 132)");
  }
  return wave;
}

// Waves beside 0, 1, ... CTAs, as far as NCCL can go and a place is left.
std::vector<int64_t> waves_by_ctas(const Wave& wave, int64_t clusters) {
  std::vector<int64_t> result;
  for (int ctas = 0; ctas <= tuner::kMostCtas; ++ctas) {
    const int64_t places = tuner::cluster_places(wave, ctas);
    if (places == 0) break;
    result.push_back(tuner::waves(clusters, places));
  }
  return result;
}

// "1 (0-4), 2 (5-64)": the waves, and in brackets the CTAs; of many steps the first and the last.
std::string steps_text(const std::vector<int64_t>& waves) {
  constexpr size_t kShown = 4;
  std::vector<std::string> steps;
  for (size_t from = 0; from < waves.size();) {
    size_t to = from;
    while (to + 1 < waves.size() && waves[to + 1] == waves[from]) ++to;
    const std::string last = to > from ? "-" + std::to_string(to) : "";
    steps.push_back(std::to_string(waves[from]) + " (" + std::to_string(from) + last + ")");
    from = to + 1;
  }
  std::string text = steps[0];
  for (size_t i = 1; i < std::min(kShown, steps.size()); ++i) text += ", " + steps[i];
  if (steps.size() > kShown) text += (steps.size() > kShown + 1 ? ", ... " : ", ") + steps.back();
  return text;
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

// The part of a profile that makes the tuner obey.
std::string snippet(const Wave& wave) {
  std::ostringstream out;
  out << "tuner:\n  rules:\n    - collectives: [all_gather, reduce_scatter]\n"
      << "      max_ctas: wave\n  wave:\n    sms: " << wave.sms << "\n    cluster: " << wave.cluster
      << "\n    ctas_per_sm: " << wave.ctas_per_sm << "\n    leave: " << wave.leave
      << "\n    gemms:\n";
  for (const WaveGemm& gemm : wave.gemms) {
    out << "      - {name: " << quoted(gemm.name) << ", m: " << gemm.m << ", n: " << gemm.n
        << ", k: " << gemm.k << ", tile_m: " << gemm.tile_m << ", tile_n: " << gemm.tile_n << "}\n";
  }
  return out.str();
}

bool is_lost(const tuner::WaveAnswer& answer, size_t gemm) {
  return std::count(answer.lost.begin(), answer.lost.end(), gemm) > 0;
}

std::string wave_json(const Wave& wave, const tuner::WaveAnswer& answer) {
  ordered_json gemms = ordered_json::array();
  for (size_t i = 0; i < wave.gemms.size(); ++i) {
    const WaveGemm& gemm = wave.gemms[i];
    gemms.push_back({{"name", gemm.name},
                     {"m", gemm.m},
                     {"n", gemm.n},
                     {"k", gemm.k},
                     {"tile_m", gemm.tile_m},
                     {"tile_n", gemm.tile_n},
                     {"tiles", answer.gemms[i].tiles},
                     {"clusters", answer.gemms[i].clusters},
                     {"waves_alone", answer.gemms[i].alone},
                     {"waves", answer.gemms[i].beside},
                     {"waves_by_ctas", waves_by_ctas(wave, answer.gemms[i].clusters)},
                     {"fits", !is_lost(answer, i)}});
  }
  const ordered_json object{{"sms", wave.sms},
                            {"cluster", wave.cluster},
                            {"ctas_per_sm", wave.ctas_per_sm},
                            {"leave", wave.leave},
                            {"gemms", gemms},
                            {"max_ctas", answer.ctas},
                            {"max_ctas_scattered", answer.scattered},
                            {"limit_needed", answer.ctas < tuner::kMostCtas},
                            {"profile", snippet(wave)}};
  return object.dump(2) + "\n";
}

void write_answer(const Wave& wave, const tuner::WaveAnswer& answer, std::ostream& out) {
  for (const size_t i : answer.lost) {
    out << "No count fits " << wave.gemms[i].name << ": a single CTA gives it another wave. It is "
        << "only kept from losing one more.\n";
  }
  if (answer.ctas == tuner::kMostCtas) {
    out << "Answer: no limit; NCCL has at most " << tuner::kMostCtas << " CTAs, and "
        << (answer.lost.empty() ? "they cost no wave.\n" : "they cost no other wave.\n");
  } else {
    out << "Answer: at most " << answer.ctas << (answer.ctas == 1 ? " CTA" : " CTAs")
        << (answer.lost.empty() ? "; every GEMM keeps the waves it has alone.\n" : ".\n");
  }
  if (wave.cluster > 1 && answer.scattered < answer.ctas) {
    out << "A cluster runs inside one GPC. If every CTA of NCCL lands where another cluster would "
           "have run,\nthe answer is "
        << answer.scattered << ".\n";
  }
}

std::string wave_text(const Wave& wave, const tuner::WaveAnswer& answer) {
  std::ostringstream out;
  out << wave.sms << " multiprocessors";
  if (wave.leave > 0) out << ", " << wave.leave << " of them left free";
  out << "; " << wave.ctas_per_sm
      << (wave.ctas_per_sm == 1 ? " CTA per multiprocessor" : " CTAs per multiprocessor");
  if (wave.cluster > 1) out << ", in clusters of " << wave.cluster;
  size_t width = 4;
  for (const WaveGemm& gemm : wave.gemms) width = std::max(width, gemm.name.size());
  out << "\n\n"
      << std::left << std::setw(int(width)) << "GEMM" << std::right << std::setw(20) << "m x n x k"
      << std::setw(11) << "tile" << std::setw(10) << "tiles" << std::setw(10) << "clusters"
      << "  waves (CTAs of communication)\n";
  for (size_t i = 0; i < wave.gemms.size(); ++i) {
    const WaveGemm& gemm = wave.gemms[i];
    const std::string shape =
        std::to_string(gemm.m) + "x" + std::to_string(gemm.n) + "x" + std::to_string(gemm.k);
    const std::string tile = std::to_string(gemm.tile_m) + "x" + std::to_string(gemm.tile_n);
    out << std::left << std::setw(int(width)) << gemm.name << std::right << std::setw(20) << shape
        << std::setw(11) << tile << std::setw(10) << grouped(answer.gemms[i].tiles) << std::setw(10)
        << grouped(answer.gemms[i].clusters) << "  "
        << steps_text(waves_by_ctas(wave, answer.gemms[i].clusters)) << "\n";
  }
  out << "\n";
  write_answer(wave, answer, out);
  out << "\nIn a profile:\n\n" << snippet(wave);
  return out.str();
}

void run_wave(const WaveOptions& options) {
  const Wave wave = read_wave(options);
  const tuner::WaveAnswer answer = tuner::solve_wave(wave);
  std::cout << (options.json ? wave_json(wave, answer) : wave_text(wave, answer));
  if (answer.lost.size() == wave.gemms.size()) throw Exit{kNothing};
}

}  // namespace

void add_plan_wave(CLI::App& plan) {
  auto options = std::make_shared<WaveOptions>();
  CLI::App* wave = plan.add_subcommand(
      "wave", "How many CTAs communication may take before a GEMM beside it needs another wave");
  CLI::Option* profile =
      wave->add_option("--profile", options->profile,
                       "name or file of a profile with tuner.wave; the options below override it");
  CLI::Option* gemm =
      wave->add_option("--gemm", options->gemms,
                       "[NAME=]MxNxK[:TMxTN], a GEMM and the tile of a CTA (128x128); repeatable")
          ->allow_extra_args(false);
  CLI::Option* sms = wave->add_option("--sms", options->sms, "streaming multiprocessors")
                         ->check(CLI::Range(1, 1024));
  wave->add_option("--cluster", options->cluster, "CTAs of a thread block cluster of the GEMMs (1)")
      ->check(CLI::Range(1, 16));
  wave->add_option("--ctas-per-sm", options->ctas_per_sm,
                   "CTAs of the GEMMs that a multiprocessor holds at a time (1)")
      ->check(CLI::Range(1, 32));
  wave->add_option("--leave", options->leave,
                   "multiprocessors to leave free besides, for other kernels (0)")
      ->check(CLI::Range(0, 1023));
  wave->add_flag("--json", options->json, "machine-readable, with the waves at every count");
  wave->callback([=] {
    if (profile->count() == 0 && gemm->count() == 0)
      throw CLI::RequiredError("--profile or --gemm");
    if (profile->count() == 0 && sms->count() == 0) throw CLI::RequiredError("--sms");
    run_wave(*options);
  });
}

}  // namespace tide::cli
