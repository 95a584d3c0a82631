// What a group that spans hosts has beside what it has inside each.
#pragma once
#include <memory>
#include <utility>

#include "engine/decisions.h"
#include "engine/hosts/links.h"
#include "engine/hosts/meeting.h"
#include "engine/hosts/mixed_transport.h"
#include "engine/placement.h"

namespace pycoll {

struct Hosts {
  Hosts(shm::Group& group, Arrivals& arrivals, shm::Channels& channels, const Placement& placement, int rank,
        std::unique_ptr<Network> network)
      : links(group, placement, rank, std::move(network)),
        meeting(group, arrivals, links),
        transport(group, channels, links) {
    group.attend(&links);
  }

  HostLinks links;
  HostMeeting meeting;
  MixedTransport transport;
};

// How a call goes that is too large for the meeting and for which no table says anything.
Way default_way(CollectiveKind kind, uint64_t bytes, const Placement& placement);

}  // namespace pycoll
