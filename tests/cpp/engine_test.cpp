#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <thread>

#include "algorithms/registry.h"
#include "check.h"
#include "collective_model.h"
#include "thread_ranks.h"

namespace pycoll::test {
namespace {

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather,
    CollectiveKind::Broadcast, CollectiveKind::Reduce,        CollectiveKind::Gather,
    CollectiveKind::Scatter,   CollectiveKind::AllToAll,      CollectiveKind::Barrier,
};

// Around every boundary of the direct path: nothing, the arrival line, the small slot, one chunk, many, the
// ring's length.
constexpr size_t kCounts[] = {0, 1, 3, 10, 11, 100, 4096, 4097, 16384, 40000, 700001};

void every_collective_directly() {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    run_ranks(ranks, [&](Communicator& comm) {
      int salt = 0;
      for (const CollectiveKind kind : kKinds) {
        for (const size_t whole : kCounts) {
          const bool shared_out = kind != CollectiveKind::AllReduce && kind != CollectiveKind::Reduce &&
                                  kind != CollectiveKind::Broadcast;
          const size_t count = shared_out && whole > 1000 ? whole / static_cast<size_t>(ranks) : whole;
          Exchange exchange(kind, comm.rank(), ranks, count, salt % ranks, salt % 3 == 0 ? Op::Avg : Op::Sum,
                            salt);
          comm.run(exchange.call);
          check(exchange.right(), std::string(name_of(kind)) + " of " + std::to_string(count) + ", " +
                                      std::to_string(ranks) + " ranks");
          ++salt;
        }
      }
    });
  }
}

void every_algorithm() {
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    run_ranks(ranks, [&](Communicator& comm) {
      int salt = 0;
      for (const Algorithm& algorithm : algorithms()) {
        if (!algorithm.accepts(ranks)) continue;
        for (const CollectiveKind kind : algorithm.collectives) {
          for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{1000}, size_t{60000}}) {
            for (const Op op : {Op::Sum, Op::Avg}) {
              if (op == Op::Avg && !is_reduction(kind)) continue;
              Exchange exchange(kind, comm.rank(), ranks, count, salt % ranks, op, salt);
              exchange.call.algorithm = algorithm.name;
              if (algorithm.name == "direct") exchange.call.pieces = ranks * ranks;
              if (kind == CollectiveKind::Barrier) exchange.call.pieces = 0;
              comm.run(exchange.call);
              check(exchange.right(), std::string(algorithm.name) + " " + std::string(name_of(kind)) +
                                          " of " + std::to_string(count) + ", " + std::to_string(ranks) +
                                          " ranks");
              ++salt;
            }
          }
        }
      }
    });
  }
}

void shared_buffers() {
  for (const int ranks : {2, 3, 5}) {
    run_ranks(ranks, [&](Communicator& comm) {
      for (int salt = 0; salt < 20; ++salt) {
        Exchange exchange(CollectiveKind::AllReduce, comm.rank(), ranks, 50000 + static_cast<size_t>(salt), 0,
                          Op::Sum, salt);
        auto* buffer = static_cast<int32_t*>(comm.allocate(exchange.input.size() * 4));
        std::copy(exchange.input.begin(), exchange.input.end(), buffer);
        exchange.call.input = exchange.call.output = buffer;
        comm.run(exchange.call);
        check(std::equal(exchange.expected.begin(), exchange.expected.end(), buffer), "shared allreduce");
        comm.deallocate(buffer);

        Exchange gather(CollectiveKind::AllGather, comm.rank(), ranks, 20000, 0, Op::Sum, salt);
        buffer = static_cast<int32_t*>(comm.allocate(gather.input.size() * 4));
        std::copy(gather.input.begin(), gather.input.end(), buffer);
        gather.call.input = buffer;
        comm.run(gather.call);
        check(gather.output == gather.expected, "shared all_gather");
        std::fill_n(buffer, gather.input.size(), -7);  // the others must have read it
        comm.deallocate(buffer);
      }
    });
  }
}

void asynchronous_and_random() {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [&](Communicator& comm) {
      std::mt19937 random(42);  // the same on all ranks
      std::vector<std::pair<std::unique_ptr<Exchange>, std::shared_ptr<Work>>> pending;
      for (int i = 0; i < 300; ++i) {
        const CollectiveKind kind = kKinds[random() % std::size(kKinds)];
        const size_t count = random() % 4 == 0 ? random() % 60000 : random() % 300;
        const int root = static_cast<int>(random() % static_cast<unsigned>(ranks));
        const Op ops[] = {Op::Sum, Op::Avg, Op::Min, Op::Max};
        auto exchange =
            std::make_unique<Exchange>(kind, comm.rank(), ranks, count, root, ops[random() % 4], i);
        if (kind == CollectiveKind::AllReduce && random() % 3 == 0) exchange->call.algorithm = "ring";
        if (random() % 2 == 0) {
          auto work = comm.submit(exchange->call);
          pending.emplace_back(std::move(exchange), std::move(work));
        } else {
          comm.run(exchange->call);
          check(exchange->right(), "synchronous between asynchronous");
        }
        if (pending.size() == 8) {
          pending.back().second->wait();  // its predecessors are then complete too
          for (auto& [one, work] : pending) check(work->done() && one->right(), "asynchronous");
          pending.clear();
        }
      }
      for (auto& [one, work] : pending) {
        work->wait();
        check(one->right(), "asynchronous, last");
      }
    });
  }
}

