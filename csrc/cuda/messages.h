// Messages from one rank to another. Each pair of ranks has a channel in each direction; a channel has a few
// lanes, each a ring of cells in the receiver's memory, and a block works one lane of one channel. The sender
// stores into the cells and the receiver copies out of its own memory, so both only ever wait for words of
// their own memory. Messages of a channel are matched in their order; each cell says how long its message is
// and what tag it has, so that a receiver finds out where the two sides do not agree.
//
// Blocks of one call wait for other ranks' and never for each other, in whatever order channels are used, as
// long as all of them run at once. Counters are kept in device memory: a replayed graph counts on.
//
// Needs of a Context: slices.h's, and sync(), all(), raise() and await() as interpreter.h has them.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "cuda/layout.h"
#include "cuda/slices.h"

namespace pycoll::cuda {

constexpr int kMostMessages = 64;  // of a call

struct Message {
  char* data;
  uint64_t bytes;
  uint64_t tag;
  int32_t peer;
  int32_t sends;  // 0: it is received
};

// What every rank's memory for messages holds. Offsets are the same on all ranks.
struct MessageLayout {
  static constexpr uint64_t kCells = 4;
  static constexpr size_t kCellBytes = 64 << 10;
  static constexpr size_t kHeader = 16;           // of a cell: length and tag of its message
  static constexpr size_t kLaneBytes = 32 << 10;  // a message of no more takes one lane

  int ranks = 1;
  int lanes = 1;   // of a channel, that there is memory for
  int active = 1;  // and that are used: fewer where ranks share a GPU, on which all blocks must run at once

  static MessageLayout of(int ranks) {
    const int lanes = std::clamp(64 / ranks, 1, 8);
    return {ranks, lanes, lanes};
  }

  // A lane's words: how many cells have arrived and, of those sent to the peer, been taken, which the peer
  // writes; how many this rank has sent and received.
  PYCOLL_BOTH size_t word(int peer, int lane, int which) const {
    return (static_cast<size_t>(peer) * lanes + lane) * 64 + static_cast<size_t>(which) * 8;
  }
  PYCOLL_BOTH size_t cell(int from, int lane, uint64_t index) const {
    const size_t ring = static_cast<size_t>(from) * lanes + lane;
    return static_cast<size_t>(ranks) * lanes * 64 +
           (ring * kCells + index % kCells) * (kHeader + kCellBytes);
  }
  PYCOLL_BOTH size_t bytes() const { return cell(ranks, 0, 0); }
  PYCOLL_BOTH int lanes_of(uint64_t length) const {
    const uint64_t wanted = (length + kLaneBytes - 1) / kLaneBytes;
    return wanted < 1 ? 1 : wanted > static_cast<uint64_t>(active) ? active : static_cast<int>(wanted);
  }
};

enum MessageWord { kArrived, kTaken, kSent, kReceived };

// Of a message that was not what its receiver expected; one a peer, in the host's memory.
struct MessageReport {
  uint64_t wrong;
  uint64_t expected_bytes, expected_tag, bytes, tag;
};

struct MessageCall {
  MessageLayout layout;
  char* const* heaps;  // by rank, as mapped here
  MessageReport* reports;
  int rank;
  int lanes;                          // that any message of the call takes
  int channels;                       // block b is lane b % lanes of channel b / lanes, whose messages are
  int16_t begins[kMostMessages + 1];  // [begins[channel], begins[channel + 1])
  Message messages[kMostMessages];
};

template <class Context>
PYCOLL_BOTH void copy_bytes(Context& context, char* to, const char* from, uint64_t bytes) {
  const uintptr_t both = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (both % 16 == 0) {
    const uint64_t whole = bytes / 16 * 16;
    return copy_slice(context, to, from, Slice{{{whole, bytes}, {bytes, bytes}}, {0, whole}});
  }
  const auto first = static_cast<uint64_t>(context.thread()), step = static_cast<uint64_t>(context.threads());
  const uint64_t words = both % 4 == 0 ? bytes / 4 : 0;
  for (uint64_t i = first; i < words; i += step)
    reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  for (uint64_t i = words * 4 + first; i < bytes; i += step) to[i] = from[i];
}

// One lane's part of one message. `count`: cells of the lane so far.
template <class Context>
struct MessageLane {
  Context& context;
  const MessageCall& call;
  const Message& message;
  int lane;

  PYCOLL_BOTH uint64_t* word(int at, int peer, int which) const {
    return reinterpret_cast<uint64_t*>(call.heaps[at] + call.layout.word(peer, lane, which));
  }
  PYCOLL_BOTH bool await(const uint64_t* flag, uint64_t value) const {
    return context.all(context.thread() != 0 || context.await(flag, value));
  }
  PYCOLL_BOTH Range part() const {
    const Range vectors = part_of((message.bytes + 15) / 16, static_cast<uint64_t>(lane),
                                  static_cast<uint64_t>(call.layout.lanes_of(message.bytes)));
    const uint64_t end = vectors.end * 16;
    return {vectors.begin * 16, end < message.bytes ? end : message.bytes};
  }

