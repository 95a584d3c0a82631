// The network over TCP sockets. Between two ranks there are at most, in each direction, one connection for
// messages and `lanes` for the stream, made when first needed; a receiver whose stream's buffer is full stops
// reading that connection, and messages still get through. One epoll set holds all; readiness is remembered,
// so that only connections with something to do are touched.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/clock.h"
#include "transport/network.h"
#include "transport/tcp/advertisement.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/frame_ring.h"
#include "transport/tcp/interfaces.h"
#include "transport/tcp/private_descriptor.h"

namespace pycoll::tcp {

class TcpNetwork final : public Network {
 public:
  explicit TcpNetwork(const NetworkOptions& options);
  ~TcpNetwork() override;
  TcpNetwork(const TcpNetwork&) = delete;
  TcpNetwork& operator=(const TcpNetwork&) = delete;

  std::string_view name() const override { return "tcp"; }
  std::string description() const override;
  std::string address() const override { return own_.text(); }
  void meet(std::vector<std::string> addresses, std::vector<std::string> hosts, uint64_t key) override;
  size_t send(int destination, std::span<const std::byte> bytes) override;
  std::span<const std::byte> arrived(int source) override;
  void received(int source, size_t bytes) override;
  void post(int destination, std::span<const std::byte> message) override;
  bool poll(OnMessage on_message) override;
  int descriptor() const override { return epoll_.get(); }
  bool arm() override { return ready_.empty(); }
  bool flushed() const override;
  void watch(int peer) override;
  const std::string* lost(int peer) const override;
  bool left(int peer) const override;
  void leave() override;
  size_t memory_bytes() const override;

 private:
  struct Lane {  // of a stream that comes
    Connection* connection = nullptr;
    std::unique_ptr<FrameRing> ring;  // stays when the connection has ended
  };
  struct Peer {
    std::string host;
    Connection* messages_out = nullptr;
    Connection* messages_in = nullptr;
    std::vector<Connection*> lanes_out;
    std::vector<Lane> lanes_in;
    size_t next_lane = 0;
    uint64_t frames_sent = 0;
    uint64_t frames_came = 0;
    uint64_t frames_taken = 0;
    uint32_t messages_sent = 0;
    uint32_t messages_came = 0;
    std::optional<uint64_t> farewell;  // it has left, after so many frames
    uint32_t farewell_messages = 0;    // and so many messages
    // A connection ended that might do so because the peer leaves: the farewell comes by another one.
    std::optional<SteadyClock::time_point> suspected;
    std::string suspicion;
    std::optional<std::string> lost;
  };

  Peer& peer_at(int rank);
  const Peer& peer_at(int rank) const;
  static bool gone(const Peer& peer) { return peer.lost || peer.farewell; }
  static bool reads_from(const Peer& peer);  // some of its stream may yet come
  static bool lacks(const Peer& peer);       // something that it sent before it left, and no more comes
  bool joined(const Peer& peer) const;       // by any connection

  // connections.cpp: how they begin and end
  Connection& add(PrivateDescriptor socket);
  void observe(Connection& connection);
  Connection& open(int peer, Role role, int lane);
  void try_next_endpoint(Connection& connection);
  void finish_connecting(Connection& connection);
  void accept_all(size_t listener);
  bool attach(Connection& connection);  // false: its hello is not one of this group's
  void close(Connection& connection);
  void end(Connection& connection, std::string how, bool certain);
  void fail(Connection& connection, int error);
  void suspect(Peer& peer, std::string how);
  void lose(int rank, std::string how);
  void say_farewell(Connection& connection);
  void bury();
  void tick();
  void check_answers(Connection& connection, SteadyClock::time_point now);
  void set_tick(std::chrono::nanoseconds interval);
  std::string link_of(int socket) const;

  // transfer.cpp: what goes over them
  void enqueue(Connection& connection);
  bool service(Connection& connection, OnMessage on_message);
  bool flush(Connection& connection);
  void write(Connection& connection, const FrameHeader& header, std::span<const std::byte> payload);
  Connection* free_lane(Peer& peer);
  bool read(Connection& connection, OnMessage on_message);
  bool read_head(Connection& connection, size_t bytes);  // true: the head is complete
  bool read_back(Connection& connection);
  bool read_stream(Connection& connection);
  bool read_messages(Connection& connection, OnMessage on_message);
  bool split_messages(Connection& connection, std::span<const std::byte> bytes, OnMessage on_message);
  void take_farewell(Connection& connection, const FrameHeader& header);
  FrameRing& ring_of(const Connection& connection);

  NetworkOptions options_;
  std::vector<NetworkInterface> interfaces_;
  Advertisement own_;
  std::vector<Advertisement> advertised_;  // by rank
  uint64_t key_ = 0;
  PrivateDescriptor epoll_;
  PrivateDescriptor timer_;
  std::vector<PrivateDescriptor> listeners_;
  bool muted_ = false;  // no descriptors were left to accept with
  bool hurried_ = false;
  bool leaving_ = false;
  std::vector<Peer> peers_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> strangers_;  // without a hello, oldest first
  std::vector<Connection*> ready_;
  std::vector<Connection*> work_;
  std::vector<Connection*> closed_;  // to be destroyed
  std::vector<std::byte> scratch_;
  size_t rings_ = 0;
};

}  // namespace pycoll::tcp
