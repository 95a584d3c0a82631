// How connections begin and end, and what their end says of the peer.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "transport/tcp/sockets.h"
#include "transport/tcp/tcp_network.h"

namespace pycoll::tcp {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostStrangers = 2048;
// Long: who connects and then computes says hello when it looks again.
constexpr auto kHelloTime = std::chrono::minutes(10);
constexpr auto kFarewellTime = milliseconds(200);  // by which a farewell may come after the end of a stream
constexpr auto kHurriedTick = milliseconds(50);
constexpr auto kSlowestTick = milliseconds(500);
constexpr uint32_t kMostLanesHeardOf = 1024;

std::string seconds_text(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

Connection& TcpNetwork::add(PrivateDescriptor socket) {
  auto made = std::make_unique<Connection>();
  made->socket = std::move(socket);
  Connection& connection = *made;
  connections_.emplace(&connection, std::move(made));
  return connection;
}

void TcpNetwork::observe(Connection& connection) {
  tune(connection.socket.get(), options_.silence);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &connection;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.socket.get(), &event);
}

Connection& TcpNetwork::open(int peer, Role role, int lane) {
  Connection& connection = add(FileDescriptor());
  connection.peer = peer;
  connection.role = role;
  connection.lane = lane;
  connection.outgoing = true;
  connection.connecting = true;
  const Hello hello{.key = key_,
                    .from = static_cast<uint32_t>(options_.rank),
                    .to = static_cast<uint32_t>(peer),
                    .role = role,
                    .lane = static_cast<uint16_t>(lane),
                    .lanes = static_cast<uint32_t>(options_.lanes)};
  connection.outbox.add(std::as_bytes(std::span(&hello, 1)));
  try_next_endpoint(connection);
  return connection;
}

void TcpNetwork::try_next_endpoint(Connection& connection) {
  const std::vector<Endpoint> endpoints =
      order_endpoints(advertised_, static_cast<size_t>(options_.rank), static_cast<size_t>(connection.peer));
  while (connection.next_endpoint < endpoints.size()) {
    const Endpoint& target = endpoints[connection.next_endpoint];
    const auto own = std::find_if(own_.endpoints.begin(), own_.endpoints.end(), [&](const Endpoint& one) {
      return one.address.family() == target.address.family();
    });
    // A pinned interface is to be used for what is sent, too.
    const bool from_pinned = !options_.interface.empty() && own != own_.endpoints.end();
    connection.socket = start_connect(target.address, from_pinned ? &own->address : nullptr);
    if (connection.socket) {
      connection.deadline = SteadyClock::now() + std::min(options_.connect_timeout, options_.silence);
      connection.readable = connection.writable = connection.hung_up = false;
      observe(connection);
      return;
    }
    connection.tried +=
        (connection.tried.empty() ? "" : "; ") + target.address.text() + ": " + std::strerror(errno);
    ++connection.next_endpoint;
  }
  lose(connection.peer, connection.tried.empty()
                            ? "it cannot be reached: its address '" +
                                  advertised_[static_cast<size_t>(connection.peer)].text() +
                                  "' means this host itself, or several hosts"
                            : "it cannot be reached: tried " + connection.tried);
}

// The connection stands, or the attempt failed.
void TcpNetwork::finish_connecting(Connection& connection) {
  const bool late = !connection.writable && !connection.hung_up;
  const int error = late ? ETIMEDOUT : connect_error(connection.socket.get());
  if (error == 0) {
    connection.connecting = false;
    if (connection.role == Role::Stream) connection.in_flight.begin(connection.socket.get());
    connection.tried.clear();
    connection.link = link_of(connection.socket.get());
    return;
  }
  const std::vector<Endpoint> endpoints =
      order_endpoints(advertised_, static_cast<size_t>(options_.rank), static_cast<size_t>(connection.peer));
  const Endpoint& target = endpoints[connection.next_endpoint];
  const std::string interface = interface_towards(target.address);
  connection.tried +=
      (connection.tried.empty() ? "" : "; ") + target.address.text() +
      (interface.empty() ? "" : " over " + interface) + ": " +
      (late ? "no answer in " + seconds_text(std::min(options_.connect_timeout, options_.silence))
            : std::strerror(error));
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  connection.socket = PrivateDescriptor();
  ++connection.next_endpoint;
  try_next_endpoint(connection);
}

void TcpNetwork::accept_all(size_t listener) {
  for (;;) {
    PrivateDescriptor socket = accept_from(listeners_[listener].get());
    if (!socket) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // They stay in the kernel's queue; asking again at once would only burn the processor.
        epoll_event event{};
        event.data.u64 = listener + 1;
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listeners_[listener].get(), &event);
        muted_ = true;
      }
      return;
    }
    if (strangers_.size() == kMostStrangers) close(*strangers_.front());
    Connection& connection = add(std::move(socket));
    connection.deadline = SteadyClock::now() + kHelloTime;
    connection.readable = true;
    connection.link = link_of(connection.socket.get());
    strangers_.push_back(&connection);
    observe(connection);
    enqueue(connection);
  }
}

