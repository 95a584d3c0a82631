// Bootstrap over a torch Store.
#pragma once
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "engine/communicator.h"

namespace pycoll::torch_adapter {

// Where a rank that cannot make the group says why; its value is "<rank>: <message>".
inline constexpr const char* kFailedKey = "failed";

struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;  // holds keys of the making of this one group only
  int rank, ranks;
  std::string group;
  Nanoseconds timeout;                      // of all exchanges together
  std::function<void()> check_interrupted;  // called while waiting; throws to give up
};

// Throws Timeout naming the ranks that did not come, and Aborted at once when a rank has written kFailedKey.
AllGatherBytes all_gather_over(const Rendezvous& rendezvous);

}  // namespace pycoll::torch_adapter
