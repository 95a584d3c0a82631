#include "transport/tcp/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace pycoll::tcp {
namespace {

constexpr int kBacklog = 4096;  // a rank that computes accepts nobody meanwhile
// With a short queue in the kernel a message or another flow waits behind little.
constexpr int kUnsent = 128 << 10;

void set(int socket, int level, int name, int value) {
  // What an older kernel does not know, it does without.
  ::setsockopt(socket, level, name, &value, sizeof value);
}

}  // namespace

FileDescriptor listen_on(const SocketAddress& address) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw std::system_error(errno, std::generic_category(), "socket");
  if (address.family() == AF_INET6) set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(socket.get(), address.get(), address.size()) != 0)
    throw std::system_error(errno, std::generic_category(), "bind");
  if (::listen(socket.get(), kBacklog) != 0)
    throw std::system_error(errno, std::generic_category(), "listen");
  return socket;
}

FileDescriptor start_connect(const SocketAddress& to, const SocketAddress* from) {
  FileDescriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  if (from != nullptr) {
    set(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    SocketAddress any_port = *from;
    any_port.set_port(0);
    if (::bind(socket.get(), any_port.get(), any_port.size()) != 0) return FileDescriptor();
  }
  if (::connect(socket.get(), to.get(), to.size()) != 0 && errno != EINPROGRESS) return FileDescriptor();
  return socket;
}

int connect_error(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return error;
  // Where nobody listens on a port of this host any more, a connection may get that very port as its own and
  // meet itself.
  const SocketAddress local = SocketAddress::local_of(socket);
  const SocketAddress remote = SocketAddress::remote_of(socket);
  const bool itself = local.port() == remote.port() && local.same_host(remote);
  return itself ? ECONNREFUSED : 0;
}

FileDescriptor accept_from(int listener) {
  return FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

void tune(int socket, std::chrono::nanoseconds silence) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsent);
  // The first probe after a quarter of the time, then one a second or a quarter of what is left. No
  // TCP_USER_TIMEOUT: it also ends connections whose receiver lives and just does not take anything, a rank
  // that is late or stands in a debugger.
  using std::chrono::seconds;
  const auto whole = std::max<int64_t>(2, std::chrono::ceil<seconds>(silence).count());
  const auto idle = std::max<int64_t>(1, whole / 4);
  const auto interval = std::max<int64_t>(1, (whole - idle) / 4);
  const auto probes = std::max<int64_t>(1, (whole - idle) / interval);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(idle));
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(interval));
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(probes));
}

Unanswered unanswered(int socket) {
  // The C library's tcp_info is older than the kernel's, which has the receiver's window (tcpi_snd_wnd) here.
  constexpr size_t kWindowAt = 228;
  alignas(tcp_info) std::byte answer[256] = {};
  socklen_t size = sizeof answer;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, answer, &size) != 0) return {};
  tcp_info info;
  std::memcpy(&info, answer, sizeof info);
  uint32_t window = 1;
  if (size >= kWindowAt + sizeof window) std::memcpy(&window, answer + kWindowAt, sizeof window);
  // A receiver without room answers ever more rarely to what probes its window; that says nothing of it.
  const bool room = window > 0;
  return {info.tcpi_unacked > 0 && room, std::chrono::milliseconds(info.tcpi_last_ack_recv)};
}

IoResult write_some(int socket, std::span<iovec> parts) {
  size_t all = 0;
  for (const iovec& part : parts) all += part.iov_len;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      const auto bytes = static_cast<size_t>(sent);
      return {bytes == all ? Io::Done : Io::WouldBlock, bytes};
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {Io::WouldBlock, 0};
    if (errno != EINTR) return {Io::Failed, 0};
  }
}

IoResult read_some(int socket, std::span<iovec> parts) {
  size_t all = 0;
  for (const iovec& part : parts) all += part.iov_len;
  for (;;) {
    const ssize_t came = ::readv(socket, parts.data(), static_cast<int>(parts.size()));
    if (came > 0) {
      const auto bytes = static_cast<size_t>(came);
      return {bytes == all ? Io::Done : Io::WouldBlock, bytes};
    }
    if (came == 0) return {Io::Ended, 0};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {Io::WouldBlock, 0};
    if (errno != EINTR) return {Io::Failed, 0};
  }
}

}  // namespace pycoll::tcp
