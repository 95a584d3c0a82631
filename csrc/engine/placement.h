// Which ranks of a group share a host.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace pycoll {

struct Host {
  std::string name;
  std::vector<int> ranks;  // ascending; the first is the host's leader, who speaks for it
};

struct Placement {
  std::vector<Host> hosts;    // by their leaders' ranks
  std::vector<int> host_of;   // by rank
  std::vector<int> local_of;  // by rank: its place in its host's list

  // `key` and `names`, by rank: ranks with equal keys share a host.
  static Placement from(const std::vector<std::string>& keys, const std::vector<std::string>& names);

  int ranks() const { return static_cast<int>(host_of.size()); }
  bool one_host() const { return hosts.size() == 1; }
  const Host& host(int rank) const { return hosts[static_cast<size_t>(host_of[static_cast<size_t>(rank)])]; }
  int local(int rank) const { return local_of[static_cast<size_t>(rank)]; }
  bool together(int a, int b) const {
    return host_of[static_cast<size_t>(a)] == host_of[static_cast<size_t>(b)];
  }

  // The machine as far as the placement tells: hosts on one switch, ranks on a quicker one in each. What
  // algorithms fit themselves to while nobody has given a topology.
  std::shared_ptr<const Topology> topology() const;
};

}  // namespace pycoll
