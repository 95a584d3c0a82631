// What goes over a connection. It carries frames one way, from the rank that connected to the rank that
// listened, after a hello; the other way it carries nothing, but perhaps a farewell. All numbers are
// little-endian.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

namespace pycoll::tcp {

static_assert(std::endian::native == std::endian::little, "the wire's byte order is assumed");

enum class Role : uint16_t { Messages, Stream };

struct Hello {
  static constexpr uint64_t kMagic = 0x31637420'6c6c6f63;  // "coll tc1"
  uint64_t magic = kMagic;
  uint64_t key = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  Role role = Role::Messages;
  uint16_t lane = 0;
  uint32_t lanes = 1;
};
static_assert(sizeof(Hello) == 32);

enum class FrameKind : uint32_t { Data = 0x61746144, Message = 0x7353654d, Leave = 0x5657614c };

struct FrameHeader {
  FrameKind kind = FrameKind::Data;
  uint32_t length = 0;  // of what follows
  // Data: the frame's place in the stream, whichever lane it comes by. Leave: how many frames the stream had;
  // nothing follows, and the length says how many messages there were (modulo 2^32).
  uint64_t number = 0;
};
static_assert(sizeof(FrameHeader) == 16);

inline constexpr size_t kLongestFrame = 64 << 10;
inline constexpr size_t kLongestMessage = 1 << 20;

}  // namespace pycoll::tcp
