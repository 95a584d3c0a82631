// UCX's context and worker, configured for a group whose ranks are on different hosts.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/network.h"
#include "transport/ucx/library.h"

namespace pycoll::ucx {

using Settings = std::vector<std::pair<std::string, std::string>>;

// What pycoll asks of UCX, over these network interfaces and the RDMA adapters behind them. What the user's
// environment sets (UCX_...) stays as it is.
Settings settings_for(const NetworkOptions& options, const std::vector<std::string>& interfaces);

class Context {
 public:
  Context(const Library& library, const Settings& settings);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const { return library_; }
  ucp_context_h handle() const { return context_; }
  // "tcp/eth0", "rc_mlx5/mlx5_0:1": in the order in which UCX lists them.
  std::vector<std::string> transports() const;

 private:
  const Library& library_;
  ucp_context_h context_ = nullptr;
};

// One thread at a time may use it.
class Worker {
 public:
  explicit Worker(Context& context);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h handle() const { return worker_; }
  int descriptor() const { return descriptor_; }
  std::string address() const;  // binary
  unsigned progress() { return library_.worker_progress(worker_); }

 private:
  const Library& library_;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
};

// Memory that the wire's hardware may be told of once instead of with every operation.
class RegisteredMemory {
 public:
  RegisteredMemory(Context& context, void* address, size_t size);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ucp_mem_h handle() const { return memory_; }  // null: UCX registers as it goes

 private:
  Context& context_;
  ucp_mem_h memory_ = nullptr;
};

}  // namespace pycoll::ucx
