// Which network a group uses: that over TCP, or that over UCX. open_network() of network.h decides.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/network.h"

namespace pycoll {

struct NetworkChoice {
  std::string name;    // "tcp", "ucx"
  std::string reason;  // "no RDMA device", for people
};

// The one that PYCOLL_NETWORK names. Where it names none: UCX if it can drive an RDMA device that this host
// has, else TCP. All ranks must come to the same. Throws InvalidArgument for another name.
NetworkChoice choose_network(const NetworkOptions& options);

// For meet(), to whose addresses each network gives a beginning of its own, "pycoll-tcp/" and "pycoll-ucx/":
// throws InvalidArgument if one is of another network than that named; says which two ranks differ, on which
// hosts, and what to set. They would wait for each other in vain.
void check_same_network(std::string_view name, int rank, const std::vector<std::string>& addresses,
                        const std::vector<std::string>& hosts);

}  // namespace pycoll
