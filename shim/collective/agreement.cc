#include "shim/collective/agreement.h"

#include <nlohmann/json.hpp>
#include <set>

#include "include/tide/error.h"

namespace tide::collective {
namespace {

// "rank 2 has X, rank 0 has Y" for the first member that differs from rank 0 in `field`.
std::string difference(const std::vector<Member>& members, const char* what,
                       std::string Member::*field) {
  for (size_t r = 1; r < members.size(); ++r) {
    if (members[r].*field != members[0].*field) {
      return std::string("ranks disagree on ") + what + ": rank " +
             std::to_string(members[r].global_rank) + " has " + members[r].*field + ", rank " +
             std::to_string(members[0].global_rank) + " has " + members[0].*field;
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
  std::set<std::string> nodes;
  for (size_t r = 0; r < members.size(); ++r) {
    nodes.insert(members[r].node);
    if (members[r].node == members[rank].node) decision.team.push_back(static_cast<int>(r));
  }
  decision.nodes = static_cast<int>(nodes.size());

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
  decision.tier = decision.nodes == 1 ? Tier::kLayout : Tier::kCoalesced;
  if (decision.nodes > 1)
    decision.reason = "the ranks are on " + std::to_string(decision.nodes) + " nodes";
  return decision;
}

}  // namespace tide::collective
