// What a group that spans hosts has beside what it has inside each.
#pragma once
#include <memory>
#include <utility>

#include "engine/hosts/late_calls.h"
#include "engine/hosts/links.h"
#include "engine/hosts/meeting.h"
#include "engine/hosts/mixed_transport.h"
#include "engine/placement.h"

namespace pycoll {

struct Hosts {
  Hosts(shm::Group& group, Arrivals& arrivals, shm::Channels& channels, const Placement& placement, int rank,
        std::unique_ptr<Network> network, Plans& plans, EarlyGain& gain)
      : links(group, placement, rank, std::move(network)),
        exchange(group, links),
        meeting(group, arrivals, links, exchange),
        transport(group, channels, links),
        executor(transport),
        late_calls(group, links, exchange, executor, plans, gain) {
    group.attend(&links);
  }

  HostLinks links;
  HostExchange exchange;
  HostMeeting meeting;
  MixedTransport transport;
  Executor executor;
  LateCalls late_calls;
};

}  // namespace pycoll
