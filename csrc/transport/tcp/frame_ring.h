// Where the frames of one lane wait until they are taken: each in one piece, aligned to 64 bytes, in the
// order in which they came.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <span>

namespace pycoll::tcp {

class FrameRing {
 public:
  static constexpr size_t kAlignment = 64;

  explicit FrameRing(size_t bytes);

  // Makes room for the next frame; false: there is none until more has been taken.
  bool begin(uint64_t number, size_t length);
  std::span<std::byte> missing() const;  // of the frame begun last; empty: it is complete
  void came(size_t bytes);

  bool empty() const { return frames_.empty(); }
  uint64_t first_number() const { return frames_.front().number; }
  std::span<const std::byte> first() const;  // what has come of the first frame and was not taken
  bool take(size_t bytes);                   // true: that was the rest of the first frame
  size_t size() const { return size_; }

 private:
  struct Frame {
    uint64_t number;
    size_t offset;
    size_t length;
    size_t came;
  };
  struct Deleter {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(kAlignment)); }
  };
  size_t size_;
  std::unique_ptr<std::byte[], Deleter> memory_;
  std::deque<Frame> frames_;
  size_t taken_ = 0;  // of the first
};

}  // namespace pycoll::tcp