void mismatches() {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Communicator& comm) {
      Exchange exchange(CollectiveKind::AllReduce, comm.rank(), ranks, comm.rank() == 1 ? 200 : 100, 0,
                        Op::Sum, 1);
      check_throws<Mismatch>([&] { comm.run(exchange.call); }, "200 x int32");
      check(exchange.output == std::vector<int32_t>(exchange.output.size(), -1), "no data is delivered");
      Exchange other(comm.rank() == 0 ? CollectiveKind::Broadcast : CollectiveKind::AllReduce, comm.rank(),
                     ranks, 100, 0, Op::Sum, 1);
      check_throws<Mismatch>([&] { comm.run(other.call); }, "broadcast");
      Exchange good(CollectiveKind::AllReduce, comm.rank(), ranks, 100, 0, Op::Sum, 1);
      comm.run(good.call);
      check(good.right(), "the group is usable after a mismatch");
    });
  }
}

void timeouts() {
  run_ranks(3, [](Communicator& comm) {
    Exchange exchange(CollectiveKind::AllReduce, comm.rank(), 3, 100, 0, Op::Sum, 1);
    exchange.call.timeout = std::chrono::milliseconds(comm.rank() == 0 ? 100 : 10000);
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    const auto start = std::chrono::steady_clock::now();
    check_throws<Timeout>([&] { comm.run(exchange.call); }, "rank(s) 2 never called it");
    check(std::chrono::steady_clock::now() - start < std::chrono::seconds(2),
          "all learn of the first timeout");
  });
}

void leaving_and_aborting() {
  run_ranks(3, [](Communicator& comm) {
    Exchange exchange(CollectiveKind::AllReduce, comm.rank(), 3, 100, 0, Op::Sum, 1);
    if (comm.rank() == 1) return;
    check_throws<PeerLost>([&] { comm.run(exchange.call); }, "rank 1");
  });
  run_ranks(2, [](Communicator& comm) {
    Exchange exchange(CollectiveKind::AllReduce, comm.rank(), 2, 100, 0, Op::Sum, 1);
    if (comm.rank() == 1) {
      comm.abort("enough");
      return;
    }
    check_throws<Aborted>([&] { comm.run(exchange.call); }, "enough");
  });
}

void overlapping_buffers() {
  run_ranks(2, [](Communicator& comm) {
    Exchange exchange(CollectiveKind::AllGather, comm.rank(), 2, 100, 0, Op::Sum, 1);
    const auto me = static_cast<size_t>(comm.rank());
    exchange.call.input = exchange.output.data() + (1 - me) * 100;  // the other rank's share
    check_throws<InvalidArgument>([&] { comm.run(exchange.call); }, "overlap");
    int32_t* const own = exchange.output.data() + me * 100;
    std::copy(exchange.input.begin(), exchange.input.end(), own);
    exchange.call.input = own;
    comm.run(exchange.call);
    check(exchange.output == exchange.expected, "all_gather in place");

    // In place, in shared memory: what the others read must not change under them.
    Exchange turn(CollectiveKind::AllToAll, comm.rank(), 2, 50000, 0, Op::Sum, 2);
    auto* const buffer = static_cast<int32_t*>(comm.allocate(turn.input.size() * 4));
    std::copy(turn.input.begin(), turn.input.end(), buffer);
    turn.call.input = turn.call.output = buffer;
    comm.run(turn.call);
    check(std::equal(turn.expected.begin(), turn.expected.end(), buffer), "all_to_all in place, shared");
    comm.deallocate(buffer);
  });
}

