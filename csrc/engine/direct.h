// The direct path: on one host every rank can read what every other rank publishes, so no schedule of hops is
// needed.
//   up to 40 bytes   the payload rides in the arrival line itself: one cache line a rank, one synchronisation
//   up to 16 KiB     the payload lies in a small slot, published by the arrival line: one synchronisation
//   above            chunks through a ring of shared memory, staging and reading overlapped
//   from 4 MiB on    an AllReduce does not wait for a rank that is late: direct_late.cpp
//   shared buffers   the others' buffers are read (and for allreduce written) where they are
// All summands of an element are added in rank order in one pass, whatever the size: the same bits always,
// but where a rank was late.
#pragma once
#include <span>
#include <vector>

#include "engine/arrivals.h"
#include "engine/communicator.h"
#include "engine/early_gain.h"
#include "engine/roles.h"
#include "engine/store_choice.h"
#include "transport/shm/group.h"

namespace pycoll {

class Direct {
 public:
  // `fixed_order`: nothing begins before all ranks are there.
  Direct(shm::Group& group, Arrivals& arrivals, EarlyGain& gain, bool fixed_order);

  // Puts a payload that fits into the place from which `finish` on the other ranks takes it. Before the
  // announcement.
  void prepare(const CollectiveCall& call, uint64_t sequence);
  // After the match: moves whatever is left to move and writes the output.
  void finish(const CollectiveCall& call, shm::Operation& operation);

  // Whether the call is one that may begin before its last rank is there; the same on all ranks whose calls
  // fit each other.
  bool may_begin_early(const CollectiveCall& call) const;
  // Such a call after its announcement, from the wait for the others on. Returns what the ranks met with,
  // whose signature says whether the calls fit; if not the output is not what it was before, where some began
  // early.
  Arrivals::Met run_from_arrival(const CollectiveCall& call, shm::Operation& operation,
                                 std::span<uint64_t> log, bool look_at_clock);

 private:
  // Few hand-overs where ranks share processors; else what measures best with and without a shared cache.
  size_t chunk_bytes() const { return group_.more_ranks_than_processors() ? 512 << 10 : 128 << 10; }
  bool fits_payload(const CollectiveCall& call, const Role& role) const;
  Stage whole(const CollectiveCall& call, const Role& role) const;
  std::byte* payload_of(int rank, uint64_t sequence, const CollectiveCall& call, const Role& role) const;

  void pipeline(const CollectiveCall& call, const Role& role, shm::Operation& operation);
  // Chunks [first, end) of a buffer, among `members`; `may_stage`, asked before each chunk, says whether it
  // is still to be done. Returns how many were.
  size_t pipeline_two_shot(const CollectiveCall& call, shm::Operation& operation,
                           std::span<const int> members, size_t first, size_t end,
                           FunctionRef<bool(size_t chunk)> may_stage);
  size_t chunks_of(const CollectiveCall& call) const {
    return (share_bytes(call) + chunk_bytes() - 1) / chunk_bytes();
  }
  int late_rank(const CollectiveCall& call, shm::Operation& operation);
  size_t reduce_early(const CollectiveCall& call, shm::Operation& operation, int late);
  void skip_early(const CollectiveCall& call, size_t chunks);
  void add_late(const CollectiveCall& call, shm::Operation& operation, int late, size_t chunks);
  bool zero_copy(const CollectiveCall& call, const Role& role, shm::Operation& operation);
  void zero_copy_allreduce(const CollectiveCall& call, shm::Operation& operation);
  std::byte* shared_buffer(const shm::HeapRange& range) const;

  // Staging ring: all ranks advance through it alike.
  uint64_t advance(size_t bytes);
  uint64_t reserve(size_t bytes, shm::Operation& operation, std::span<const int> members = {});
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
  std::vector<int> everybody_;
  // Of calls that begin before the last rank is there.
  EarlyGain& gain_;
  bool fixed_order_;
  std::vector<int> early_;
  uint64_t since_ = 0;  // position_ where the early ranks began
};

}  // namespace pycoll
