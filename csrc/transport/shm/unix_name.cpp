#include "transport/shm/unix_name.h"

#include <sys/random.h>

#include <cstddef>
#include <cstring>

#include "core/error.h"

namespace pycoll::shm {

std::string random_name() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
    throw Error("the system gives no random numbers");
  static constexpr char kHex[] = "0123456789abcdef";
  std::string name = "pycoll-";
  for (const unsigned char byte : bytes) {
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  return name;
}

UnixAddress::UnixAddress(std::string_view name) {
  value.sun_family = AF_UNIX;  // sun_path[0] stays 0: the abstract name space, no file
  std::memcpy(value.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace pycoll::shm
