// Takes the place of csrc/transport/ucx where its headers were not found when pycoll was built.
#include "core/error.h"
#include "transport/network.h"
#include "transport/ucx/information.h"

namespace pycoll {
namespace {
constexpr const char* kWhy =
    "this pycoll was built without UCX, whose headers were not found: install libucx-cu12 or your system's "
    "UCX "
    "with its headers (libucx-dev, ucx-devel) and build pycoll again";
}  // namespace

namespace ucx {

Information information() {
  Information information;
  information.rdma_devices = rdma_devices();
  information.passed_over = {kWhy};
  return information;
}

void set_search_path(const std::string&) {}

Drives drives_rdma(const NetworkOptions&) {
  return {false, kWhy};
}

}  // namespace ucx

std::unique_ptr<Network> open_ucx_network(const NetworkOptions&) {
  throw Unsupported(std::string("no UCX: ") + kWhy);
}

}  // namespace pycoll
