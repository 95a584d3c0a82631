// The direct path: on one host every rank can read what every other rank publishes, so no schedule of hops is
// needed.
//   up to 40 bytes   the payload rides in the arrival line itself: one cache line a rank, one synchronisation
//   up to 16 KiB     the payload lies in a small slot, published by the arrival line: one synchronisation
//   above            chunks through a ring of shared memory, staging and reading overlapped
//   shared buffers   the others' buffers are read (and for allreduce written) where they are
// All summands of an element are added in rank order in one pass, whatever the size: the same bits always.
#pragma once
#include <vector>

#include "engine/arrivals.h"
#include "engine/communicator.h"
#include "engine/roles.h"
#include "engine/store_choice.h"
#include "transport/shm/group.h"

namespace pycoll {

class Direct {
 public:
  Direct(shm::Group& group, Arrivals& arrivals);

  // Puts a payload that fits into the place from which `finish` on the other ranks takes it. Before the
  // announcement.
  void prepare(const CollectiveCall& call, uint64_t sequence);
  // After the match: moves whatever is left to move and writes the output.
  void finish(const CollectiveCall& call, shm::Operation& operation);

 private:
  // Few hand-overs where ranks share processors; else what measures best with and without a shared cache.
  size_t chunk_bytes() const { return group_.more_ranks_than_processors() ? 512 << 10 : 128 << 10; }
  bool fits_payload(const CollectiveCall& call, const Role& role) const;
  Stage whole(const CollectiveCall& call, const Role& role) const;
  std::byte* payload_of(int rank, uint64_t sequence, const CollectiveCall& call, const Role& role) const;

  void pipeline(const CollectiveCall& call, const Role& role, shm::Operation& operation);
  void pipeline_two_shot(const CollectiveCall& call, shm::Operation& operation);
  bool zero_copy(const CollectiveCall& call, const Role& role, shm::Operation& operation);
  void zero_copy_allreduce(const CollectiveCall& call, shm::Operation& operation);
  std::byte* shared_buffer(const shm::HeapRange& range) const;

  // Staging ring: all ranks advance through it alike.
  uint64_t reserve(size_t bytes, shm::Operation& operation);
  void consume_until(uint64_t position);

  shm::Group& group_;
  Arrivals& arrivals_;
  uint64_t position_ = 0;      // in the ring, in bytes since the group began
  uint64_t all_consumed_ = 0;  // cached minimum of the others' counters
  StoreChoice choice_;         // rank 0's
  Stores stores_ = Stores::Plain;
  Reader reader_;
  std::vector<std::byte*> outputs_;  // by rank: shared output buffers
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

}  // namespace pycoll
