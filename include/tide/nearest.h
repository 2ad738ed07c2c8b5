// The candidate that a misspelt word most likely meant.
#pragma once

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace tide {

// Levenshtein distance.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

// `candidates` must not be empty.
template <typename Candidates>
std::string_view nearest(std::string_view word, const Candidates& candidates) {
  return *std::min_element(candidates.begin(), candidates.end(), [&](auto& a, auto& b) {
    return edit_distance(word, a) < edit_distance(word, b);
  });
}

}  // namespace tide
