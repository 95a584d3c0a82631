#include "transport/tcp/tcp_network.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "transport/choice.h"
#include "transport/tcp/sockets.h"

namespace pycoll::tcp {
namespace {

constexpr size_t kScratch = 64 << 10;
constexpr int kMostLanes = 64;
constexpr size_t kMostEndpoints = 6;  // an address has at most a few hundred bytes

FileDescriptor checked(int descriptor, const char* what) {
  if (descriptor < 0)
    throw Error(std::string("cannot open a network: ") + what + ": " + std::strerror(errno));
  return FileDescriptor(descriptor);
}

}  // namespace

TcpNetwork::TcpNetwork(const NetworkOptions& options)
    : options_(options),
      interfaces_(choose_interfaces(options.towards, options.interface)),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll")),
      timer_(checked(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timer")),
      scratch_(kScratch) {
  if (options.lanes < 1 || options.lanes > kMostLanes)
    throw InvalidArgument("group '" + options.group + "': PYCOLL_LANES is " + std::to_string(options.lanes) +
                          "; between 1 and " + std::to_string(kMostLanes) + " connections are possible");
  own_.host = this_host();
  std::string problems;
  for (const NetworkInterface& one : interfaces_) {
    if (!one.chosen) continue;
    for (const InterfaceAddress& at : one.addresses) {
      if (listeners_.size() == kMostEndpoints) break;
      try {
        PrivateDescriptor listener = listen_on(at.address);
        own_.endpoints.push_back({one.name, SocketAddress::local_of(listener.get()), at.prefix});
        listeners_.push_back(std::move(listener));
      } catch (const std::system_error& error) {
        problems += (problems.empty() ? "" : "; ") + one.name + " " + at.address.host() + ": " + error.what();
      }
    }
  }
  if (listeners_.empty())
    throw Error("group '" + options.group + "': no interface can be listened on; tried " + problems);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;  // the timer; 1 and up: listeners; what is no small number: connections
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event);
  for (const PrivateDescriptor& listener : listeners_) {
    ++event.data.u64;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener.get(), &event);
  }
}

TcpNetwork::~TcpNetwork() {
  for (const auto& [connection, owner] : connections_) close(*connection);
}

std::string TcpNetwork::description() const {
  std::string text = "tcp over ";
  for (const Endpoint& one : own_.endpoints)
    text += (&one == own_.endpoints.data() ? "" : ", ") + one.interface + " (" + one.address.host() + ")";
  return text + ", " + std::to_string(options_.lanes) + (options_.lanes == 1 ? " lane" : " lanes");
}

void TcpNetwork::meet(std::vector<std::string> addresses, std::vector<std::string> hosts, uint64_t key) {
  const auto ranks = static_cast<size_t>(options_.ranks);
  if (addresses.size() != ranks || hosts.size() != ranks)
    throw InvalidArgument("group '" + options_.group + "': " + std::to_string(addresses.size()) +
                          " addresses and " + std::to_string(hosts.size()) + " hosts for " +
                          std::to_string(ranks) + " ranks");
  check_same_network(name(), options_.rank, addresses, hosts);
  for (size_t rank = 0; rank < ranks; ++rank)
    advertised_.push_back(Advertisement::parse(
        addresses[rank],
        "group '" + options_.group + "': rank " + std::to_string(rank) + " on host '" + hosts[rank] + "'"));
  peers_.resize(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) peers_[rank].host = std::move(hosts[rank]);
  key_ = key;
  set_tick(options_.silence / 8);
}

TcpNetwork::Peer& TcpNetwork::peer_at(int rank) {
  if (rank < 0 || static_cast<size_t>(rank) >= peers_.size() || rank == options_.rank)
    throw InvalidArgument("group '" + options_.group + "': rank " + std::to_string(rank) +
                          " is no other rank of " + std::to_string(peers_.size()));
  return peers_[static_cast<size_t>(rank)];
}

const TcpNetwork::Peer& TcpNetwork::peer_at(int rank) const {
  return const_cast<TcpNetwork*>(this)->peer_at(rank);
}

size_t TcpNetwork::send(int destination, std::span<const std::byte> bytes) {
  Peer& peer = peer_at(destination);
  if (gone(peer) || leaving_) return 0;
  for (int lane = static_cast<int>(peer.lanes_out.size()); lane < options_.lanes; ++lane) {
    peer.lanes_out.push_back(nullptr);
    peer.lanes_out.back() = &open(destination, Role::Stream, lane);
    if (gone(peer)) return 0;
  }
  size_t taken = 0;
  while (taken < bytes.size()) {
    Connection* const lane = free_lane(peer);
    if (lane == nullptr) break;
    const std::span<const std::byte> frame =
        bytes.subspan(taken, std::min(kLongestFrame, bytes.size() - taken));
    write(*lane, {FrameKind::Data, static_cast<uint32_t>(frame.size()), peer.frames_sent++}, frame);
    taken += frame.size();
  }
  return taken;
}

std::span<const std::byte> TcpNetwork::arrived(int source) {
  Peer& peer = peer_at(source);
  for (const Lane& lane : peer.lanes_in)
    if (lane.ring && !lane.ring->empty() && lane.ring->first_number() == peer.frames_taken)
      return lane.ring->first();
  return {};
}

void TcpNetwork::received(int source, size_t bytes) {
  if (bytes == 0) return;
  Peer& peer = peer_at(source);
  for (Lane& lane : peer.lanes_in) {
    if (!lane.ring || lane.ring->empty() || lane.ring->first_number() != peer.frames_taken) continue;
    if (lane.ring->take(bytes)) {
      ++peer.frames_taken;
      if (lane.connection != nullptr && std::exchange(lane.connection->stalled, false))
        enqueue(*lane.connection);
    }
    return;
  }
}

void TcpNetwork::post(int destination, std::span<const std::byte> message) {
  if (message.size() > kLongestMessage)
    throw InvalidArgument("group '" + options_.group + "': a message of " + std::to_string(message.size()) +
                          " bytes; the longest has " + std::to_string(kLongestMessage));
  Peer& peer = peer_at(destination);
  if (gone(peer) || leaving_) return;
  if (peer.messages_out == nullptr) peer.messages_out = &open(destination, Role::Messages, 0);
  if (gone(peer)) return;
  ++peer.messages_sent;
  write(*peer.messages_out, {FrameKind::Message, static_cast<uint32_t>(message.size()), 0}, message);
}

bool TcpNetwork::poll(OnMessage on_message) {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool happened = false;
  bool due = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == 0) {
      due = true;
    } else if (event.data.u64 <= listeners_.size()) {
      accept_all(event.data.u64 - 1);
    } else {
      Connection& connection = *static_cast<Connection*>(event.data.ptr);
      if ((event.events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) connection.readable = true;
      if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) connection.hung_up = true;
      if ((event.events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0 && !std::exchange(connection.writable, true))
        happened = true;
      enqueue(connection);
    }
  }
  work_.swap(ready_);
  for (Connection* const connection : work_) {
    connection->queued = false;
    if (service(*connection, on_message)) happened = true;
  }
  work_.clear();
  // Last, and only when all news has been heard: after a long time without a look much may seem overdue that
  // has come.
  if (due && count < static_cast<int>(events.size())) tick();
  bury();
  return happened;
}

