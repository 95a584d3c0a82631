// A group whose ranks are threads of this process: many ranks at little cost, and race detectors see all of
// them.
#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/communicator.h"

namespace pycoll::test {

// The bootstrap's all-gather, in memory.
class Meeting {
 public:
  explicit Meeting(int ranks) : messages_(static_cast<size_t>(ranks)), gathered_(messages_) {}

  std::vector<std::string> all_gather(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    messages_[static_cast<size_t>(rank)] = mine;
    if (++arrived_ == messages_.size()) {
      gathered_ = messages_;  // nobody is in this round any more: all have come to the next
      arrived_ = 0;
      ++round_;
      everyone_.notify_all();
    } else if (!everyone_.wait_for(lock, std::chrono::seconds(20), [&] { return round_ != round; })) {
      throw Timeout("rank " + std::to_string(rank) + " met only " + std::to_string(arrived_) + " of " +
                    std::to_string(messages_.size()) + " ranks");
    }
    return gathered_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable everyone_;
  std::vector<std::string> messages_;
  std::vector<std::string> gathered_;
  size_t arrived_ = 0;
  int round_ = 0;
};

inline CommunicatorOptions quick_options() {
  return {.group = "test", .timeout = std::chrono::seconds(20)};
}

// Runs body(communicator) on a thread a rank and closes the communicators. What bodies throw comes out as one
// std::runtime_error that quotes every rank; a test of errors catches them in the body.
// `hosts`, by rank: pretended hosts; empty: all on this one.
template <class Body>
void run_ranks(int ranks, const Body& body, const CommunicatorOptions& options = quick_options(),
               const std::vector<std::string>& hosts = {}) {
  Meeting meeting(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        CommunicatorOptions own = options;
        if (!hosts.empty()) own.host = hosts[static_cast<size_t>(rank)];
        const auto communicator = Communicator::create(
            rank, ranks, [&](const std::string& mine) { return meeting.all_gather(rank, mine); }, own);
        // Closed also when the body throws, so that the others learn of it and end.
        struct Closing {
          Communicator& communicator;
          ~Closing() { communicator.close(); }
        } closing{*communicator};
        body(*communicator);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::string all;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    if (!error.empty()) all += "\n  rank " + std::to_string(rank) + ": " + error;
  }
  if (!all.empty()) throw std::runtime_error(std::to_string(ranks) + " ranks:" + all);
}

}  // namespace pycoll::test
