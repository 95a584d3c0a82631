// Groups whose ranks pretend to be on several hosts: shared memory inside each, a network on loopback
// between.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/registry.h"
#include "check.h"
#include "collective_model.h"
#include "thread_ranks.h"

namespace pycoll::test {
namespace {

using Hosts = std::vector<std::string>;

const std::vector<Hosts> kPlacements = {
    {"a", "b"}, {"a", "b", "c"}, {"a", "a", "b", "b"}, {"a", "b", "a", "b"}, {"a", "b", "b", "b", "c"},
};

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather,
    CollectiveKind::Broadcast, CollectiveKind::Reduce,        CollectiveKind::Gather,
    CollectiveKind::Scatter,   CollectiveKind::AllToAll,      CollectiveKind::Barrier,
};

std::string in_words(const Hosts& hosts) {
  std::string text;
  for (const std::string& host : hosts) text += host;
  return text;
}

template <class Body>
void run_on(const Hosts& hosts, const Body& body, const CommunicatorOptions& options = quick_options()) {
  run_ranks(static_cast<int>(hosts.size()), body, options, hosts);
}

// What a rank's body threw; "" when nothing.
template <class Failure, class Body>
std::string caught(const Body& body) {
  try {
    body();
  } catch (const Failure& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void every_collective() {
  for (const Hosts& hosts : kPlacements) {
    run_on(hosts, [&](Communicator& comm) {
      int salt = 0;
      for (const CollectiveKind kind : kKinds) {
        for (const size_t whole : {0, 1, 3, 100, 1000, 4097, 40000, 300001}) {
          const bool shared_out = kind != CollectiveKind::AllReduce && kind != CollectiveKind::Reduce &&
                                  kind != CollectiveKind::Broadcast;
          const size_t count = shared_out && whole > 1000 ? whole / hosts.size() : whole;
          Exchange exchange(kind, comm.rank(), comm.ranks(), count, salt % comm.ranks(),
                            salt % 3 == 0 ? Op::Avg : Op::Sum, salt);
          comm.run(exchange.call);
          check(exchange.right(),
                std::string(name_of(kind)) + " of " + std::to_string(count) + " on " + in_words(hosts));
          ++salt;
        }
      }
      check(comm.arrivals().size() == comm.sequence(), "all arrivals are recorded");
    });
  }
}

void every_algorithm() {
  const Hosts hosts = {"a", "b", "a", "b"};
  run_on(hosts, [&](Communicator& comm) {
    int salt = 0;
    for (const Algorithm& algorithm : algorithms()) {
      if (!algorithm.accepts(comm.ranks())) continue;
      for (const CollectiveKind kind : algorithm.collectives) {
        for (const size_t count : {1, 5, 60000}) {
          Exchange exchange(kind, comm.rank(), comm.ranks(), count, salt % comm.ranks(), Op::Sum, salt);
          exchange.call.algorithm = algorithm.name;
          comm.run(exchange.call);
          check(exchange.right(), std::string(algorithm.name) + " " + std::string(name_of(kind)) + " of " +
                                      std::to_string(count));
          ++salt;
        }
      }
    }
  });
}

void mismatches_are_told_everywhere() {
  for (const Hosts& hosts : kPlacements) {
    run_on(hosts, [&](Communicator& comm) {
      for (const size_t size : {10, 100000}) {
        const bool odd = comm.rank() == 1;
        Exchange exchange(CollectiveKind::AllReduce, comm.rank(), comm.ranks(), odd ? size + 1 : size, 0,
                          Op::Sum, 1);
        const std::string text = caught<Mismatch>([&] { comm.run(exchange.call); });
        check(
            contains(text, "rank 1 called allreduce(" + std::to_string(size + 1)) && contains(text, "rank 0"),
            "rank " + std::to_string(comm.rank()) + " on " + in_words(hosts) + " was told: " + text);
        Exchange after(CollectiveKind::AllReduce, comm.rank(), comm.ranks(), size, 0, Op::Sum, 2);
        comm.run(after.call);
        check(after.right(), "the group goes on after a mismatch");
      }
    });
  }
}

void who_does_not_come_is_named() {
  CommunicatorOptions options = quick_options();
  options.timeout = std::chrono::milliseconds(500);
  for (const Hosts& hosts : kPlacements) {
    const int last = static_cast<int>(hosts.size()) - 1;
    Meeting over(static_cast<int>(hosts.size()));
    run_on(
        hosts,
        [&](Communicator& comm) {
          if (comm.rank() != last) {
            Exchange exchange(CollectiveKind::AllReduce, comm.rank(), comm.ranks(), 10, 0, Op::Sum, 1);
            const std::string text = caught<Timeout>([&] { comm.run(exchange.call); });
            check(contains(text, "rank " + std::to_string(last)) ||
                      contains(text, "rank(s) " + std::to_string(last)),
                  "rank " + std::to_string(comm.rank()) + " on " + in_words(hosts) + " was told: " + text);
          }
          over.all_gather(comm.rank(), "");
        },
        options);
  }
}

void who_leaves_is_named() {
  for (const Hosts& hosts : kPlacements) {
    const int last = static_cast<int>(hosts.size()) - 1;
    Meeting over(static_cast<int>(hosts.size()));
    run_on(hosts, [&](Communicator& comm) {
      comm.run(Exchange(CollectiveKind::Barrier, comm.rank(), comm.ranks(), 0, 0, Op::Sum, 1).call);
      if (comm.rank() == last) {
        comm.close();
      } else {
        Exchange exchange(CollectiveKind::AllReduce, comm.rank(), comm.ranks(), 100000, 0, Op::Sum, 1);
        const std::string text = caught<PeerLost>([&] { comm.run(exchange.call); });
        check(contains(text, "rank " + std::to_string(last)),
              "rank " + std::to_string(comm.rank()) + " on " + in_words(hosts) + " was told: " + text);
      }
      over.all_gather(comm.rank(), "");
    });
  }
}

void an_abort_reaches_every_host() {
  for (const Hosts& hosts : kPlacements) {
    Meeting over(static_cast<int>(hosts.size()));
    run_on(hosts, [&](Communicator& comm) {
      if (comm.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm.abort("enough");
      } else {
        Exchange exchange(CollectiveKind::AllReduce, comm.rank(), comm.ranks(), 10, 0, Op::Sum, 1);
        const std::string text = caught<Aborted>([&] { comm.run(exchange.call); });
        check(contains(text, "enough"), "told: " + text);
      }
      over.all_gather(comm.rank(), "");
    });
  }
}

// Random arrivals of large AllReduces: nobody late, one, several, before and after the others are done
// reducing.
void late_ranks_are_not_waited_for(int patterns, const std::vector<int>& group_sizes) {
  for (const int ranks : group_sizes) {
    Hosts hosts;
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back("h" + std::to_string(rank));
    run_on(hosts, [&](Communicator& comm) {
      for (int salt = 0; salt < patterns; ++salt) {
        std::mt19937 dice(static_cast<unsigned>(salt * 100 + ranks));  // the same on all ranks
        const int late = static_cast<int>(dice() % 4);
        for (int i = 0; i < late; ++i) {
          const int who = static_cast<int>(dice() % static_cast<unsigned>(ranks));
          const auto how_late = std::chrono::microseconds(dice() % 20000);
          if (who == comm.rank()) std::this_thread::sleep_for(how_late);
        }
        const size_t count = (1 << 18) + dice() % 100000;
        Exchange exchange(CollectiveKind::AllReduce, comm.rank(), ranks, count, 0, Op::Sum, salt);
        comm.run(exchange.call);
        check(exchange.right(), "late ranks: " + std::to_string(late) + " of " + std::to_string(ranks) +
                                    ", rank " + std::to_string(comm.rank()) + ", call " +
                                    std::to_string(salt));
      }
      // Calls that differ while some have begun already.
      if (comm.rank() == ranks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const bool odd = comm.rank() == ranks - 1;
      Exchange differing(CollectiveKind::AllReduce, comm.rank(), ranks, (1 << 18) + (odd ? 1 : 0), 0, Op::Sum,
                         1);
      check(!caught<Mismatch>([&] { comm.run(differing.call); }).empty(), "another count is told");
      Exchange small(CollectiveKind::AllReduce, comm.rank(), ranks, odd ? 10 : 1 << 18, 0, Op::Sum, 1);
      check(!caught<Mismatch>([&] { comm.run(small.call); }).empty(),
            "a small call among large ones is told");
      Exchange after(CollectiveKind::AllReduce, comm.rank(), ranks, 300000, 0, Op::Sum, 2);
      comm.run(after.call);
      check(after.right(), "the group goes on");
    });
  }
}

void a_fixed_order_gives_the_same_bits_at_every_size() {
  CommunicatorOptions options = quick_options();
  options.fixed_order = true;
  for (const Hosts& hosts : kPlacements) {
    run_on(
        hosts,
        [&](Communicator& comm) {
          std::mt19937 dice(static_cast<unsigned>(comm.rank()));
          std::uniform_real_distribution<float> draw(-1e3F, 1e3F);
          std::vector<float> values(400000);
          for (float& value : values) value = draw(dice);
          std::vector<float> first;
          for (const size_t count : {3, 100, 5000, 200000, 400000}) {
            std::vector<float> sums(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
            CollectiveCall call;
            call.kind = CollectiveKind::AllReduce;
            call.dtype = DType::Float32;
            call.input = call.output = sums.data();
            call.count = count;
            comm.run(call);
            sums.resize(3);
            if (first.empty()) first = sums;
            check(sums == first,
                  "a sum of " + std::to_string(count) + " values has other bits on " + in_words(hosts));
          }
        },
        options);
  }
}

void lateness_is_seen_from_every_host() {
  const Hosts hosts = {"a", "b", "b", "c"};
  run_on(hosts, [&](Communicator& comm) {
    for (int i = 0; i < 3; ++i)
      comm.run(Exchange(CollectiveKind::Barrier, comm.rank(), comm.ranks(), 0, 0, Op::Sum, 1).call);
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    comm.run(Exchange(CollectiveKind::Barrier, comm.rank(), comm.ranks(), 0, 0, Op::Sum, 1).call);
    const ArrivalRecord last = comm.arrivals().back();
    check(last.lateness[2] > 0.15, "rank 2 is late: " + std::to_string(last.lateness[2]));
    for (const size_t rank : {0, 1, 3})
      check(last.lateness[rank] < last.lateness[2] - 0.1, "rank " + std::to_string(rank) + " is not as late");
  });
}

}  // namespace
}  // namespace pycoll::test

// hosts_test [PATTERNS]: so many random arrivals for each of many numbers of ranks, in place of a few.
int main(int count, char** arguments) {
  using namespace pycoll::test;
  const bool long_run = count > 1;
  const int patterns = long_run ? std::atoi(arguments[1]) : 4;
  const std::vector<int> group_sizes =
      long_run ? std::vector<int>{2, 3, 4, 5, 6, 7, 8, 9, 12, 16} : std::vector<int>{2, 3, 4, 6};
  run("every collective", every_collective);
  run("every algorithm", every_algorithm);
  run("mismatches are told everywhere", mismatches_are_told_everywhere);
  run("who does not come is named", who_does_not_come_is_named);
  run("who leaves is named", who_leaves_is_named);
  run("an abort reaches every host", an_abort_reaches_every_host);
  run("late ranks are not waited for", [&] { late_ranks_are_not_waited_for(patterns, group_sizes); });
  run("a fixed order gives the same bits at every size", a_fixed_order_gives_the_same_bits_at_every_size);
  run("lateness is seen from every host", lateness_is_seen_from_every_host);
  return result();
}
