// What lies where in a group's shared segment. One anonymous file a group:
//
//   [0, page)                     GroupControl
//   [page + r*stride, ...)        rank r: RankControl, channel counters, message rings, small slots, staging
//   ring,
//                                 what the other hosts said, channels
//   [(r+1) << 40, (r+2) << 40)    rank r's heap: a sparse terabyte for Communicator::allocate; its last 16
//   MiB are the
//                                 arena of its messages
//
// The file is sparse, so what is never touched costs nothing.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "reduce/dtype.h"
#include "reduce/reduce.h"
#include "schedule/collective.h"

namespace pycoll::shm {

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kPage = 4096;
inline constexpr size_t kInlinePayload = 40;     // beside the sequence number, in one cache line
inline constexpr size_t kSmallSlot = 16 << 10;   // two a rank, by parity of the sequence number
inline constexpr size_t kStagingRing = 2 << 20;  // a rank; chunks of the direct path
inline constexpr size_t kChannelArea = 1 << 20;  // a rank; its outgoing channels share it
inline constexpr size_t kGathered = 1 << 20;     // a rank; what a host's leader hears from the other hosts
inline constexpr size_t kBellName = 48;
inline constexpr int kHeapShift = 40;
inline constexpr size_t kMessageRings = 64 << 10;  // a rank; its rings of message descriptors share it
inline constexpr size_t kMessageArena = 16 << 20;  // the end of a rank's heap: payloads of messages under way

// Where a buffer lies in its rank's heap; length 0: it does not lie there.
struct HeapRange {
  uint64_t base = 0;  // of the allocation, an offset in the file
  uint64_t length = 0;
  uint64_t offset = 0;  // of the buffer in the allocation
};

// A call as the other ranks see it: enough to tell a mismatch in words, and to reach shared buffers.
struct CallHeader {
  uint64_t sequence = 0;
  uint64_t count = 0;
  uint64_t schedule_hash = 0;  // 0: the direct path
  uint64_t table = 0;          // hash of the decision table
  double factor = 1.0;
  uint64_t parts = 0;  // hash of how the caller divides the buffer; 0: not at all
  HeapRange input;
  HeapRange output;
  int32_t root = 0;
  CollectiveKind kind = CollectiveKind::Barrier;
  DType dtype = DType::UInt8;
  Op op = Op::Sum;
  char algorithm[29] = {};
  char caller[40] = {};       // what the user called, where that has another name
  char first_parts[64] = {};  // the beginning of what `parts` is the hash of
};

// The word every collective starts with. Slot `sequence & 1`: a rank writes sequence s+2 only after all have
// written s+1, hence after all have read s, so two slots need no acknowledgement.
struct alignas(kCacheLine) ArrivalLine {
  std::atomic<uint64_t> sequence;
  uint64_t signature;
  uint64_t ticks;
  std::byte payload[kInlinePayload];
};
static_assert(sizeof(ArrivalLine) == kCacheLine);

struct alignas(kCacheLine) CounterLine {
  std::atomic<uint64_t> value;
};

// A futex to sleep on. A sleeper arms it and takes a last look; who has news rings it, once for all sleepers.
struct Doorbell {
  std::atomic<uint32_t> word;
  std::atomic<uint32_t> armed;  // kOnWord and kInPoll: how those sleep who want to hear of news
};
inline constexpr uint32_t kOnWord = 1;
inline constexpr uint32_t kInPoll = 2;

inline constexpr int32_t kNobody = 0;
inline constexpr int32_t kAnyone = -1;    // a change by any rank may end the wait
inline constexpr int32_t kEveryone = -2;  // only the last rank to arrive ends it
// kElsewhere - r: rank r of the group, which is on another host; any rank of this one may help to end the
// wait
inline constexpr int32_t kElsewhere = -1000;

enum class Sleep : uint32_t { Awake, OnDoorbell, InPoll };

// How an AllReduce whose last rank may be late goes, said by whoever finds out first. Each word holds a
// sequence number in its upper bits, so that none need be reset.
struct alignas(kCacheLine) EarlyStart {
  static constexpr int kShift = 24;  // of the sequence number
  std::atomic<uint64_t> decision;    // 1: all together; 2 + r: without rank r, which is late
  std::atomic<uint64_t> open;        // chunks that the early ranks may reduce
  std::atomic<uint64_t> cut;         // 1 + that number at the time the late rank came
};

enum class RankState : uint32_t { Absent, Alive, Left, Dead };

struct RankControl {
  // Held by a thread of the rank for as long as the group lives. Robust: when the process dies the kernel
  // marks it, and the next rank that tries it knows. No socket or pid is watched, so forked children and
  // containers change nothing.
  alignas(kCacheLine) pthread_mutex_t alive;
  alignas(kCacheLine) std::atomic<RankState> state;
  int32_t pid;
  alignas(kCacheLine) std::atomic<uint32_t> doorbell;  // futex
  std::atomic<Sleep> sleeping;
  // rank + 1, kNobody, kAnyone, kEveryone or kElsewhere: who need not ring, and who is to blame
  std::atomic<int32_t> waiting_for;
  ArrivalLine arrival[2];
  alignas(kCacheLine) CallHeader header[2];
  CounterLine published;   // staging ring, in bytes since the group began: written up to here
  CounterLine reduced;     // own slice reduced up to here
  CounterLine consumed;    // all that this rank reads of the others' rings is read up to here
  CounterLine finished;    // sequence number of the last zero-copy collective done with others' buffers
  CounterLine gathered;    // sequence number up to which the leader has put down what other hosts' ranks said
  CounterLine claimed[2];  // rank 0's only: zero-copy pieces handed out / completed, by parity
  CounterLine completed[2];
  EarlyStart early[2];  // rank 0's only, by parity
  // Point to point, whose threads are others than those of collectives.
  alignas(kCacheLine) Doorbell message_waiters;  // threads that wait for a message of theirs
  char bell[kBellName];                          // name of the socket that wakes it InPoll
  Doorbell message_keeper;                       // the thread that moves messages while nobody waits
  char message_bell[kBellName];                  // name of the socket that wakes whichever is kInPoll
  std::atomic<uint32_t> messages_closed;         // what this rank lent to others is no longer valid
};

enum class FailureState : uint32_t { None, Writing, Set };
enum class FailureKind : uint32_t { PeerLost, Timeout, Aborted };

struct GroupControl {
  std::atomic<FailureState> failure;
  FailureKind failure_kind;
  int32_t failure_reporter;  // its number in the group
  char failure_text[1024];
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;  // ranks asleep on their doorbell
};
static_assert(sizeof(GroupControl) <= kPage);

// A byte stream from one rank to another: two counters, and a ring in the sender's area.
struct ChannelCounters {
  CounterLine written;
  CounterLine read;
};

// Point to point: each ordered pair of ranks has a ring of descriptors in the sender's area.
enum class MessageKind : uint32_t {
  Inline,     // the payload is in the descriptor
  Buffered,   // the payload is in, or streams through, a buffer of the sender's arena
  Announced,  // the payload waits at the sender, whose arena is full, for Wanted
  Lent,       // the payload is in a shared buffer of the sender's user, who waits for Taken
  Wanted,     // answers Announced: the message has a receive
  Granted,    // answers Wanted: as Buffered
  Taken,      // answers Announced and Lent: the sender is done with the message
};

inline constexpr size_t kInlineMessage = 32;

struct Message {
  MessageKind kind = MessageKind::Inline;
  uint32_t reserved = 0;
  uint64_t tag = 0;
  uint64_t bytes = 0;
  std::byte body[kInlineMessage] = {};  // the payload, or a MessagePlace
};

struct MessagePlace {
  uint64_t id = 0;  // the sender's, of messages that are answered
  HeapRange
      range;  // Lent: of the user's buffer. Buffered, Granted: base in the arena, length without the head
};
static_assert(sizeof(MessagePlace) == kInlineMessage);

struct alignas(kCacheLine) MessageSlot {
  std::atomic<uint64_t> turn;  // position in the ring + 1, once the message is there
  Message message;
};
static_assert(sizeof(MessageSlot) == kCacheLine);

// Both written by the receiver.
struct alignas(kCacheLine) MessageCounters {
  std::atomic<uint64_t> read;      // slots
  std::atomic<uint64_t> consumed;  // buffers of the arena
};

// Head of a buffer in the arena. The payload behind it is a ring where the message is longer.
struct MessageBuffer {
  CounterLine written;  // bytes
  CounterLine read;     // bytes; all of the message at once where the receiver wants no more of it
};

struct Layout {
  explicit Layout(int ranks);
  int ranks;
  size_t channel_bytes;  // capacity of one channel
  size_t channels_at;    // offsets within a rank's area
  size_t message_slots;  // of a message ring, a power of two
  size_t messages_at;
  size_t small_at;
  size_t staging_at;
  size_t gathered_at;
  size_t channel_data_at;
  size_t stride;  // of a rank's area
  size_t total() const { return kPage + stride * static_cast<size_t>(ranks); }
  size_t rank_at(int rank) const { return kPage + stride * static_cast<size_t>(rank); }
  size_t message_ring_bytes() const { return sizeof(MessageCounters) + message_slots * sizeof(MessageSlot); }
  uint64_t arena_at(int rank) const {
    return (static_cast<uint64_t>(rank + 2) << kHeapShift) - kMessageArena;
  }
};

}  // namespace pycoll::shm
