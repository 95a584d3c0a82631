#pragma once
#include <vector>

#include "transport/shm/group.h"
#include "transport/transport.h"

namespace pycoll::shm {

// Byte streams through rings in the senders' areas: one writer, one reader, two counters, no lock.
class Channels final : public Transport {
 public:
  Channels(Group& group);

  void begin(Operation& operation) { operation_ = &operation; }

  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.ranks(); }
  size_t send(int destination, std::span<const std::byte> bytes) override;
  std::span<const std::byte> arrived(int source) override;
  void received(int source, size_t bytes) override;
  void align_send(int destination) override;
  void align_receive(int source) override;
  void wait(FunctionRef<bool()> progress, FunctionRef<int()> peer) override;

 private:
  struct End {
    ChannelCounters* counters = nullptr;
    std::byte* ring = nullptr;
    uint64_t position = 0;  // of this side; the counter in shared memory says the same to the other side
  };
  End make_end(int source, int destination) const;

  Group& group_;
  Operation* operation_ = nullptr;
  size_t capacity_;
  std::vector<End> out_;
  std::vector<End> in_;
};

}  // namespace pycoll::shm
