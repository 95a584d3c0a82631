// Which UCX there is, for people and for the choice of a network. Needs no header of UCX.
#pragma once
#include <string>
#include <vector>

#include "transport/network.h"

namespace pycoll::ucx {

struct Information {
  bool found = false;
  std::string path;     // of libucp
  std::string origin;   // "PYCOLL_UCX", "the system's", "the libucx wheel", "already loaded in this process"
  std::string version;  // "1.22.0"
  std::vector<std::string> transports;    // "tcp/eth0", "rc_mlx5/mlx5_0:1": what can cross hosts
  std::vector<std::string> passed_over;   // "the system's libucp.so.0: 1.13.1 is older than 1.14"
  std::vector<std::string> rdma_devices;  // "mlx5_0"
};

// Loads libucp if that has not happened yet. Throws nothing: what went wrong stands in passed_over.
Information information();

// The folder in which the Python package libucx keeps libucp.so.0; "": not installed. To be said before the
// first network is opened.
void set_search_path(const std::string& folder);

// Names under /sys/class/infiniband: what InfiniBand, RoCE and other RDMA adapters show up as.
std::vector<std::string> rdma_devices();

struct Drives {
  bool any = false;
  std::string why_not;
};
// Whether a network with these options would use an RDMA device.
Drives drives_rdma(const NetworkOptions& options);

}  // namespace pycoll::ucx