bool TcpNetwork::attach(Connection& connection) {
  const Hello& hello = connection.hello;
  if (hello.magic != Hello::kMagic || hello.key != key_ || hello.from >= peers_.size() ||
      hello.to != static_cast<uint32_t>(options_.rank) || hello.from == hello.to ||
      hello.role > Role::Stream || hello.lanes < 1 || hello.lanes > kMostLanesHeardOf ||
      hello.lane >= hello.lanes)
    return false;
  Peer& peer = peers_[hello.from];
  if (peer.lost) return false;
  if (hello.role == Role::Messages) {
    if (peer.messages_in != nullptr) return false;
    peer.messages_in = &connection;
  } else {
    if (peer.lanes_in.empty()) peer.lanes_in.resize(hello.lanes);
    if (peer.lanes_in.size() != hello.lanes || peer.lanes_in[hello.lane].ring) return false;
    // Of the first sources each has room for what a fast wire brings between two looks; where there are very
    // many, all together stay within some tens of MiB.
    const size_t room = (rings_ < 16 ? 1024 : rings_ < 48 ? 256 : 64) << 10;
    peer.lanes_in[hello.lane] = {&connection, std::make_unique<FrameRing>(room)};
    ++rings_;
  }
  connection.peer = static_cast<int>(hello.from);
  connection.role = hello.role;
  connection.lane = hello.lane;
  connection.head_came = 0;
  std::erase(strangers_, &connection);
  if (leaving_ && !gone(peer)) say_farewell(connection);
  return true;
}

void TcpNetwork::close(Connection& connection) {
  if (std::exchange(connection.closed, true)) return;
  closed_.push_back(&connection);
  if (connection.socket) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
    connection.socket = PrivateDescriptor();
  }
  connection.outbox.clear();
  if (connection.peer < 0) {
    std::erase(strangers_, &connection);
    return;
  }
  Peer& peer = peers_[static_cast<size_t>(connection.peer)];
  const auto forget = [&](Connection*& place) {
    if (place == &connection) place = nullptr;
  };
  forget(peer.messages_out);
  forget(peer.messages_in);
  for (Connection*& lane : peer.lanes_out) forget(lane);
  for (Lane& lane : peer.lanes_in) forget(lane.connection);
}

std::string TcpNetwork::link_of(int socket) const {
  const SocketAddress local = SocketAddress::local_of(socket);
  std::string text;
  for (const NetworkInterface& one : interfaces_)
    for (const InterfaceAddress& own : one.addresses)
      if (text.empty() && own.address.same_host(local)) text = one.name + " ";
  return text + local.host() + " to " + SocketAddress::remote_of(socket).host();
}

// `certain`: had the peer left, its farewell would have come before.
void TcpNetwork::end(Connection& connection, std::string how, bool certain) {
  const int rank = connection.peer;
  const bool incoming_stream = !connection.outgoing && connection.role == Role::Stream;
  how += " (" + connection.link + ")";
  close(connection);
  if (rank < 0 || leaving_) return;
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.lost) return;
  if (peer.farewell) {
    const bool messages = connection.role == Role::Messages;
    if ((incoming_stream || messages) && lacks(peer)) suspect(peer, std::move(how));
  } else if (certain) {
    lose(rank, std::move(how));
  } else {
    suspect(peer, std::move(how));
  }
}

