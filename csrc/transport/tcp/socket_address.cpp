#include "transport/tcp/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

namespace pycoll::tcp {

SocketAddress::SocketAddress(const sockaddr* address) {
  std::memcpy(&storage_, address,
              address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
}

std::optional<SocketAddress> SocketAddress::parse(const std::string& host, uint16_t port) {
  SocketAddress made;
  auto& v4 = reinterpret_cast<sockaddr_in&>(made.storage_);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(made.storage_);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1)
    made.storage_.ss_family = AF_INET;
  else if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1)
    made.storage_.ss_family = AF_INET6;
  else
    return std::nullopt;
  made.set_port(port);
  return made;
}

SocketAddress SocketAddress::local_of(int socket) {
  SocketAddress made;
  socklen_t size = sizeof made.storage_;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&made.storage_), &size);
  return made;
}

SocketAddress SocketAddress::remote_of(int socket) {
  SocketAddress made;
  socklen_t size = sizeof made.storage_;
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&made.storage_), &size);
  return made;
}

socklen_t SocketAddress::size() const {
  return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(storage_).sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in&>(storage_).sin_port = htons(port);
}

const uint8_t* SocketAddress::bytes() const {
  return family() == AF_INET6
             ? reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr.s6_addr
             : reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in&>(storage_).sin_addr);
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET || family() == AF_INET6) ::inet_ntop(family(), bytes(), text, sizeof text);
  return text;
}

std::string SocketAddress::text() const {
  const std::string name = family() == AF_INET6 ? "[" + host() + "]" : host();
  return name + ":" + std::to_string(port());
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return bytes()[0] == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
}

bool SocketAddress::is_link_local() const {
  if (family() == AF_INET) return bytes()[0] == 169 && bytes()[1] == 254;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
}

bool SocketAddress::same_host(const SocketAddress& other) const {
  return same_network(other, family() == AF_INET6 ? 128 : 32);
}

bool SocketAddress::same_network(const SocketAddress& other, int prefix) const {
  if (family() != other.family()) return false;
  for (int bit = 0; bit < prefix; bit += 8) {
    const int left = prefix - bit;
    const auto mask = static_cast<uint8_t>(left >= 8 ? 0xff : 0xff << (8 - left));
    if (((bytes()[bit / 8] ^ other.bytes()[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

}  // namespace pycoll::tcp
