// Collectives between nodes: what carries them, and what fails together.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim/collective/call.h"
#include "shim/collective/rail.h"
#include "shim/device/device.h"

namespace tide::collective {

// What fails together: the teams and rails of one process group in this process. When one cannot go
// on, all are given up, here and at their peers, with the reason: else a rank that ends because of
// one would break the others in silence.
class Fate {
 public:
  // Returns the reason of the first failure, which is the one that counts. Rails are given up
  // first, and streams go on last: nothing that a stream computes after a failure leaves this rank.
  std::string fail(const std::string& reason);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::string reason();

 private:
  friend class NodeTeam;
  struct Member {
    device::Team* team;
    Rail* rail;
    device::Stage* stage;  // may be null
  };
  void join(const Member& member);
  void leave(const Rail& rail);
  void give_up(const Member& member) const;  // all but its rail, which goes first

  std::mutex mutex_;
  std::vector<Member> members_;
  std::string reason_;
  std::atomic<bool> failed_{false};
};

// A collective between nodes. Throws what it likes where it cannot go on.
class NodeCollective {
 public:
  virtual ~NodeCollective() = default;
  // With a stage: how many gates the turn has.
  virtual int gates() const = 0;
  // All that happens inside the node. Without a stage: what the rail does too; it is complete on
  // return. With a stage: enqueues it, a turn of the stage, with gates where the rail comes in.
  virtual void move(const Call& call) = 0;
  // Only with a stage, on the thread of the NodeTeam, while the turn runs: what the rail does, from
  // gate to gate; on return the rail is through.
  virtual void carry(const Call& call, device::Gates& gates) = 0;
};

// The ranks of a process group that spans nodes, as rank n * L + l sees them: the team of its node
// n, the rail to local rank l of every other node, and the thread that carries collectives over
// both, one after another. One NodeTeam for each kind of collective, so that an all-gather need not
// stand behind a reduce-scatter.
class NodeTeam {
 public:
  // The rail is connected. node: of `nodes`, each with team->size() ranks. timeout: of a call that
  // names none.
  NodeTeam(std::shared_ptr<device::Team> team, std::unique_ptr<Rail> rail, int node, int nodes,
           std::chrono::milliseconds timeout, std::shared_ptr<Fate> fate);
  ~NodeTeam();  // close()
  NodeTeam(const NodeTeam&) = delete;
  NodeTeam& operator=(const NodeTeam&) = delete;

  int node() const { return node_; }
  int nodes() const { return nodes_; }
  int local_rank() const { return team_->rank(); }
  int local_ranks() const { return team_->size(); }
  int rank() const { return node_ * local_ranks() + local_rank(); }
  device::Team& team() const { return *team_; }
  const std::shared_ptr<device::Team>& shared_team() const { return team_; }
  Rail& rail() const { return *rail_; }
  // Null where the rail reaches the team's memory by itself.
  device::Stage* stage() const { return stage_.get(); }

  // Queues a collective behind those before it. When it cannot be done, the team and the rail are
  // given up, here and at the peers. It gets the call, with a timeout; call.keep is dropped as
  // device::Exchange says. Without a stage it runs on the thread of this NodeTeam. With one it is
  // enqueued here, which waits until the host threads of all node-mates have made the same call,
  // and never for the network. Throws tide::Error after a failure.
  std::shared_ptr<device::Pending> run(Call call, std::shared_ptr<NodeCollective> collective);
  // For NodeCollective::carry(): waits for the turn's stream. Throws tide::Error after a failure.
  void await(device::Gates& gates, int gate) const;

  // Takes leave of the other nodes. What is queued fails, run() throws from here on, and rail() is
  // no more; does not wait for a peer.
  void close();

  // Why it failed, else empty.
  std::string error() const;

 private:
  struct State;

  // A turn of the stage. What it returns makes a caller's stream wait for it.
  std::function<void()> enqueue(Call call, const std::shared_ptr<void>& keep,
                                NodeCollective& collective, std::shared_ptr<device::Gates>& gates);

  const std::shared_ptr<device::Team> team_;
  std::unique_ptr<device::Stage> stage_;
  std::unique_ptr<Rail> rail_;  // null once closed
  const int node_;
  const int nodes_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Fate> fate_;
  std::unique_ptr<State> state_;
};

// A slot for the time of a scope.
class ScopedSlot {
 public:
  ScopedSlot(device::Team& team, uint64_t bytes) : team_(team), slot_(team.acquire(bytes)) {}
  ~ScopedSlot() { team_.release(slot_); }
  ScopedSlot(const ScopedSlot&) = delete;
  ScopedSlot& operator=(const ScopedSlot&) = delete;
  const device::Slot& operator*() const { return slot_; }
  const device::Slot* operator->() const { return &slot_; }

 private:
  device::Team& team_;
  const device::Slot slot_;
};

}  // namespace tide::collective
