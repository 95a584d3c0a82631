#include "transport/network.h"

namespace pycoll {

std::unique_ptr<Network> open_network(const NetworkOptions& options) {
  return open_tcp_network(options);
}

}  // namespace pycoll
