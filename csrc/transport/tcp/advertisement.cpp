#include "transport/tcp/advertisement.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "core/error.h"

namespace pycoll::tcp {
namespace {

constexpr const char* kFormat = "pycoll-tcp/1";

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  std::istringstream fields(text);
  std::string interface, host;
  unsigned prefix = 0, port = 0;
  char comma = 0;
  if (!std::getline(fields, interface, ',') || !std::getline(fields, host, ',')) return std::nullopt;
  if (!(fields >> prefix >> comma >> port) || comma != ',' || prefix > 128 || port > 65535)
    return std::nullopt;
  const std::optional<SocketAddress> address = SocketAddress::parse(host, static_cast<uint16_t>(port));
  if (!address || (address->family() == AF_INET && prefix > 32)) return std::nullopt;
  return Endpoint{interface, *address, static_cast<int>(prefix)};
}

bool has_network(const Advertisement& one, const Endpoint& endpoint) {
  return std::any_of(one.endpoints.begin(), one.endpoints.end(), [&](const Endpoint& other) {
    return other.prefix == endpoint.prefix && other.address.same_network(endpoint.address, endpoint.prefix);
  });
}

bool has_address(const Advertisement& one, const Endpoint& endpoint) {
  return std::any_of(one.endpoints.begin(), one.endpoints.end(),
                     [&](const Endpoint& other) { return other.address.same_host(endpoint.address); });
}

}  // namespace

std::string Advertisement::text() const {
  std::ostringstream text;
  text << kFormat << ' ' << host;
  for (const Endpoint& one : endpoints)
    text << ' ' << one.interface << ',' << one.address.host() << ',' << one.prefix << ','
         << one.address.port();
  return text.str();
}

Advertisement Advertisement::parse(const std::string& text, const std::string& whose) {
  std::istringstream words(text);
  std::string format, word;
  Advertisement parsed;
  bool good = static_cast<bool>(words >> format >> parsed.host) && format == kFormat;
  while (good && words >> word) {
    const std::optional<Endpoint> endpoint = parse_endpoint(word);
    good = endpoint.has_value();
    if (good) parsed.endpoints.push_back(*endpoint);
  }
  if (!good || parsed.endpoints.empty())
    throw InvalidArgument(whose + " gave the network address '" + text +
                          "', which this version of pycoll cannot read; install the same one everywhere");
  return parsed;
}

uint64_t this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network{};  // containers share the boot id, not this
  ::stat("/proc/self/ns/net", &network);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return std::hash<std::string>()(boot + '/' + std::to_string(network.st_ino) + '/' + name);
}

std::vector<Endpoint> order_endpoints(const std::vector<Advertisement>& all, size_t own, size_t target) {
  const bool same_host = all[own].host == all[target].host;
  const auto misleads = [&](const Endpoint& endpoint) {
    if (same_host) return false;
    return endpoint.address.is_loopback() || std::any_of(all.begin(), all.end(), [&](const auto& one) {
             return one.host != all[target].host && has_address(one, endpoint);
           });
  };
  const auto shared_by_all = [&](const Endpoint& endpoint) {
    return std::all_of(all.begin(), all.end(), [&](const auto& one) { return has_network(one, endpoint); });
  };
  std::vector<Endpoint> ordered;
  std::copy_if(all[target].endpoints.begin(), all[target].endpoints.end(), std::back_inserter(ordered),
               [&](const Endpoint& endpoint) { return !misleads(endpoint); });
  std::stable_partition(ordered.begin(), ordered.end(), shared_by_all);
  return ordered;
}

}  // namespace pycoll::tcp
