// The body of the kernel of messages on threads of the host: many ranks, sizes around every boundary, buffers
// of every alignment, calls in any order of channels that follow each other without a pause.
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "cuda/messages.h"
#include "cuda_host_context.h"
#include "cuda_machine.h"

namespace {

using namespace pycoll;
using namespace pycoll::cuda;
using namespace pycoll::test;

constexpr uint64_t kCell = MessageLayout::kCellBytes;
constexpr uint64_t kLane = MessageLayout::kLaneBytes;

class Ranks {
 public:
  Ranks(int ranks, int lanes) : layout{ranks, lanes, lanes}, reports(static_cast<size_t>(ranks * ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      memory_.emplace_back(layout.bytes() / sizeof(Packet) + 1);
      heaps_.push_back(reinterpret_cast<char*>(memory_.back().data()));
    }
  }

  // One rank's kernel: its blocks, of `threads` threads each.
  bool run(int rank, const std::vector<Message>& messages, int threads, std::atomic<bool>& aborted) {
    const MessageCall call = message_call(layout, heaps_.data(),
                                          &reports[static_cast<size_t>(rank * layout.ranks)], rank, messages);
    const int blocks = call.channels * call.lanes;
    std::vector<std::unique_ptr<BlockBarrier>> barriers;
    for (int block = 0; block < blocks; ++block) barriers.push_back(std::make_unique<BlockBarrier>(threads));
    std::atomic<bool> fine = true;
    std::vector<std::thread> running;
    for (int block = 0; block < blocks; ++block)
      for (int thread = 0; thread < threads; ++thread)
        running.emplace_back([&, block, thread] {
          HostContext context(thread, threads, block, blocks, *barriers[static_cast<size_t>(block)], aborted);
          if (!run_messages(context, call)) fine = false;
        });
    for (auto& thread : running) thread.join();
    return fine;
  }

  const MessageLayout layout;
  std::vector<MessageReport> reports;  // by receiver and sender

