// The system calls on stream sockets, none of which waits.
#pragma once
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "core/file_descriptor.h"
#include "transport/tcp/socket_address.h"

namespace pycoll::tcp {

// Listens on a port that the kernel chooses. Throws std::system_error.
FileDescriptor listen_on(const SocketAddress& address);

// Not a descriptor (errno says why): it failed at once. Otherwise it is under way, or even done. `from`: the
// address to connect from; null: the kernel's choice.
FileDescriptor start_connect(const SocketAddress& to, const SocketAddress* from);
int connect_error(int socket);  // 0: connected

// Not a descriptor: nobody is there (errno EAGAIN), or accepting failed.
FileDescriptor accept_from(int listener);

// For small delays, short queues, and to notice within `silence` that the other host is gone while nothing is
// being sent.
void tune(int socket, std::chrono::nanoseconds silence);

// Data that was sent and not acknowledged although the receiver has room for it, and since when nothing at
// all has been heard.
struct Unanswered {
  bool any = false;
  std::chrono::milliseconds since_last_heard{0};
};
Unanswered unanswered(int socket);

enum class Io { Done, WouldBlock, Ended, Failed };  // Failed: errno
struct IoResult {
  Io state = Io::Done;
  size_t bytes = 0;
};
// Done: all of it went or came.
IoResult write_some(int socket, std::span<iovec> parts);
// Some came. That it is less than asked for means that no more is there now.
IoResult read_some(int socket, std::span<iovec> parts);

}  // namespace pycoll::tcp
