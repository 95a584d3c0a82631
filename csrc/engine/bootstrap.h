// How a group comes into being on one host.
#pragma once
#include <memory>

#include "engine/communicator.h"
#include "transport/shm/group.h"

namespace pycoll {

struct Bootstrapped {
  std::shared_ptr<shm::Segment> segment;
  shm::Patience patience;
};

// Agrees with the other ranks on the segment, and checks that they are of the same host, user and version.
// Throws InvalidArgument, Unsupported, PeerLost, Timeout, on every rank where possible.
Bootstrapped join_group(int rank, int ranks, const AllGatherBytes& all_gather,
                        const CommunicatorOptions& options);
// All ranks tell whether they are in; throws on all ranks when one is not, or when their rules differ. Gives
// rank 0's decision table.
std::string confirm_group(int rank, const AllGatherBytes& all_gather, const CommunicatorOptions& options,
                          const std::string& error);

}  // namespace pycoll