 private:
  std::vector<std::vector<Packet>> memory_;
  std::vector<char*> heaps_;
};

struct Buffer {
  std::vector<char> bytes;
  size_t shift;
  char* data() { return bytes.data() + shift; }
};

char byte_of(int from, int to, int number, uint64_t at) {
  return static_cast<char>(from * 31 + to * 17 + number * 7 + static_cast<int>(at % 251));
}

// Every rank sends every other several messages in each of several calls, all in an order of its own.
void exchange_of(int ranks, int lanes, int threads, unsigned seed) {
  const uint64_t sizes[] = {0,
                            1,
                            3,
                            16,
                            kLane - 1,
                            kLane + 1,
                            kCell - 1,
                            kCell + 4,
                            2 * kCell + 5,
                            5 * kCell * static_cast<uint64_t>(lanes) + 3};
  Ranks group(ranks, lanes);
  constexpr int kCalls = 3, kEach = 2;
  const auto size_of_message = [&](int from, int to, int number) {
    return sizes[static_cast<size_t>(from * 5 + to * 3 + number + static_cast<int>(seed)) % std::size(sizes)];
  };
  std::atomic<bool> aborted = false;
  std::vector<std::string> wrong(static_cast<size_t>(ranks));
  std::vector<std::thread> running;
  for (int rank = 0; rank < ranks; ++rank)
    running.emplace_back([&, rank] {
      std::mt19937 random(seed * 100 + static_cast<unsigned>(rank));
      for (int called = 0; called < kCalls; ++called) {
        std::vector<std::vector<Message>> channels;
        std::vector<std::unique_ptr<Buffer>> kept;
        std::vector<std::function<bool()>> checks;
        for (int peer = 0; peer < ranks; ++peer)
          for (int sends = 0; sends < 2 && peer != rank; ++sends) {
            auto& channel = channels.emplace_back();
            for (int i = 0; i < kEach; ++i) {
              const int number = called * kEach + i, from = sends ? rank : peer, to = sends ? peer : rank;
              const uint64_t bytes = size_of_message(from, to, number);
              auto buffer = std::make_unique<Buffer>();
              buffer->shift = random() % 3 * 4 + random() % 2;
              buffer->bytes.resize(bytes + 16);
              char* const data = buffer->data();
              for (uint64_t at = 0; sends && at < bytes; ++at) data[at] = byte_of(from, to, number, at);
              if (!sends)
                checks.push_back([=] {
                  for (uint64_t at = 0; at < bytes; ++at)
                    if (data[at] != byte_of(from, to, number, at)) return false;
                  return true;
                });
              channel.push_back({data, bytes, static_cast<uint64_t>(number), peer, sends});
              kept.push_back(std::move(buffer));
            }
          }
        // Channels in any order; within one as they are.
        std::vector<Message> messages;
        std::vector<size_t> next(channels.size(), 0);
        while (messages.size() < channels.size() * kEach) {
          const size_t channel = random() % channels.size();
          if (next[channel] < kEach) messages.push_back(channels[channel][next[channel]++]);
        }
        if (!group.run(rank, messages, threads, aborted)) wrong[static_cast<size_t>(rank)] += " was stopped";
        for (const auto& right : checks)
          if (!right()) wrong[static_cast<size_t>(rank)] += " got other bytes";
      }
    });
  for (auto& thread : running) thread.join();
  for (int rank = 0; rank < ranks; ++rank)
    check(wrong[static_cast<size_t>(rank)].empty(),
          std::to_string(ranks) + " ranks, " + std::to_string(lanes) + " lanes: rank " +
              std::to_string(rank) + wrong[static_cast<size_t>(rank)]);
}

void exchanges() {
  for (unsigned seed = 0; seed < 3; ++seed) {
    exchange_of(2, 8, 1, seed);
    exchange_of(2, 3, 2, seed);
    exchange_of(3, 2, 2, seed);
    exchange_of(5, 1, 1, seed);
  }
}

// Runs rank 0's and rank 1's messages; rank 1's is ended by an abort when rank 0's has ended.
void pair_of(Ranks& group, const Message& received, const Message& sent) {
  std::atomic<bool> aborted = false, never = false;
  std::thread sender([&] { group.run(1, {sent}, 1, aborted); });
  check(!group.run(0, {received}, 1, never), "a message that is not as expected ends the receiver");
  aborted = true;
  sender.join();
}

void disagreements() {
  std::vector<char> here(4 * kCell), there(5 * kCell);  // 300,000 bytes and more
  Ranks group(2, 2);
  pair_of(group, {here.data(), 100, 0, 1, 0}, {there.data(), 300000, 0, 0, 1});
  const MessageReport& report = group.reports[1];
  check(report.wrong == 1 && report.bytes == 300000 && report.expected_bytes == 100, "both lengths are told");
  check(text_of(report, 1).find("300000 bytes, and 100 were expected") != std::string::npos, "in words");
  Ranks another(2, 2);
  pair_of(another, {here.data(), 8, 5, 1, 0}, {there.data(), 8, 6, 0, 1});
  check(text_of(another.reports[1], 1).find("it has tag 6, and tag 5 was expected") != std::string::npos,
        "both tags are told");
}

void an_abort_ends_all_waits() {
  Ranks group(2, 2);
  std::vector<char> data(20 * kCell);
  for (const int32_t sends : {0, 1}) {
    std::atomic<bool> aborted = false;
    std::thread rank([&] {
      check(!group.run(0, {{data.data(), data.size(), 0, 1, sends}}, 2, aborted), "the kernel says so");
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    aborted = true;
    rank.join();
  }
}

void refusals() {
  const MessageLayout layout = MessageLayout::of(4);
  const auto refused = [&](const std::vector<Message>& messages, const std::string& words) {
    try {
      message_call(layout, nullptr, nullptr, 1, messages);
    } catch (const InvalidArgument& error) {
      check(std::string(error.what()).find(words) != std::string::npos, words);
      return;
    }
    check(false, "refused: " + words);
  };
  refused({{nullptr, 1, 0, 1, 1}}, "rank 1 of 4 has no messages with rank 1");
  refused({{nullptr, 1, 0, 4, 0}}, "no messages with rank 4");
  refused(std::vector<Message>(kMostMessages + 1, Message{nullptr, 1, 0, 0, 1}), "takes 64 messages, not 65");
  check(
      MessageLayout::of(2).lanes == 8 && MessageLayout::of(16).lanes == 4 && MessageLayout::of(64).lanes == 1,
      "lanes");
}

}  // namespace

int main() {
  test::run("exchanges", exchanges);
  test::run("disagreements", disagreements);
  test::run("an abort ends all waits", an_abort_ends_all_waits);
  test::run("refusals", refusals);
  return test::result();
}
