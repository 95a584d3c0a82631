// The receiver's half of point to point: matches messages with receives, by (source or any, tag) in order of
// posting, and copies those of this host's ranks. Sources are numbered as MessagePeers has them. Called under
// the mover's lock.
#pragma once
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "engine/message_peers.h"
#include "engine/message_work.h"
#include "transport/shm/messages.h"

namespace pycoll {

// Where messages come from that do not come through this host's memory.
class Elsewhere {
 public:
  virtual ~Elsewhere() = default;
  // The message was matched with a receive whose buffer is long enough: to be received into it.
  virtual void deliver(MessageWorkPtr work, int source, const shm::Message& message) = 0;
  virtual void refuse(int source, const shm::Message& message) = 0;  // it is dropped
};

class Inbox {
 public:
  Inbox(shm::Group& group, const MessagePeers& peers, shm::MessageRings& rings, MessageWorks& works);
  void take_from_elsewhere(Elsewhere& elsewhere) { elsewhere_ = &elsewhere; }

  void post(MessageWorkPtr work);
  void arrived(int source, const shm::Message& message);
  void granted(int source, const shm::Message& message);
  bool progress();  // true: something moved

  // Whom the receive depends on: the source it named or was matched with; -1: any rank.
  int source_of(const MessageWork& work) const;
  // Whether all of the message is in shared memory, where it outlives its sender.
  bool safe(const MessageWork& work) const;
  void forget(const MessageWork& work);  // it has ended
  void forget_all();
  void complete(MessageWork& work, int source);

 private:
  using Key = std::pair<int, uint64_t>;  // source or -1, tag
  struct Posted {
    uint64_t order;
    MessageWorkPtr work;
  };
  struct Unexpected {
    uint64_t order;
    int source;
    shm::Message message;
  };
  struct Receiving {
    MessageWorkPtr work;
    int source = -1;
    uint64_t bytes = 0;
    uint64_t id = 0;                       // of an announced or lent message
    shm::MessageBuffer* buffer = nullptr;  // null: not granted yet, or lent
    const std::byte* data = nullptr;       // null: not granted yet
    uint64_t capacity = 0;
    uint64_t copied = 0;
  };

  std::optional<Posted> take_posted(int source, uint64_t tag);
  std::optional<Unexpected> take_unexpected(int source, uint64_t tag);
  void deliver(MessageWorkPtr work, int source, const shm::Message& message);
  void refuse(MessageWork& work, int source, const shm::Message& message);
  void begin(Receiving receiving);
  void attach(Receiving& receiving, const shm::MessagePlace& place);
  bool read_some(Receiving& receiving);
  void finish(Receiving& receiving);

  shm::Group& group_;
  const MessagePeers& peers_;
  Elsewhere* elsewhere_ = nullptr;
  shm::MessageRings& rings_;
  MessageWorks& works_;
  uint64_t next_order_ = 0;
  std::map<Key, std::deque<Posted>> posted_;
  std::map<Key, std::deque<Unexpected>> unexpected_;
  std::list<Receiving> receiving_;
};

}  // namespace pycoll
