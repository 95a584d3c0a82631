// libucp, opened at run time: pycoll links to no UCX, so that the machine's own, which alone knows its RDMA
// adapters, can be taken where there is one.
#pragma once
#include <ucp/api/ucp.h>

#include <string>
#include <vector>

namespace pycoll::ucx {

// The functions of libucp that are used, and where they come from.
struct Library {
  std::string path;
  std::string origin;
  unsigned major = 0, minor = 0, release = 0;

  decltype(&::ucp_get_version) get_version = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_context_print_info) context_print_info = nullptr;
  decltype(&::ucp_mem_map) mem_map = nullptr;
  decltype(&::ucp_mem_unmap) mem_unmap = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_query) worker_query = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_flush_nbx) worker_flush_nbx = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_query) ep_query = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&::ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&::ucp_am_recv_data_nbx) am_recv_data_nbx = nullptr;
  decltype(&::ucp_request_check_status) request_check_status = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;

  std::string version() const;
};

// The first that is fit of: one that this process has loaded already; $PYCOLL_UCX; the system's where an RDMA
// adapter is; the libucx wheel's; the system's. Null: none is. `passed_over` gets a line for each that is
// not. Found once, it stays for the life of the process.
const Library* find_library(std::vector<std::string>* passed_over = nullptr);

}  // namespace pycoll::ucx
