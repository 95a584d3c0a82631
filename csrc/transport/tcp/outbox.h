// Bytes that wait for a socket to take them.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace pycoll::tcp {

class Outbox {
 public:
  bool empty() const { return begin_ == bytes_.size(); }
  std::span<const std::byte> waiting() const { return std::span(bytes_).subspan(begin_); }
  void add(std::span<const std::byte> bytes) {
    if (begin_ > bytes_.size() / 2) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
      begin_ = 0;
    }
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void gone(size_t bytes) {
    begin_ += bytes;
    if (empty()) clear();
  }
  void clear() {
    bytes_.clear();
    begin_ = 0;
    if (bytes_.capacity() > kKept) bytes_.shrink_to_fit();
  }
  size_t memory() const { return bytes_.capacity(); }

 private:
  static constexpr size_t kKept = 128 << 10;
  std::vector<std::byte> bytes_;
  size_t begin_ = 0;
};

}  // namespace pycoll::tcp
