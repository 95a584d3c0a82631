#include "transport/network.h"

#include <cstdlib>

#include "core/error.h"
#include "transport/choice.h"
#include "transport/ucx/information.h"

namespace pycoll {
namespace {

// "tcp" of "pycoll-tcp/1 ..."; "" of anything else.
std::string_view network_of(std::string_view address) {
  constexpr std::string_view kPrefix = "pycoll-";
  if (!address.starts_with(kPrefix)) return "";
  address.remove_prefix(kPrefix.size());
  const size_t slash = address.find('/');
  return slash == std::string_view::npos ? "" : address.substr(0, slash);
}

NetworkChoice choose_fittest_network(const NetworkOptions& options) {
  const std::vector<std::string> devices = ucx::rdma_devices();
  if (devices.empty()) return {"tcp", "no RDMA device"};
  const ucx::Drives drives = ucx::drives_rdma(options);
  const std::string device = "RDMA device " + devices.front();
  if (!drives.any) return {"tcp", device + ", but " + drives.why_not};
  return {"ucx", device};
}

}  // namespace

NetworkChoice choose_network(const NetworkOptions& options) {
  const char* variable = std::getenv("PYCOLL_NETWORK");
  const std::string pinned = variable != nullptr ? variable : "";
  if (pinned.empty()) return choose_fittest_network(options);
  if (pinned == "tcp" || pinned == "ucx") return {pinned, "PYCOLL_NETWORK=" + pinned};
  throw InvalidArgument("PYCOLL_NETWORK=" + pinned + ": it is tcp or ucx, or left out");
}

std::unique_ptr<Network> open_network(const NetworkOptions& options) {
  return choose_network(options).name == "ucx" ? open_ucx_network(options) : open_tcp_network(options);
}

void check_same_network(std::string_view name, int rank, const std::vector<std::string>& addresses,
                        const std::vector<std::string>& hosts) {
  const auto who = [&](size_t one) {
    return "rank " + std::to_string(one) + (one < hosts.size() ? " on host '" + hosts[one] + "'" : "");
  };
  for (size_t other = 0; other < addresses.size(); ++other) {
    const std::string_view its = network_of(addresses[other]);
    if (its.empty() || its == name) continue;  // what is no address at all is meet()'s to refuse
    throw InvalidArgument(
        "the ranks chose different networks: " + who(static_cast<size_t>(rank)) + " " + std::string(name) +
        ", " + who(other) + " " + std::string(its) +
        "; set PYCOLL_NETWORK=tcp for all of them, or PYCOLL_NETWORK=ucx where every host has "
        "UCX (`pycoll doctor` tells why one has not)");
  }
}

}  // namespace pycoll
