// The network over UCX (https://openucx.org): active messages between workers, one worker a network.
//
// Active messages and not tagged ones: a receiver need not post a buffer for each of perhaps a thousand peers
// before it knows who will send, and one handler sees every first contact and turns strangers away. A stream
// is cut in pieces that go into a ring of the sender's, and from there to the same place in a ring of the
// receiver's. UCX sends them at once, or, from a size that it knows best, asks the receiver first and lets
// the adapter write straight into the ring.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transport/network.h"
#include "transport/ucx/connection.h"

namespace pycoll::ucx {

class UcxNetwork : public Network {
 public:
  UcxNetwork(const Library& library, const NetworkOptions& options,
             const std::vector<std::string>& interfaces);
  ~UcxNetwork() override;

  std::string_view name() const override { return "ucx"; }
  std::string description() const override;
  std::string address() const override;
  void meet(std::vector<std::string> addresses, std::vector<std::string> hosts, uint64_t key) override;
  size_t send(int destination, std::span<const std::byte> bytes) override;
  std::span<const std::byte> arrived(int source) override;
  void received(int source, size_t bytes) override;
  void post(int destination, std::span<const std::byte> message) override;
  bool poll(OnMessage on_message) override;
  int descriptor() const override { return worker_->descriptor(); }
  bool arm() override;
  bool flushed() const override;
  void watch(int peer) override;
  const std::string* lost(int peer) const override;
  bool left(int peer) const override;
  void leave() override;
  size_t memory_bytes() const override;

 private:
  struct Received {
    int source;
    std::vector<std::byte> message;
  };
  // Where a message or a piece that UCX asks about before it sends it is put.
  struct Landing {
    UcxNetwork* network;
    Header header;
    std::vector<std::byte> message;
  };

  void check_rank(int rank) const;
  Connection& connection(int peer);
  const Connection* known(int peer) const;
  ucp_ep_h connect(Connection& to);
  ucp_ep_h lane(Connection& to);  // the next of them
  bool reachable(const Connection& to) const { return to.lost.empty() && !to.closed; }

  void start(Connection& to, ucp_ep_h endpoint, Operation operation, std::span<const std::byte> bytes,
             ucp_mem_h memory);
  void tell(Connection& to, Kind kind, uint64_t position, std::span<const std::byte> payload = {});
  void finish(Operation& operation, ucs_status_t status);
  void give_credit(Connection& to);

  ucs_status_t on_data(const void* header, size_t header_length, void* data, size_t length,
                       const ucp_am_recv_param_t& param);
  ucs_status_t on_stream(Connection& from, const Header& header, void* data, size_t length, bool asks);
  ucs_status_t on_message(Connection& from, const Header& header, void* data, size_t length, bool asks);
  ucs_status_t land(std::unique_ptr<Landing> landing, void* description, std::byte* place, size_t length,
                    ucp_mem_h memory);
  void landed(Landing& landing, ucs_status_t status);
  void hand_in(Connection& from, uint64_t number, std::vector<std::byte> message);

  bool progress();
  bool judge_failures();
  void answer_farewells();
  void close(Connection& connection);
  void forget_finished_requests();
  void start_flush() const;
  std::string wires() const;  // "tcp/eth0, tcp/eth1"
  std::string describe_failure(const Connection& connection, ucs_status_t status) const;

  const Library& library_;
  NetworkOptions options_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Worker> worker_;
  size_t ring_size_;
  std::vector<std::string> wires_;

  uint64_t key_ = 0;
  std::vector<std::string> addresses_;                    // binary, by rank
  std::vector<std::unique_ptr<Connection>> connections_;  // by rank; null: never heard of
  std::deque<Received> inbox_;
  size_t inbox_bytes_ = 0;

  size_t under_way_ = 0;  // operations and landings
  uint64_t sent_ = 0;     // operations begun ...
  SteadyClock::time_point last_sent_ = {};
  mutable uint64_t flushed_ = 0;  // ... of which so many are known to be on the wire
  mutable uint64_t flushing_ = 0;
  mutable void* flush_request_ = nullptr;
  bool failures_ = false;
  bool leaving_ = false;
  std::vector<void*> closing_;  // requests
};

}  // namespace pycoll::ucx
