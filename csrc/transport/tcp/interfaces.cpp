#include "transport/tcp/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/file_descriptor.h"

namespace pycoll::tcp {
namespace {

int prefix_of(const sockaddr* mask, int family) {
  if (mask == nullptr) return family == AF_INET6 ? 128 : 32;
  const auto* bytes =
      family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr
          : reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(mask)->sin_addr);
  int bits = 0;
  for (int i = 0; i < (family == AF_INET6 ? 16 : 4); ++i) bits += __builtin_popcount(bytes[i]);
  return bits;
}

// Container engines and hypervisors make these; the addresses on them are often the same on every host.
bool looks_internal(std::string_view name) {
  for (const std::string_view prefix : {"docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "podman",
                                        "lxc", "lxd", "vmnet", "vboxnet", "kube", "dummy"})
    if (name.starts_with(prefix)) return true;
  return false;
}

// The local address from which packets to `address` would be sent; asks the routing table, sends nothing.
std::optional<SocketAddress> source_towards(const SocketAddress& address) {
  const FileDescriptor socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), address.get(), address.size()) != 0) return std::nullopt;
  return SocketAddress::local_of(socket.get());
}

struct Resolved {
  std::vector<SocketAddress> addresses;
  std::string problem;
};

Resolved resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(name.c_str(), "9", &hints, &list);  // any port: nothing is sent
  if (error != 0) return {{}, "'" + name + "' does not resolve: " + ::gai_strerror(error)};
  Resolved resolved;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next)
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6)
      resolved.addresses.emplace_back(entry->ai_addr);
  ::freeaddrinfo(list);
  if (resolved.addresses.empty()) resolved.problem = "'" + name + "' has no IP address";
  return resolved;
}

NetworkInterface* holder_of(std::vector<NetworkInterface>& all, const SocketAddress& address) {
  for (NetworkInterface& one : all)
    for (const InterfaceAddress& own : one.addresses)
      if (own.address.same_host(address)) return &one;
  return nullptr;
}

bool usable(const NetworkInterface& one) {
  return one.up && !one.addresses.empty();
}

std::string state_of(const NetworkInterface& one) {
  if (!one.up) return "down, or without a carrier";
  return one.addresses.empty() ? "has no IP address" : "up";
}

std::string listing(const std::vector<NetworkInterface>& all) {
  std::string text;
  for (const NetworkInterface& one : all) {
    text += (text.empty() ? "" : ", ") + one.name + " (" + state_of(one);
    for (const InterfaceAddress& own : one.addresses) text += ", " + own.address.host();
    text += ")";
  }
  return text.empty() ? "none at all" : text;
}

void choose_pinned(std::vector<NetworkInterface>& all, const std::string& pinned) {
  const bool exact = std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.name == pinned; });
  const auto fits = [&](const NetworkInterface& one) {
    return exact ? one.name == pinned : one.name.starts_with(pinned);
  };
  for (NetworkInterface& one : all) {
    one.chosen = fits(one) && usable(one);
    one.reason = one.chosen  ? "pinned by '" + pinned + "'"
                 : fits(one) ? "pinned by '" + pinned + "', but " + state_of(one)
                             : "'" + pinned + "' is pinned";
  }
  if (std::any_of(all.begin(), all.end(), [](const auto& one) { return one.chosen; })) return;
  const bool found = std::any_of(all.begin(), all.end(), fits);
  throw InvalidArgument("the network interface '" + pinned + "' that PYCOLL_IFNAME asks for " +
                        (found ? "cannot be used" : "does not exist") + "; this host has: " + listing(all));
}

// "": chosen. Else why the route does not decide.
std::string choose_by_route(std::vector<NetworkInterface>& all, const std::string& towards) {
  if (towards.empty()) return "no address that all ranks can reach is known";
  const Resolved resolved = resolve(towards);
  std::string problem = resolved.problem;
  for (const SocketAddress& address : resolved.addresses) {
    const std::optional<SocketAddress> source = source_towards(address);
    if (!source) {
      problem = "there is no route to " + towards + " (" + address.host() + ")";
      continue;
    }
    NetworkInterface* const holder = holder_of(all, *source);
    if (holder == nullptr || holder->loopback || !usable(*holder)) {
      problem = "'" + towards + "' is this host itself (" + address.host() + ")";
      continue;
    }
    for (NetworkInterface& one : all)
      one.reason = "the route to " + towards + " leads over " + holder->name + " instead";
    holder->chosen = true;
    holder->reason = "the route to " + towards + " (" + address.host() + ") leads over it";
    return "";
  }
  return problem;
}

void choose_what_leads_out(std::vector<NetworkInterface>& all, const std::string& why_not_routed) {
  const auto outward = [](const NetworkInterface& one) {
    return usable(one) && !one.loopback && !one.internal;
  };
  const auto internal = [](const NetworkInterface& one) { return usable(one) && !one.loopback; };
  const bool any_outward = std::any_of(all.begin(), all.end(), outward);
  const bool any_internal = std::any_of(all.begin(), all.end(), internal);
  for (NetworkInterface& one : all) {
    one.chosen = any_outward ? outward(one) : any_internal ? internal(one) : usable(one);
    if (one.chosen)
      one.reason = (one.loopback ? "nothing else is up: ranks on this host only" : "up") + std::string("; ") +
                   why_not_routed;
    else
      one.reason = !usable(one)   ? state_of(one)
                   : one.loopback ? "loopback does not leave the host"
                                  : "looks like a bridge to containers or virtual machines of this host";
  }
}

}  // namespace

std::vector<NetworkInterface> list_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0)
    throw Error(std::string("cannot list this host's network interfaces: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<NetworkInterface> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    auto one = std::find_if(all.begin(), all.end(), [&](const auto& i) { return i.name == entry->ifa_name; });
    if (one == all.end()) {
      const unsigned flags = entry->ifa_flags;
      all.push_back({.name = entry->ifa_name,
                     .addresses = {},
                     .up = (flags & IFF_UP) != 0 && (flags & IFF_RUNNING) != 0,
                     .loopback = (flags & IFF_LOOPBACK) != 0,
                     .internal = looks_internal(entry->ifa_name),
                     .chosen = false,
                     .reason = ""});
      one = all.end() - 1;
    }
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const SocketAddress address(entry->ifa_addr);
    // Such an address means something only together with the interface's number on the other host.
    if (family == AF_INET6 && address.is_link_local()) continue;
    one->addresses.push_back({address, prefix_of(entry->ifa_netmask, family)});
  }
  for (NetworkInterface& one : all)
    std::stable_sort(one.addresses.begin(), one.addresses.end(), [](const auto& a, const auto& b) {
      return a.address.family() == AF_INET && b.address.family() == AF_INET6;
    });
  return all;
}

std::vector<NetworkInterface> choose_interfaces(const std::string& towards, const std::string& pinned) {
  std::vector<NetworkInterface> all = list_interfaces();
  if (!pinned.empty()) {
    choose_pinned(all, pinned);
    return all;
  }
  if (const std::string problem = choose_by_route(all, towards); !problem.empty())
    choose_what_leads_out(all, problem);
  if (std::none_of(all.begin(), all.end(), [](const auto& one) { return one.chosen; }))
    throw Error("no network interface of this host can be used; it has: " + listing(all));
  return all;
}

std::string interface_towards(const SocketAddress& address) {
  const std::optional<SocketAddress> source = source_towards(address);
  if (!source) return "";
  std::vector<NetworkInterface> all = list_interfaces();
  const NetworkInterface* const holder = holder_of(all, *source);
  return holder == nullptr ? "" : holder->name;
}

}  // namespace pycoll::tcp
