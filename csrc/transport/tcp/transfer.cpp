// What goes over connections: frames out, frames in.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/tcp/sockets.h"
#include "transport/tcp/tcp_network.h"

namespace pycoll::tcp {
namespace {

constexpr size_t kReadAtOnce = 256 << 10;  // of one stream, before others have their turn

std::span<std::byte> writable_bytes(auto& object, size_t from, size_t to) {
  return std::as_writable_bytes(std::span(&object, 1)).subspan(from, to - from);
}

iovec part(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

constexpr const char* kSilentEnd = "it closed its connection without leaving the group: its process ended";
constexpr const char* kNoFrame = "it sent what is no frame of this protocol";

}  // namespace

void TcpNetwork::enqueue(Connection& connection) {
  if (!std::exchange(connection.queued, true)) ready_.push_back(&connection);
}

bool TcpNetwork::service(Connection& connection, OnMessage on_message) {
  if (connection.closed) return false;
  if (connection.failure != 0) {
    // What the peer said before, perhaps farewell, can still be read.
    if (!connection.connecting) read(connection, on_message);
    if (!connection.closed) fail(connection, connection.failure);
    return true;
  }
  if (connection.connecting) {
    if (!connection.writable && !connection.hung_up) return false;
    finish_connecting(connection);
    if (connection.closed || connection.connecting) return true;
  }
  const bool flushed = flush(connection);
  const bool read_some = connection.readable && read(connection, on_message);
  return flushed || read_some;
}

// True: some went.
bool TcpNetwork::flush(Connection& connection) {
  if (connection.connecting || connection.closed) return false;
  bool any = false;
  if (connection.writable && !connection.outbox.empty()) {
    iovec one = part(connection.outbox.waiting());
    const IoResult result = write_some(connection.socket.get(), {&one, 1});
    connection.outbox.gone(result.bytes);
    connection.in_flight.sent(connection.socket.get(), result.bytes);
    connection.wrote = true;
    any = result.bytes > 0;
    if (result.state == Io::WouldBlock) connection.writable = false;
    if (result.state == Io::Failed) {
      connection.failure = errno;
      enqueue(connection);
    }
  }
  if (connection.finishing && connection.outbox.empty()) {
    connection.finishing = false;
    ::shutdown(connection.socket.get(), SHUT_WR);
  }
  return any;
}

// What the socket does not take now waits in the outbox.
void TcpNetwork::write(Connection& connection, const FrameHeader& header,
                       std::span<const std::byte> payload) {
  std::array<iovec, 2> parts{part(std::as_bytes(std::span(&header, 1))), part(payload)};
  size_t sent = 0;
  if (!connection.connecting && connection.writable && connection.outbox.empty()) {
    const IoResult result = write_some(connection.socket.get(), parts);
    sent = result.bytes;
    connection.in_flight.sent(connection.socket.get(), sent);
    connection.wrote = true;
    if (result.state == Io::Done) return;
    connection.writable = false;
    if (result.state == Io::Failed) {
      connection.failure = errno;
      enqueue(connection);
      return;
    }
  }
  const std::span<const std::byte> head = std::as_bytes(std::span(&header, 1));
  const size_t of_head = std::min(sent, head.size());
  connection.outbox.add(head.subspan(of_head));
  connection.outbox.add(payload.subspan(sent - of_head));
}

// In turn, but none that is blocked; null: all are.
Connection* TcpNetwork::free_lane(Peer& peer) {
  for (size_t tried = 0; tried < peer.lanes_out.size(); ++tried) {
    Connection* const lane = peer.lanes_out[peer.next_lane];
    peer.next_lane = (peer.next_lane + 1) % peer.lanes_out.size();
    if (lane != nullptr && !lane->connecting && lane->writable && lane->outbox.empty() && lane->failure == 0)
      return lane;
  }
  return nullptr;
}

FrameRing& TcpNetwork::ring_of(const Connection& connection) {
  return *peers_[static_cast<size_t>(connection.peer)].lanes_in[static_cast<size_t>(connection.lane)].ring;
}

bool TcpNetwork::read(Connection& connection, OnMessage on_message) {
  bool any = false;
  if (connection.peer < 0) {
    if (!read_head(connection, sizeof(Hello))) return false;
    if (!attach(connection)) {
      close(connection);
      return false;
    }
    any = true;
  }
  if (connection.outgoing) return read_back(connection) || any;
  if (connection.role == Role::Stream) return read_stream(connection) || any;
  return read_messages(connection, on_message) || any;
}

bool TcpNetwork::read_head(Connection& connection, size_t bytes) {
  while (connection.head_came < bytes) {
    iovec rest = part(writable_bytes(connection.hello, connection.head_came, bytes));
    const IoResult result = read_some(connection.socket.get(), {&rest, 1});
    connection.head_came += result.bytes;
    if (result.state == Io::Done || (result.state == Io::WouldBlock && result.bytes > 0)) continue;
    if (result.state == Io::WouldBlock)
      connection.readable = false;
    else if (result.state == Io::Ended)
      end(connection, kSilentEnd, connection.role == Role::Messages);
    else
      fail(connection, errno);
    return false;
  }
  return true;
}

// The way back on a connection of one's own: a farewell, or the end.
bool TcpNetwork::read_back(Connection& connection) {
  bool any = false;
  while (!connection.closed && read_head(connection, sizeof(FrameHeader))) {
    any = true;
    connection.head_came = 0;
    if (connection.header.kind == FrameKind::Leave)
      take_farewell(connection, connection.header);
    else
      end(connection, kNoFrame, true);
  }
  return any || connection.closed;
}

void TcpNetwork::take_farewell(Connection& connection, const FrameHeader& header) {
  Peer& peer = peers_[static_cast<size_t>(connection.peer)];
  peer.farewell = header.number;
  peer.farewell_messages = header.length;
}

// Each payload goes straight to its place, and the header after it comes with the same system call.
bool TcpNetwork::read_stream(Connection& connection) {
  Peer& peer = peers_[static_cast<size_t>(connection.peer)];
  FrameRing& ring = ring_of(connection);
  size_t all = 0;
  while (all < kReadAtOnce) {
    if (ring.missing().empty() && connection.head_came == sizeof(FrameHeader)) {
      const FrameHeader& header = connection.header;
      if (header.kind != FrameKind::Data || header.length == 0 || header.length > kLongestFrame) {
        end(connection, kNoFrame, true);
        return true;
      }
      if (!ring.begin(header.number, header.length)) {
        connection.stalled = true;
        if (connection.hung_up && !peer.farewell) suspect(peer, std::string(kSilentEnd));
        return all > 0;
      }
      connection.head_came = 0;
    }
    const std::span<std::byte> payload = ring.missing();
    const std::span<std::byte> head =
        writable_bytes(connection.header, connection.head_came, sizeof(FrameHeader));
    std::array<iovec, 2> parts{part(payload), part(head)};
    const IoResult result = read_some(connection.socket.get(), parts);
    if (result.state == Io::Ended) {
      const bool cut_off = !payload.empty() || connection.head_came > 0;
      end(connection, cut_off ? "it closed its connection in the midst of a frame" : kSilentEnd, false);
      return true;
    }
    if (result.state == Io::Failed) {
      fail(connection, errno);
      return true;
    }
    const size_t of_payload = std::min(result.bytes, payload.size());
    ring.came(of_payload);
    connection.head_came += result.bytes - of_payload;
    if (of_payload > 0 && of_payload == payload.size()) ++peer.frames_came;
    all += result.bytes;
    // Less than asked for: there is no more now, unless the end stands behind it.
    if (result.state == Io::WouldBlock && (result.bytes == 0 || !connection.hung_up)) {
      connection.readable = false;
      return all > 0;
    }
  }
  enqueue(connection);
  return true;
}

bool TcpNetwork::read_messages(Connection& connection, OnMessage on_message) {
  bool any = false;
  for (size_t all = 0; all < kReadAtOnce && !connection.closed;) {
    iovec whole = part(scratch_);
    const IoResult result = read_some(connection.socket.get(), {&whole, 1});
    if (result.state == Io::Ended) {
      end(connection, kSilentEnd, true);
      return true;
    }
    if (result.state == Io::Failed) {
      fail(connection, errno);
      return true;
    }
    all += result.bytes;
    any = any || result.bytes > 0;
    if (!split_messages(connection, std::span(scratch_).first(result.bytes), on_message)) {
      end(connection, kNoFrame, true);
      return true;
    }
    if (result.state == Io::WouldBlock && (result.bytes == 0 || !connection.hung_up)) {
      connection.readable = false;
      return any;
    }
  }
  if (!connection.closed) enqueue(connection);
  return any;
}

// False: these are no messages. What is not whole yet is kept.
bool TcpNetwork::split_messages(Connection& connection, std::span<const std::byte> bytes,
                                OnMessage on_message) {
  const bool direct = connection.partial.empty();
  if (!direct) {
    connection.partial.insert(connection.partial.end(), bytes.begin(), bytes.end());
    bytes = connection.partial;
  }
  FrameHeader header;
  while (bytes.size() >= sizeof header && !connection.closed) {
    std::memcpy(&header, bytes.data(), sizeof header);
    const bool message = header.kind == FrameKind::Message && header.length <= kLongestMessage;
    const bool farewell = header.kind == FrameKind::Leave;
    if (!message && !farewell) return false;
    const size_t whole = sizeof header + (message ? header.length : 0);
    if (bytes.size() < whole) break;
    if (message) {
      ++peers_[static_cast<size_t>(connection.peer)].messages_came;
      on_message(connection.peer, bytes.subspan(sizeof header, header.length));
    } else {
      take_farewell(connection, header);
    }
    bytes = bytes.subspan(whole);
  }
  if (direct) {
    connection.partial.assign(bytes.begin(), bytes.end());
  } else {
    connection.partial.erase(connection.partial.begin(),
                             connection.partial.end() - static_cast<std::ptrdiff_t>(bytes.size()));
    if (connection.partial.empty()) connection.partial = {};
  }
  return true;
}

}  // namespace pycoll::tcp
