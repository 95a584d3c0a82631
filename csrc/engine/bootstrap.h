// How a group comes into being: who is where, the memory that each host's ranks share, the networks between
// hosts.
#pragma once
#include <memory>

#include "engine/communicator.h"
#include "engine/placement.h"
#include "transport/network.h"
#include "transport/shm/group.h"

namespace pycoll {

struct Bootstrapped {
  std::shared_ptr<shm::Segment> segment;  // of this host's ranks
  shm::Patience patience;
  Placement placement;
  std::unique_ptr<Network> network;   // of collectives; null where all ranks are on one host
  std::unique_ptr<Network> messages;  // of sends and receives; likewise
};

// Agrees with the other ranks on the placement, the segments and the networks, and checks that they are of
// the same version, and on one host of the same user. Throws InvalidArgument, Unsupported, PeerLost, Timeout,
// on every rank where possible.
Bootstrapped join_group(int rank, int ranks, const AllGatherBytes& all_gather,
                        const CommunicatorOptions& options);
// All ranks tell whether they are in; throws on all ranks when one is not, or when their rules differ. Gives
// rank 0's decision table.
std::string confirm_group(int rank, const AllGatherBytes& all_gather, const CommunicatorOptions& options,
                          const std::string& error);

}  // namespace pycoll