bool TcpNetwork::flushed() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& one) {
    const Connection& connection = *one.first;
    return !connection.closed && (!connection.outbox.empty() || connection.connecting);
  });
}

bool TcpNetwork::reads_from(const Peer& peer) {
  return std::any_of(peer.lanes_in.begin(), peer.lanes_in.end(),
                     [](const Lane& lane) { return lane.connection != nullptr; });
}

bool TcpNetwork::lacks(const Peer& peer) {
  return (peer.frames_came != *peer.farewell && !reads_from(peer)) ||
         (peer.messages_came != peer.farewell_messages && peer.messages_in == nullptr);
}

bool TcpNetwork::joined(const Peer& peer) const {
  const auto any = [](const Connection* connection) { return connection != nullptr; };
  return any(peer.messages_out) || any(peer.messages_in) ||
         std::any_of(peer.lanes_out.begin(), peer.lanes_out.end(), any) || reads_from(peer);
}

void TcpNetwork::watch(int rank) {
  Peer& peer = peer_at(rank);
  if (!gone(peer) && !leaving_ && !joined(peer)) {
    Connection& opened = open(rank, Role::Messages, 0);
    if (!gone(peer)) peer.messages_out = &opened;
  }
}

const std::string* TcpNetwork::lost(int rank) const {
  const Peer& peer = peer_at(rank);
  return peer.lost ? &*peer.lost : nullptr;
}

bool TcpNetwork::left(int rank) const {
  const Peer& peer = peer_at(rank);
  return peer.farewell && peer.frames_came == *peer.farewell && peer.messages_came == peer.farewell_messages;
}

void TcpNetwork::leave() {
  if (std::exchange(leaving_, true)) return;
  for (size_t listener = 0; listener < listeners_.size(); ++listener) accept_all(listener);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == options_.rank || gone(peer) || !joined(peer)) continue;
    if (peer.messages_out == nullptr && peer.messages_in == nullptr) {
      const auto incoming = std::find_if(peer.lanes_in.begin(), peer.lanes_in.end(),
                                         [](const Lane& lane) { return lane.connection != nullptr; });
      if (incoming != peer.lanes_in.end())
        say_farewell(*incoming->connection);
      else
        peer.messages_out = &open(rank, Role::Messages, 0);
    }
    if (peer.messages_in != nullptr) say_farewell(*peer.messages_in);
    if (peer.messages_out != nullptr) say_farewell(*peer.messages_out);
    for (Connection* const lane : peer.lanes_out) {
      if (lane == nullptr) continue;
      lane->finishing = true;
      flush(*lane);
    }
  }
}

size_t TcpNetwork::memory_bytes() const {
  size_t bytes = scratch_.capacity();
  for (const Peer& peer : peers_)
    for (const Lane& lane : peer.lanes_in)
      if (lane.ring) bytes += lane.ring->size();
  for (const auto& [connection, owner] : connections_)
    bytes += connection->outbox.memory() + connection->partial.capacity();
  return bytes;
}

}  // namespace pycoll::tcp

namespace pycoll {

std::unique_ptr<Network> open_tcp_network(const NetworkOptions& options) {
  return std::make_unique<tcp::TcpNetwork>(options);
}

}  // namespace pycoll
