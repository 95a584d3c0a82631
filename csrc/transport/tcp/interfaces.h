// This host's network interfaces, and which of them lead to the other hosts.
#pragma once
#include <string>
#include <vector>

#include "transport/tcp/socket_address.h"

namespace pycoll::tcp {

struct InterfaceAddress {
  SocketAddress address;
  int prefix = 0;  // leading bits that name the network
};

struct NetworkInterface {
  std::string name;
  std::vector<InterfaceAddress> addresses;  // IPv4 first; without IPv6's link-local ones
  bool up = false;                          // switched on, and with a carrier
  bool loopback = false;
  bool internal = false;  // looks like a bridge to containers or virtual machines of this host
  bool chosen = false;
  std::string reason;  // why it is chosen, or not
};

std::vector<NetworkInterface> list_interfaces();

// Marks those to use and says why of each. `pinned`: a name, or a prefix of names. `towards`: a host name or
// address; "" where none is known. Where neither decides, all that are up and look as if they led out of the
// host; loopback only where nothing else is up. At least one is chosen. Throws InvalidArgument (nothing fits
// `pinned`), Error (no interface is up and has an address).
std::vector<NetworkInterface> choose_interfaces(const std::string& towards, const std::string& pinned);

// The interface that a packet to that address leaves by; "" where there is no route.
std::string interface_towards(const SocketAddress& address);

}  // namespace pycoll::tcp
