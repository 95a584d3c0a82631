// Eight threads of a rank, each with four groups of its own that overlap, and on each group hundreds of
// operations of every kind; every result is checked.
#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "collective_model.h"
#include "message_model.h"
#include "thread_ranks.h"

namespace pycoll::test {
namespace {

constexpr int kRanks = 3;
constexpr int kThreads = 8;
const std::array<std::vector<int>, 4> kMembers{
    {{0, 1}, {1, 2}, {0, 2}, {0, 1, 2}}};  // of each thread's groups

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather,
    CollectiveKind::Broadcast, CollectiveKind::Reduce,        CollectiveKind::Gather,
    CollectiveKind::Scatter,   CollectiveKind::AllToAll,      CollectiveKind::Barrier,
};

// An operation under way on a group: a collective, or a message to the next rank with one from the last.
struct Operation {
  std::unique_ptr<Exchange> exchange;
  Bytes sent, received, expected;
  std::vector<std::shared_ptr<Work>> works;

  void finish(const std::string& what) {
    for (const auto& work : works) work->wait();
    check(exchange ? exchange->right() : received == expected, what);
  }
};

Operation begin(Communicator& group, std::mt19937& dice, int step) {
  constexpr size_t kCounts[] = {0, 1, 3, 100, 5000};
  const int rank = group.rank(), ranks = group.ranks();
  const size_t kind = dice() % (std::size(kKinds) + 1);
  const size_t count = kCounts[dice() % std::size(kCounts)];
  const bool waits = dice() % 2 == 0;
  Operation operation;
  if (kind == std::size(kKinds)) {
    const auto seed = [&](int from) { return static_cast<uint64_t>(step * kRanks + from); };
    const int before = (rank + ranks - 1) % ranks;
    operation.sent = message(count, seed(rank));
    operation.expected = message(count, seed(before));
    operation.received.resize(count);
    const auto tag = static_cast<uint64_t>(step % 3);
    operation.works.push_back(group.send(operation.sent.data(), count, (rank + 1) % ranks, tag));
    operation.works.push_back(group.recv(operation.received.data(), count, before, tag));
    return operation;
  }
  operation.exchange =
      std::make_unique<Exchange>(kKinds[kind], rank, ranks, count, step % ranks, Op::Sum, step);
  if (waits)
    group.run(operation.exchange->call);
  else
    operation.works.push_back(group.submit(operation.exchange->call));
  return operation;
}

// One thread of one rank. `groups`: null where this rank is no member.
void work(int number, const std::array<std::shared_ptr<Communicator>, 4>& groups, int operations) {
  std::mt19937 dice(static_cast<unsigned>(number));  // the same on all ranks
  std::vector<std::pair<Operation, std::string>> pending;
  const auto finish = [&] {
    for (auto& [operation, what] : pending) operation.finish(what);
    pending.clear();
  };
  for (int step = 0; step < operations * static_cast<int>(groups.size()); ++step) {
    const size_t which = dice() % groups.size();
    std::mt19937 own(dice());
    const bool flush = dice() % 4 == 0;
    if (!groups[which]) continue;
    pending.emplace_back(begin(*groups[which], own, step), "thread " + std::to_string(number) + ", step " +
                                                               std::to_string(step) + ", group " +
                                                               std::to_string(which));
    if (flush) finish();
  }
  finish();
}

void threads_and_overlapping_groups(int operations) {
  std::vector<std::unique_ptr<Meeting>> meetings;  // of thread t and its group g: 4 t + g
  for (int i = 0; i < kThreads; ++i)
    for (const auto& members : kMembers)
      meetings.push_back(std::make_unique<Meeting>(static_cast<int>(members.size())));
  std::vector<std::string> errors(static_cast<size_t>(kRanks) * kThreads);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int number = 0; number < kThreads; ++number) {
      threads.emplace_back([&, rank, number] {
        std::array<std::shared_ptr<Communicator>, 4> groups;
        try {
          for (size_t g = 0; g < groups.size(); ++g) {
            const auto& members = kMembers[g];
            const auto me = std::find(members.begin(), members.end(), rank);
            if (me == members.end()) continue;
            const auto place = static_cast<int>(me - members.begin());
            CommunicatorOptions options{.group = std::to_string(number) + "/" + std::to_string(g),
                                        .timeout = std::chrono::seconds(120)};
            Meeting& meeting = *meetings[static_cast<size_t>(number) * groups.size() + g];
            groups[g] = Communicator::create(
                place, static_cast<int>(members.size()),
                [&](const std::string& mine) { return meeting.all_gather(place, mine); }, options);
          }
          work(number, groups, operations);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank * kThreads + number)] = error.what();
        }
        for (const auto& group : groups)
          if (group) group->close();
      });
    }
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) check(error.empty(), error);
}

}  // namespace
}  // namespace pycoll::test

int main(int count, char** words) {
  using namespace pycoll::test;
  const int operations = count > 1 ? std::atoi(words[1]) : 500;  // on each group
  run("threads and overlapping groups", [&] { threads_and_overlapping_groups(operations); });
  return result();
}
