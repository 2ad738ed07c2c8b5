// What happens at the responder: the effect of a message, or of a piece of one, on the peer's
// memory, receives and completion queue. Runs in the sender's process.
#pragma once

#include <cstdint>

#include "tests/softverbs/queue_pair.h"

namespace softverbs {

enum class Outcome {
  kDone,
  kLost,             // nobody answers: port down, peer gone or not connected to us
  kNotReady,         // receiver not ready: no receive is posted
  kRemoteAccess,     // the peer's key does not allow it
  kRemoteInvalid,    // longer than the receive
  kRemoteOperation,  // the peer's receive names memory it may not write
  kLocalProtection,  // the same here
};

struct Piece {
  uint64_t position;  // of the request
  uint64_t offset, bytes;
  bool last;
  bool probe;  // only whether the peer still answers: the message itself is there already
};

// No lock of the pair is held, but nobody else touches this request.
Outcome deliver(QueuePair& pair, const Piece& piece);

}  // namespace softverbs
