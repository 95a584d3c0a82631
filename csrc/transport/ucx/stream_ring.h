// A stream between two ranks as both ends keep it: a ring of bytes of the same size on each side, and
// positions that only grow. The sender copies a piece into its ring and sends it; it lands at the same
// position of the receiver's. Pieces begin aligned and never wrap around. What the receiver has given back
// may be sent anew, once the wire is done with it too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <span>

namespace pycoll::ucx {

inline constexpr size_t kAlignment = 64;
inline uint64_t align_up(uint64_t position) {
  return (position + kAlignment - 1) & ~uint64_t{kAlignment - 1};
}

// Memory that begins at a page and that no page is touched of before it is used.
class RingMemory {
 public:
  explicit RingMemory(size_t size);
  std::byte* data() const { return memory_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_;
};

class SendRing {
 public:
  explicit SendRing(size_t size) : memory_(size) {}

  struct Piece {
    uint64_t position;
    std::span<std::byte> bytes;
    uint64_t end;       // where the next one begins
    bool gone = false;  // the wire needs its bytes no more
  };
  // Copies as many of the bytes as there is room for, at most `longest`, in whole units of 64 bytes unless it
  // is all of them. Null: no room. The piece stays where it is until it is gone and all before it are.
  Piece* put(std::span<const std::byte> bytes, size_t longest);
  void gone(Piece& piece);
  void given_back(uint64_t position);  // by the receiver, up to there

  uint64_t position() const { return position_; }
  bool idle() const { return pieces_.empty(); }
  const RingMemory& memory() const { return memory_; }

 private:
  RingMemory memory_;
  uint64_t position_ = 0;
  uint64_t given_back_ = 0;
  std::deque<Piece> pieces_;  // in flight; references stay valid while only its ends change
};

class ReceiveRing {
 public:
  explicit ReceiveRing(size_t size) : memory_(size) {}

  // Where a piece is to be written; null: it breaks the rules, the sender is not one of ours. landed() says
  // that the bytes are there. Pieces may come in any order.
  std::byte* expect(uint64_t position, size_t length);
  void landed(uint64_t position);

  std::span<const std::byte> arrived() const;
  void take(size_t bytes);  // the first of what has arrived

  uint64_t taken() const { return begin_ + (offset_ & ~(kAlignment - 1)); }
  // Everything up to that position has landed.
  bool has_all(uint64_t position) const;
  const RingMemory& memory() const { return memory_; }

 private:
  struct Piece {
    size_t length;
    bool landed;
  };
  RingMemory memory_;
  uint64_t begin_ = 0;  // of the first piece not wholly taken
  size_t offset_ = 0;   // bytes of it that were taken
  std::map<uint64_t, Piece> pieces_;
};

}  // namespace pycoll::ucx