  PYCOLL_BOTH bool send(uint64_t& count) const {
    const Range mine = part();
    uint64_t at = mine.begin;
    do {
      const uint64_t taken = count < MessageLayout::kCells ? 0 : count + 1 - MessageLayout::kCells;
      if (!await(word(call.rank, message.peer, kTaken), taken)) return false;
      const uint64_t left = mine.end - at;
      const uint64_t bytes = left < MessageLayout::kCellBytes ? left : MessageLayout::kCellBytes;
      char* const cell = call.heaps[message.peer] + call.layout.cell(call.rank, lane, count);
      if (context.thread() == 0) {
        auto* const header = reinterpret_cast<uint64_t*>(cell);
        header[0] = message.bytes;
        header[1] = message.tag;
      }
      copy_bytes(context, cell + MessageLayout::kHeader, message.data + at, bytes);
      at += bytes;
      ++count;
      context.sync();
      if (context.thread() == 0) context.raise(word(message.peer, call.rank, kArrived), count);
    } while (at < mine.end);
    return true;
  }

  PYCOLL_BOTH bool receive(uint64_t& count) const {
    const Range mine = part();
    uint64_t at = mine.begin;
    do {
      if (!await(word(call.rank, message.peer, kArrived), count + 1)) return false;
      const char* const cell = call.heaps[call.rank] + call.layout.cell(message.peer, lane, count);
      const auto* const header = reinterpret_cast<const uint64_t*>(cell);
      if (header[0] != message.bytes || header[1] != message.tag) {
        if (lane == 0 && context.thread() == 0) complain(header[0], header[1]);
        return false;
      }
      const uint64_t left = mine.end - at;
      const uint64_t bytes = left < MessageLayout::kCellBytes ? left : MessageLayout::kCellBytes;
      copy_bytes(context, message.data + at, cell + MessageLayout::kHeader, bytes);
      at += bytes;
      ++count;
      context.sync();
      if (context.thread() == 0) context.raise(word(message.peer, call.rank, kTaken), count);
    } while (at < mine.end);
    return true;
  }

  PYCOLL_BOTH void complain(uint64_t bytes, uint64_t tag) const {
    MessageReport& report = call.reports[message.peer];
    report.expected_bytes = message.bytes;
    report.expected_tag = message.tag;
    report.bytes = bytes;
    report.tag = tag;
    context.raise(&report.wrong, 1);
  }
};

// False when the group was aborted, or a message was not as expected.
template <class Context>
PYCOLL_BOTH bool run_messages(Context& context, const MessageCall& call) {
  const int channel = context.block() / call.lanes, lane = context.block() % call.lanes;
  if (channel >= call.channels) return true;
  const Message& first = call.messages[call.begins[channel]];
  auto* const counter = reinterpret_cast<uint64_t*>(
      call.heaps[call.rank] + call.layout.word(first.peer, lane, first.sends != 0 ? kSent : kReceived));
  uint64_t count = *counter;
  for (int i = call.begins[channel]; i < call.begins[channel + 1]; ++i) {
    const Message& message = call.messages[i];
    if (lane >= call.layout.lanes_of(message.bytes)) continue;
    const MessageLane<Context> part{context, call, message, lane};
    if (!(message.sends != 0 ? part.send(count) : part.receive(count))) return false;
  }
  context.sync();
  if (context.thread() == 0) *counter = count;
  return true;
}

// A call of messages in the order of their channels. Throws InvalidArgument for what cannot be sent.
inline MessageCall message_call(const MessageLayout& layout, char* const* heaps, MessageReport* reports,
                                int rank, std::span<const Message> messages) {
  if (messages.size() > kMostMessages)
    throw InvalidArgument("a call takes " + std::to_string(kMostMessages) + " messages, not " +
                          std::to_string(messages.size()));
  MessageCall call{};
  call.layout = layout;
  call.heaps = heaps;
  call.reports = reports;
  call.rank = rank;
  call.lanes = 1;
  std::vector<Message> sorted(messages.begin(), messages.end());
  const auto channel_of = [](const Message& message) { return message.peer * 2 + (message.sends != 0); };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Message& a, const Message& b) { return channel_of(a) < channel_of(b); });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Message& message = sorted[i];
    if (message.peer < 0 || message.peer >= layout.ranks || message.peer == rank)
      throw InvalidArgument("rank " + std::to_string(rank) + " of " + std::to_string(layout.ranks) +
                            " has no messages with rank " + std::to_string(message.peer));
    if (i == 0 || channel_of(message) != channel_of(sorted[i - 1]))
      call.begins[call.channels++] = static_cast<int16_t>(i);
    call.messages[i] = message;
    call.lanes = std::max(call.lanes, layout.lanes_of(message.bytes));
  }
  call.begins[call.channels] = static_cast<int16_t>(sorted.size());
  return call;
}

// What a report says, in words.
inline std::string text_of(const MessageReport& report, int peer) {
  std::string text = "what rank " + std::to_string(peer) + " sent is not what was received: ";
  if (report.bytes != report.expected_bytes)
    text += std::to_string(report.bytes) + " bytes, and " + std::to_string(report.expected_bytes) +
            " were expected";
  else
    text += "it has tag " + std::to_string(report.tag) + ", and tag " + std::to_string(report.expected_tag) +
            " was expected";
  return text + ". Messages of CUDA tensors between two ranks are matched in the order of the calls";
}

}  // namespace pycoll::cuda