void TcpNetwork::fail(Connection& connection, int error) {
  const bool silent = error == ETIMEDOUT;
  const bool unreachable =
      silent || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == EHOSTDOWN;
  std::string how = silent ? "no sign of life for " + seconds_text(options_.silence)
                    : error == ECONNRESET || error == EPIPE
                        ? "its connection was reset"
                        : std::string("its connection failed: ") + std::strerror(error);
  end(connection, std::move(how), unreachable || (!connection.outgoing && connection.role == Role::Messages));
}

void TcpNetwork::suspect(Peer& peer, std::string how) {
  if (peer.suspected) return;
  peer.suspected = SteadyClock::now();
  peer.suspicion = std::move(how);
  if (!std::exchange(hurried_, true)) set_tick(kHurriedTick);
}

void TcpNetwork::lose(int rank, std::string how) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.lost) return;
  peer.lost = std::move(how);
  for (const auto& [connection, owner] : connections_)
    if (connection->peer == rank) close(*connection);
}

void TcpNetwork::say_farewell(Connection& connection) {
  const Peer& peer = peers_[static_cast<size_t>(connection.peer)];
  write(connection, {FrameKind::Leave, peer.messages_sent, peer.frames_sent}, {});
  connection.finishing = connection.outgoing;
  flush(connection);
}

// Destroys what was closed, which until now somebody might still have looked at.
void TcpNetwork::bury() {
  if (closed_.empty()) return;
  std::erase_if(ready_, [](const Connection* connection) { return connection->closed; });
  for (Connection* const connection : closed_) connections_.erase(connection);
  closed_.clear();
}

void TcpNetwork::set_tick(std::chrono::nanoseconds interval) {
  interval = std::clamp<std::chrono::nanoseconds>(interval, milliseconds(10), kSlowestTick);
  itimerspec times{};
  times.it_interval.tv_nsec = interval.count() % 1'000'000'000;
  times.it_value = times.it_interval;
  ::timerfd_settime(timer_.get(), 0, &times, nullptr);
}

void TcpNetwork::tick() {
  uint64_t passed = 0;
  if (::read(timer_.get(), &passed, sizeof passed) < 0) return;
  const auto now = SteadyClock::now();
  if (std::exchange(muted_, false)) {
    for (size_t i = 0; i < listeners_.size(); ++i) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = i + 1;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listeners_[i].get(), &event);
    }
  }
  bool suspects = false;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.suspected || peer.lost) continue;
    if (peer.farewell && !lacks(peer))
      peer.suspected.reset();
    else if (now - *peer.suspected >= kFarewellTime)
      lose(static_cast<int>(rank), peer.suspicion);
    else
      suspects = true;
  }
  if (!suspects && std::exchange(hurried_, false)) set_tick(options_.silence / 8);
  std::vector<Connection*> late;
  for (const auto& [connection, owner] : connections_) {
    if (connection->closed) continue;
    if ((connection->connecting || connection->peer < 0) && now >= connection->deadline) {
      if (!connection->queued) late.push_back(connection);
    }
    if (connection->outgoing && !connection->connecting) check_answers(*connection, now);
  }
  for (Connection* const connection : late) {
    if (connection->closed) continue;
    if (connection->peer < 0)
      close(*connection);
    else
      finish_connecting(*connection);
  }
}

// The kernel goes on sending for a quarter of an hour what nobody acknowledges.
void TcpNetwork::check_answers(Connection& connection, SteadyClock::time_point now) {
  if (!std::exchange(connection.wrote, false) && !connection.unanswered_since && connection.outbox.empty())
    return;
  const Unanswered open = unanswered(connection.socket.get());
  if (!open.any) {
    connection.unanswered_since.reset();
    return;
  }
  const auto heard = now - open.since_last_heard;
  if (!connection.unanswered_since) connection.unanswered_since = now;
  connection.unanswered_since = std::max(*connection.unanswered_since, SteadyClock::time_point(heard));
  if (now - *connection.unanswered_since < options_.silence) return;
  connection.failure = ETIMEDOUT;
  enqueue(connection);
}

}  // namespace pycoll::tcp