void callbacks_may_run_collectives() {
  run_ranks(2, [](Communicator& comm) {
    Exchange first(CollectiveKind::AllReduce, comm.rank(), 2, 1000, 0, Op::Sum, 1);
    Exchange second(CollectiveKind::AllReduce, comm.rank(), 2, 1000, 0, Op::Sum, 2);
    std::atomic<bool> over{false};
    auto work = comm.submit(first.call);
    work->on_done([&] {
      comm.submit(second.call)->wait();
      over = true;
    });
    for (int i = 0; i < 2000 && !over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    check(over && first.right() && second.right(), "a collective in a callback");
  });
}

// Two threads of a rank on one group: one runs and submits collectives, the other sends and receives.
void collectives_and_messages(Communicator& comm) {
  const int rank = comm.rank(), ranks = comm.ranks();
  std::string failed;
  std::thread messages([&] {
    try {
      std::vector<int> mine(500), theirs(500);
      for (int i = 0; i < 60; ++i) {
        std::fill(mine.begin(), mine.end(), 1000 * i + rank);
        const auto tag = static_cast<uint64_t>(i % 3);
        const auto sent = comm.send(mine.data(), mine.size() * sizeof(int), (rank + 1) % ranks, tag);
        comm.recv(theirs.data(), theirs.size() * sizeof(int), (rank + ranks - 1) % ranks, tag)->wait();
        sent->wait();
        check(theirs.front() == 1000 * i + (rank + ranks - 1) % ranks && theirs.back() == theirs.front(),
              "a message beside collectives");
      }
    } catch (const std::exception& error) {
      failed = error.what();
    }
  });
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 60; ++i) {
    const CollectiveKind kind = kKinds[static_cast<size_t>(i) % std::size(kKinds)];
    exchanges.push_back(
        std::make_unique<Exchange>(kind, rank, ranks, size_t{1} << i % 12, i % ranks, Op::Sum, i));
    if (i % 3 == 0)
      comm.run(exchanges.back()->call);
    else
      works.push_back(comm.submit(exchanges.back()->call));
    if (i % 7 == 0) comm.memory();
  }
  for (const auto& work : works) work->wait();
  messages.join();
  if (!failed.empty()) throw std::runtime_error(failed);
  for (const auto& exchange : exchanges) check(exchange->right(), "a collective beside messages");
}

void concurrent_groups() {
  std::vector<std::string> errors(4);
  std::vector<std::thread> groups;
  for (size_t g = 0; g < errors.size(); ++g) {
    groups.emplace_back([&, g] {
      try {
        run_ranks(g % 2 == 0 ? 3 : 2, collectives_and_messages);
      } catch (const std::exception& error) {
        errors[g] = error.what();
      }
    });
  }
  for (auto& group : groups) group.join();
  for (const auto& error : errors) check(error.empty(), error);
}

// Large AllReduces that do not wait for their last rank: nobody late, one, several, by random times.
void late_ranks_are_not_waited_for() {
  for (const int ranks : {3, 5}) {
    run_ranks(ranks, [&](Communicator& comm) {
      for (int salt = 0; salt < 6; ++salt) {
        std::mt19937 dice(static_cast<unsigned>(salt * 100 + ranks));  // the same on all ranks
        for (auto late = dice() % 3; late > 0; --late) {
          const auto who = static_cast<int>(dice() % static_cast<unsigned>(ranks));
          const auto how_late = std::chrono::microseconds(dice() % 30000);
          if (who == comm.rank()) std::this_thread::sleep_for(how_late);
        }
        const size_t count = (1 << 20) + dice() % 100000;
        Exchange exchange(CollectiveKind::AllReduce, comm.rank(), ranks, count, 0, Op::Sum, salt);
        if (salt % 2 == 0) {  // in place
          std::copy(exchange.input.begin(), exchange.input.end(), exchange.output.begin());
          exchange.call.input = exchange.call.output;
        }
        comm.run(exchange.call);
        check(exchange.right(), "late ranks: call " + std::to_string(salt) + " of " + std::to_string(ranks) +
                                    " ranks, rank " + std::to_string(comm.rank()));
        Exchange small(CollectiveKind::AllReduce, comm.rank(), ranks, 70000, 0, Op::Sum, salt + 1);
        comm.run(small.call);
        check(small.right(), "what follows a late rank");
      }
      const bool odd = comm.rank() == ranks - 1;
      if (odd) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      Exchange differing(CollectiveKind::AllReduce, comm.rank(), ranks, (1 << 20) + (odd ? 1 : 0), 0, Op::Sum,
                         1);
      check_throws<Mismatch>([&] { comm.run(differing.call); }, "allreduce(1048577");
      Exchange after(CollectiveKind::AllReduce, comm.rank(), ranks, 1 << 20, 0, Op::Max, 2);
      comm.run(after.call);
      check(after.right(), "what follows a mismatch");
    });
  }
}

}  // namespace
}  // namespace pycoll::test

int main() {
  using namespace pycoll::test;
  run("every collective, direct", every_collective_directly);
  run("every algorithm", every_algorithm);
  run("shared buffers", shared_buffers);
  run("asynchronous and random", asynchronous_and_random);
  run("mismatches", mismatches);
  run("timeouts", timeouts);
  run("leaving and aborting", leaving_and_aborting);
  run("overlapping buffers", overlapping_buffers);
  run("collectives in callbacks", callbacks_may_run_collectives);
  run("late ranks are not waited for", late_ranks_are_not_waited_for);
  run("concurrent groups", concurrent_groups);
  return result();
}
