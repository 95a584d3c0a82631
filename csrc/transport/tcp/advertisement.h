// What a rank tells the others of where it listens.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/tcp/socket_address.h"

namespace pycoll::tcp {

struct Endpoint {
  std::string interface;
  SocketAddress address;  // with the port listened on
  int prefix = 0;         // leading bits of the address that name its network
};

struct Advertisement {
  uint64_t host = 0;  // equal for processes that share a network stack
  std::vector<Endpoint> endpoints;

  std::string text() const;
  // `whose` is named in the InvalidArgument that a malformed text raises.
  static Advertisement parse(const std::string& text, const std::string& whose);
};

uint64_t this_host();

// The endpoints of `target` in the order in which `own` tries them: networks that every rank is on first.
// Left out are those that cannot lead to it: loopback and addresses of this very host where the target is on
// another, and addresses that several hosts claim (bridges to containers have the same on each).
std::vector<Endpoint> order_endpoints(const std::vector<Advertisement>& all, size_t own, size_t target);

}  // namespace pycoll::tcp
