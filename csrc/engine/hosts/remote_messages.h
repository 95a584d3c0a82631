// Point to point with ranks of other hosts: both halves of it, over a network of its own. Matching is the
// inbox's, which knows one order for all sources.
//
// Short messages travel eagerly, as long as what their receiver has not received stays within a credit, and
// are complete at once. Others are announced; the receiver grants them when a receive matches, and then they
// go over the stream, in fragments in turn. Whoever granted takes what comes, so nothing that waits to be
// received ever stands in the way of anything else.
// Called under the mover's lock, but for sleep().
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/inbox.h"
#include "engine/message_peers.h"
#include "engine/message_work.h"
#include "transport/network.h"
#include "transport/shm/bell.h"

namespace pycoll {

class RemoteMessages final : public Elsewhere {
 public:
  RemoteMessages(shm::Group& group, const MessagePeers& peers, MessageWorks& works, Inbox& inbox,
                 std::unique_ptr<Network> network);

  void post(MessageWorkPtr send);
  bool progress();  // true: something moved

  // Until progress() has something to do, the bell is rung, or the time is over.
  bool arm() { return network_->arm(); }
  void sleep(std::chrono::microseconds at_most);

  void deliver(MessageWorkPtr work, int source, const shm::Message& message) override;
  void refuse(int source, const shm::Message& message) override;

  // Whom a receive from any rank was matched with, if it was.
  std::optional<int> source_of(const MessageWork& work) const;
  // From now on it is noticed when that peer is lost.
  void watch(int peer) { network_->watch(peers_.number(peer)); }
  bool gone(int peer) const;
  std::string fate(int peer) const;  // of one that is gone: "has left the group", "is lost: ..."
  void drain(int peer);              // takes all that came from one that is gone
  void forget(int peer);             // it is gone, and its works have ended
  void forget_all();

  void leave() { network_->leave(); }
  bool flushed() const { return network_->flushed(); }
  void poll_only();                   // after leave(): what is to go goes, what comes is dropped
  void close() { network_.reset(); }  // who wants to connect finds nobody; nothing else is called after it
  void ring() { shm::ring_bell(bell_.name().c_str()); }  // wakes who sleeps

  size_t bytes() const { return network_ ? network_->memory_bytes() + held_bytes_ : 0; }

 private:
  struct Note;
  struct Granted {
    uint64_t id;
    MessageWorkPtr work;
    uint64_t sent = 0;
  };
  struct Destination {
    uint64_t unreceived = 0;      // of eager messages, as credit counts
    std::deque<Granted> granted;  // the first is on its way, with the rest of its fragment to go
    std::vector<std::byte> head;  // of that fragment: what has not gone of it
    uint64_t fragment = 0;
  };
  struct Receiving {
    MessageWorkPtr work;
    uint64_t bytes = 0;
    uint64_t came = 0;
  };
  struct Source {
    std::unordered_map<uint64_t, Receiving> receiving;  // granted, by the sender's id
    std::vector<std::byte> head;                        // of the fragment that comes: what came of it
    uint64_t id = 0;
    uint64_t fragment = 0;  // bytes that are still to come of it
    uint64_t owed = 0;      // credit not yet given back
  };
  using Held = std::map<std::pair<int, uint64_t>, std::vector<std::byte>>;

  void heed(int number, std::span<const std::byte> bytes);
  void eager_came(int source, const Note& note, std::span<const std::byte> payload);
  void give_back(int source, uint64_t bytes);
  bool send_some(int destination, Destination& to);
  bool receive_some(int source, Source& from);
  void take(int source, Source& from, std::span<const std::byte> bytes);
  void tell(int peer, const Note& note, std::span<const std::byte> payload = {});

  const MessagePeers& peers_;
  MessageWorks& works_;
  Inbox& inbox_;
  shm::Bell bell_;
  std::unique_ptr<Network> network_;
  uint64_t credit_;  // bytes a pair of ranks
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, MessageWorkPtr> announced_;
  std::map<int, Destination> destinations_;  // by peer, those that were sent to
  std::map<int, Source> sources_;            // by peer, those that sent
  std::span<const std::byte> arriving_;      // the payload of the eager message that the inbox is told of
  bool arriving_taken_ = false;
  uint64_t next_held_ = 1;
  Held held_;  // eager messages that nobody has received: by peer and number
  size_t held_bytes_ = 0;
};

}  // namespace pycoll
