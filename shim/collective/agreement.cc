#include "shim/collective/agreement.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "include/tide/error.h"

namespace tide::collective {
namespace {

// The words of `text` that `other` has not: of settings, those that differ. All where none is new.
std::string own_words(const std::string& text, const std::string& other) {
  const auto words = [](const std::string& from) {
    std::istringstream stream(from);
    return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  const std::vector<std::string> others = words(other);
  std::string own;
  for (const std::string& word : words(text)) {
    if (std::ranges::find(others, word) == others.end()) own += (own.empty() ? "" : " ") + word;
  }
  return own.empty() ? text : own;
}

// "rank 2 has X, rank 0 has Y" for the first member that differs from rank 0 in `field`.
std::string difference(const std::vector<Member>& members, const char* what,
                       std::string Member::*field) {
  for (size_t r = 1; r < members.size(); ++r) {
    const std::string &one = members[r].*field, &first = members[0].*field;
    if (one != first) {
      return std::string("ranks disagree on ") + what + ": rank " +
             std::to_string(members[r].global_rank) + " has " + own_words(one, first) + ", rank " +
             std::to_string(members[0].global_rank) + " has " + own_words(first, one);
    }
  }
  return {};
}

// Why the ranks do not form nodes of equal size, filled one after another: then rank n * L + l is
// local rank l of node n, and rails join equals. Empty when they do.
std::string irregular(const std::vector<Member>& members, const std::vector<std::string>& nodes) {
  auto describe = [&](size_t r) { return "rank " + std::to_string(members[r].global_rank); };
  const size_t locals = std::max<size_t>(1, members.size() / nodes.size());
  std::vector<size_t> sizes;
  for (const std::string& node : nodes) {
    sizes.push_back(std::ranges::count(members, node, &Member::node));
    if (sizes.back() != sizes.front()) {
      const auto first = std::ranges::find(members, node, &Member::node) - members.begin();
      return "nodes of different size: " + std::to_string(sizes.front()) + " ranks with " +
             describe(0) + ", " + std::to_string(sizes.back()) + " with " + describe(first);
    }
  }
  for (size_t r = 0; r < members.size(); ++r) {
    if (members[r].node != nodes[r / locals]) {
      return "the ranks of a node do not follow each other: " + describe(r) +
             " is not on the node of " + describe(r / locals * locals);
    }
  }
  return {};
}

}  // namespace

std::string serialize(const Member& m) {
  return nlohmann::json{{"global_rank", m.global_rank},
                        {"node", m.node},
                        {"version", m.version},
                        {"torch", m.torch},
                        {"gpu", m.gpu},
                        {"settings", m.settings}}
      .dump();
}

Member parse_member(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Member member;
  try {
    member.global_rank = json.at("global_rank");
    member.node = json.at("node");
    member.version = json.at("version");
    member.torch = json.at("torch");
    member.gpu = json.value("gpu", "");  // older versions, which decide() names, have none
    member.settings = json.at("settings");
  } catch (const nlohmann::json::exception&) {
    throw Error("a rank describes itself as \"" + text + "\", which this Tide does not understand",
                "install the same Tide on all nodes");
  }
  return member;
}

const char* name(Tier tier) {
  switch (tier) {
    case Tier::kLayout:
      return "layout";
    case Tier::kCoalesced:
      return "coalesced";
    case Tier::kStock:
      return "stock";
  }
  return "?";
}

Decision decide(const std::vector<Member>& members, int rank) {
  Decision decision;
  std::vector<std::string> nodes;  // in the order of their first ranks
  for (size_t r = 0; r < members.size(); ++r) {
    if (std::ranges::find(nodes, members[r].node) == nodes.end()) nodes.push_back(members[r].node);
    if (members[r].node == members[rank].node) decision.team.push_back(static_cast<int>(r));
  }
  decision.nodes = static_cast<int>(nodes.size());
  decision.node = static_cast<int>(std::ranges::find(nodes, members[rank].node) - nodes.begin());

  if (members.size() < 2) {
    decision.reason = "world size 1";
    return decision;
  }
  for (const std::string& reason : {difference(members, "Tide's version", &Member::version),
                                    difference(members, "torch's version", &Member::torch),
                                    difference(members, "settings", &Member::settings)}) {
    if (reason.empty()) continue;
    decision.reason = reason;
    return decision;
  }
  decision.reason = irregular(members, nodes);
  decision.tier = decision.reason.empty() ? Tier::kLayout : Tier::kCoalesced;
  return decision;
}

}  // namespace tide::collective
