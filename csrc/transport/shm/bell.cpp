#include "transport/shm/bell.h"

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "transport/shm/unix_name.h"

namespace pycoll::shm {
namespace {

FileDescriptor new_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Bell::Bell() : name_(random_name()), socket_(new_socket()) {
  const UnixAddress address(name_);
  if (!socket_ || ::bind(socket_.get(), address.get(), address.length) != 0)
    throw Error(std::string("cannot make a Unix socket: ") + std::strerror(errno));
}

void Bell::clear() {
  char byte;
  while (::recv(socket_.get(), &byte, 1, 0) >= 0) {
  }
}

void ring_bell(const char* name) {
  // One for the process: it is written to by any thread, and nothing is ever read from it.
  static const FileDescriptor sender = new_socket();
  const UnixAddress address(name);
  const char byte = 1;
  // A full queue means that it has rung and will be heard.
  ::sendto(sender.get(), &byte, 1, MSG_NOSIGNAL, address.get(), address.length);
}

}  // namespace pycoll::shm
