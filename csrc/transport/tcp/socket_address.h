// An IP address with a port, of either family.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace pycoll::tcp {

class SocketAddress {
 public:
  SocketAddress() = default;
  explicit SocketAddress(const sockaddr* address);  // of IPv4 or IPv6
  // "10.0.0.1" or "fd00::1"; nothing where the text is no numeric address.
  static std::optional<SocketAddress> parse(const std::string& host, uint16_t port);
  static SocketAddress local_of(int socket);
  static SocketAddress remote_of(int socket);

  int family() const { return storage_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const;
  uint16_t port() const;
  void set_port(uint16_t port);
  std::string host() const;  // "10.0.0.1", "fd00::1"
  std::string text() const;  // "10.0.0.1:80", "[fd00::1]:80"
  bool is_loopback() const;
  bool is_link_local() const;
  bool same_host(const SocketAddress& other) const;                 // ports aside
  bool same_network(const SocketAddress& other, int prefix) const;  // the first `prefix` bits agree

 private:
  const uint8_t* bytes() const;
  sockaddr_storage storage_{};
};

}  // namespace pycoll::tcp
