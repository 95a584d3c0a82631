// Bootstrap over a torch Store.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/communicator.h"
#include "torch/peers.h"

namespace pycoll::torch_adapter {

// Where a rank that cannot make the group says why; its value is "<rank>: <message>".
inline constexpr const char* kFailedKey = "failed";

struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;  // holds keys of the making of this one group only
  int rank, ranks;
  CommunicatorOptions options;              // its timeout is that of all exchanges together
  std::function<void()> check_interrupted;  // called while waiting; throws to give up
  std::vector<int> global_ranks = {};       // of the ranks, in torch's world; empty: not known
  c10::intrusive_ptr<c10d::Store> notes =
      {};  // of the world, where ranks tell for whom they wait; may be null
};

struct Joined {
  std::shared_ptr<Communicator> communicator;
  KnownPeers::Lesson peers;  // to be held as long as the group is
};

// Throws Timeout naming the ranks that did not come, and whom these wait for in turn; PeerLost at once when
// the process of a rank is gone; Aborted at once when a rank has written kFailedKey. Of its own failure it
// tells the others.
Joined join(const Rendezvous& rendezvous);

}  // namespace pycoll::torch_adapter
