// Names of sockets in the abstract name space: no files, and gone with their sockets.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <string_view>

namespace pycoll::shm {

std::string random_name();  // that nobody can guess; throws Error

struct UnixAddress {
  sockaddr_un value{};
  socklen_t length;
  explicit UnixAddress(std::string_view name);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

}  // namespace pycoll::shm
