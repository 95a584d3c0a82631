// The sender's half of point to point. A message goes, by what its length and the room in the arena allow,
//   in its descriptor                       (complete at once),
//   in a buffer of the arena                (complete at once),
//   streaming through a buffer of the arena (complete when the receiver has taken all but the last buffer),
//   or from the user's own shared buffer       (complete when the receiver has copied it).
// Called under the mover's lock.
#pragma once
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>

#include "engine/message_work.h"
#include "transport/shm/messages.h"

namespace pycoll {

class Outbox {
 public:
  Outbox(shm::Group& group, shm::MessageRings& rings, MessageWorks& works);

  // `shared`: where the data lies in this rank's heap, length 0 when it does not.
  void post(MessageWorkPtr work, const shm::HeapRange& shared);
  bool progress();  // true: something moved
  void wanted(uint64_t id);
  void taken(uint64_t id);
  void forget(int destination);  // it is gone, and its works have ended
  void forget_all();

  size_t arena_bytes() const { return arena_.touched(); }
  void trim() { arena_.trim(); }

 private:
  struct Sending {
    MessageWorkPtr work;
    shm::HeapRange shared;
    shm::MessageBuffer* buffer = nullptr;
    uint64_t offset = 0;    // of the buffer in the arena
    uint64_t capacity = 0;  // of the buffer
    uint64_t written = 0;
  };
  struct Unconsumed {
    shm::MessageBuffer* buffer;
    uint64_t offset;
    uint64_t capacity;
    uint64_t bytes;  // of the message
  };
  struct Destination {
    std::deque<Sending> queued;  // the ring was full
    std::deque<Unconsumed> unconsumed;
    uint64_t consumed = 0;  // by the receiver's count, at the last look
  };

  bool start(Sending& sending);
  void attach(Sending& sending, uint64_t offset);
  bool write_some(Sending& sending);
  bool over(const Sending& sending) const;
  void finish(Sending& sending);
  std::optional<uint64_t> allocate(size_t payload);
  void reclaim(Destination& destination, bool out_of_order);
  void free(const Unconsumed& one) { arena_.free(one.offset, one.capacity); }
  bool grant();
  Destination& to(const Sending& sending) {
    return destinations_[static_cast<size_t>(sending.work->request.peer)];
  }

  shm::Group& group_;
  shm::MessageRings& rings_;
  MessageWorks& works_;
  shm::MessageArena arena_;
  std::vector<Destination> destinations_;
  std::list<Sending> streaming_;
  std::unordered_map<uint64_t, Sending> unanswered_;    // announced or lent, by id
  std::deque<std::pair<uint64_t, Sending>> ungranted_;  // wanted by the receiver, with no buffer yet
  uint64_t next_id_ = 1;
};

}  // namespace pycoll
