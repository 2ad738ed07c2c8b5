// What the ranks of a process group agree on, once, before Tide carries anything for them. Pure:
// the same members give the same decision on every rank.
#pragma once

#include <string>
#include <vector>

namespace tide::collective {

// A rank as it describes itself to the others.
struct Member {
  int global_rank = 0;   // in the job
  std::string node;      // equal for ranks that can share memory
  std::string version;   // of Tide
  std::string torch;     // of libtorch
  std::string gpu{};     // its PCI address, empty: tensors in host memory, or not known
  std::string settings;  // that must be equal on all ranks, "TIDE_SHIM=on TIDE_ALL_GATHER=layout"
};

std::string serialize(const Member& member);
Member parse_member(const std::string& text);  // throws tide::Error

enum class Tier { kLayout, kCoalesced, kStock };
const char* name(Tier tier);

struct Decision {
  Tier tier = Tier::kStock;
  std::string reason;     // why not kLayout; empty for kLayout
  int nodes = 0;          // different nodes among the members
  int node = 0;           // this rank's, 0 <= node < nodes, in the order of their first ranks
  std::vector<int> team;  // ranks of the group on this rank's node, ascending
};

// members[r]: rank r of the group.
Decision decide(const std::vector<Member>& members, int rank);

}  // namespace tide::collective
