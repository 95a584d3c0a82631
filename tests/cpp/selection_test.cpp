#include "engine/selection.h"

#include <atomic>
#include <chrono>
#include <mutex>

#include "check.h"
#include "collective_model.h"
#include "thread_ranks.h"

namespace pycoll::test {
namespace {

constexpr const char* kTwoRows =
    "decisions\t1\t2\n"
    "row\tallreduce\tany\tany\t0\t65536\tdirect\tpin\t0\t0\tby hand\n"
    "row\tallreduce\tany\tany\t65536\t-\tring/8,direct\tmeasured\t1e-05\t2e-10\ttuned";

void tables_are_read() {
  const DecisionTable table = DecisionTable::parse(kTwoRows);
  check(table.rows.size() == 2 && table.factor == 2 && table.hash != 0, "two rows");
  check(table.rows[0].ways[0].is_fast_path() && table.rows[0].basis == Basis::Pin, "the first row");
  check(table.rows[1].ways[0].name() == "ring/8" && table.rows[1].ways[1].name() == "direct", "its ways");
  check(table.rows[1].end == UINT64_MAX && table.rows[1].predicted(100000) == 1e-05 + 2e-10 * 100000,
        "numbers");
  check(DecisionTable::parse("").hash == 0, "the empty table");
  check(DecisionTable::parse("decisions\t1\t0").hash != table.hash, "tables differ by hash");
}

void wrong_tables_are_refused() {
  const std::string head = "decisions\t1\t2\n";
  const auto refuse = [&](const std::string& text, const char* part) {
    check_throws<InvalidArgument>([&] { DecisionTable::parse(text); }, part);
  };
  refuse("row", "line 1");
  refuse(head + "column", "line 2: 'column' is neither");
  refuse(head + "row\tallreduce\tany\tany\t0\t-\tdirect\tpin\t0\t0", "has 10 fields");
  refuse(head + "row\tallred\tany\tany\t0\t-\tdirect\tpin\t0\t0\t", "no collective 'allred'");
  refuse(head + "row\tallreduce\thuge\tany\t0\t-\tdirect\tpin\t0\t0\t", "'huge'");
  refuse(head + "row\tallreduce\tany\tany\t8\t8\tdirect\tpin\t0\t0\t", "end before they begin");
  refuse(head + "row\tallreduce\tany\tany\t0\t-\tring/x\tpin\t0\t0\t", "pieces is 'x'");
  refuse(head + "row\tallreduce\tany\tany\t0\t-\t@star\tpin\t0\t0\t", "no schedule '@star'");
  refuse(head + "row\tallreduce\tany\tany\t0\t-\tdirect\tguess\t0\t0\t", "'guess' is no basis");
  refuse(std::string(kTwoRows) + "\nrow\tallreduce\twide\tfar\t4\t8\tdirect\tpin\t0\t0\t", "overlap");
}

Exchange allreduce(Communicator& comm, size_t count, int salt) {
  return {CollectiveKind::AllReduce, comm.rank(), comm.ranks(), count, 0, Op::Sum, salt};
}

void the_table_chooses() {
  run_ranks(3, [](Communicator& comm) {
    comm.install(DecisionTable::parse(kTwoRows));
    for (const size_t count : {size_t{1}, size_t{16383}, size_t{16384}, size_t{50000}}) {
      Exchange exchange = allreduce(comm, count, 3);
      check(comm.chosen_algorithm(exchange.call) == (count < 16384 ? "direct" : "ring"), "the choice");
      const size_t scratch = comm.memory().private_bytes;
      comm.run(exchange.call);
      check(exchange.right() && scratch == comm.memory().private_bytes, "the result");
    }
    comm.install({});
    check(comm.chosen_algorithm(allreduce(comm, 50000, 3).call) == "direct", "nothing is left");
  });
}

void the_groups_first_table_is_rank_0s() {
  CommunicatorOptions options = quick_options();
  options.decisions = kTwoRows;
  run_ranks(
      2,
      [](Communicator& comm) {
        check(comm.chosen_algorithm(allreduce(comm, 50000, 0).call) == "ring", "the choice");
        check(comm.decisions().size() == 2 && comm.decisions()[1].decision.reason == "tuned", "the rows");
      },
      options);
}

constexpr std::string_view kTwoDevices =
    "decisions\t1\t2\ntopology\ttwo\nnode\ta\tdevice\t0\t1e-05\tinf\tinf\t0\n"
    "node\tb\tdevice\t1\t0\t2e9\tinf\t1\nlink\t0\t1\t1e9\t2e-05\nlink\t1\t0\t1e9\t2e-05\nranks\t1,0\n";

void tables_carry_their_topology() {
  const DecisionTable table = DecisionTable::parse(std::string(kTwoDevices) +
                                                   "row\tallreduce\tany\tany\t0\t-\tring\tmodelled\t0\t0\t");
  check(table.topology && table.topology->name == "two", "its name");
  check(table.topology->ranks == std::vector<int>{1, 0} && table.topology->device_of(0).copy_rate == 2e9 &&
            table.topology->device_of(0).forwards && table.topology->device_of(1).copy_rate == kUnlimited,
        "ranks and devices");
  check(table.topology->links.size() == 2 && table.topology->links[1].latency == 2e-5, "links");
  check(table.rows[0].ways[0].topology == table.topology, "its ways fit themselves to it");
  const auto but = [](const std::string& part, const std::string& other) {
    std::string text(kTwoDevices);
    return DecisionTable::parse(text.replace(text.find(part), part.size(), other));
  };
  check_throws<TopologyError>([&] { but("ranks\t1,0", "ranks\t1,1"); }, "");
  check_throws<InvalidArgument>([&] { but("\t1e9\t", "\tfast\t"); }, "the bandwidth is 'fast'");
  run_ranks(3, [&](Communicator& comm) {
    check_throws<InvalidArgument>([&] { comm.install(DecisionTable::parse(kTwoDevices)); }, "2 ranks");
  });
}

void rooted_rows_serve_every_root() {
  run_ranks(3, [](Communicator& comm) {
    comm.install(DecisionTable::parse(
        "decisions\t1\t0\nrow\tbroadcast\tany\tany\t0\t-\tbinomial_tree/4\tpin\t0\t0\t"));
    for (int root = 0; root < 3; ++root) {
      Exchange exchange(CollectiveKind::Broadcast, comm.rank(), 3, 5000, root, Op::Sum, root);
      comm.run(exchange.call);
      check(exchange.right(), "root " + std::to_string(root));
    }
  });
}

// A schedule that comes with the table: rank 0 collects, then gives out.
void schedules_of_their_own_run() {
  run_ranks(2, [](Communicator& comm) {
    comm.install(
        DecisionTable::parse("decisions\t1\t0\n"
                             "schedule\tstar\tallreduce\t2\t1\t0\t0,1,0,0,1\t1,0,1,0,0\n"
                             "row\tallreduce\tany\tany\t0\t-\t@star\trule\t0\t0\tmine"));
    Exchange exchange = allreduce(comm, 1000, 1);
    check(comm.chosen_algorithm(exchange.call) == "star", "the choice");
    comm.run(exchange.call);
    check(exchange.right(), "the result");
    check_throws<ScheduleError>(
        [&] {
          comm.install(
              DecisionTable::parse("decisions\t1\t0\n"
                                   "schedule\thalf\tallreduce\t2\t1\t0\t0,1,0,0,1\n"
                                   "row\tallreduce\tany\tany\t0\t-\t@half\trule\t0\t0\t"));
        },
        "");
  });
}

void ranks_with_different_tables_hear_of_it() {
  run_ranks(2, [](Communicator& comm) {
    const DecisionTable table = comm.rank() == 0 ? DecisionTable::parse(kTwoRows) : DecisionTable{};
    check_throws<Mismatch>([&] { comm.install(table); }, "install");
    Exchange exchange = allreduce(comm, 50000, 1);
    comm.run(exchange.call);  // with the table from before
    check(exchange.right(), "the group goes on");
    if (comm.rank() == 0)
      check_throws<Mismatch>([&] { comm.install(table); }, "install");
    else
      check_throws<Mismatch>([&] { comm.run(exchange.call); }, "rank 0 called install");
  });
}

void the_distance_chooses_once_the_ranks_agree() {
  Selection selection("test", 2, [](CollectiveKind, const Way&, int) { return nullptr; });
  selection.adopt(
      selection.prepare(DecisionTable::parse("decisions\t1\t2\n"
                                             "row\tallreduce\tany\tnear\t0\t-\tdirect\tpin\t0\t0\tclose\n"
                                             "row\tallreduce\tany\tfar\t0\t-\tdirect\tpin\t0\t0\tapart")));
  const auto row = [&] { return selection.find(CollectiveKind::AllReduce, DType::Float32, 100); };
  check(row()->decision.reason == "close", "near until something else is known");
  selection.heed(*row(), Arrivals::kThinksFar | Arrivals::kThinksNear);
  check(row()->decision.reason == "close", "as long as the ranks do not agree");
  selection.heed(*row(), Arrivals::kThinksFar);
  check(row()->decision.reason == "apart", "far");
  selection.heed(*row(), Arrivals::kThinksNear);
  check(row()->decision.reason == "close", "near again");

  check(selection.hints(*row()) == 0, "no opinion without a look");
  for (int look = 0; look < 3; ++look) selection.feel_distance(200e-9);
  check(selection.hints(*row()) == Arrivals::kThinksFar, "three looks make an opinion");
  for (int look = 0; look < 7; ++look) selection.feel_distance(50e-9);
  check(selection.hints(*row()) == Arrivals::kThinksNear, "and change it");
  for (int look = 0; look < 8; ++look) selection.feel_distance(1e-3);
  check(selection.hints(*row()) == 0, "which fades for who always sleeps, or comes last");
}

void rules_must_be_the_same() {
  Meeting meeting(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = quick_options();
      options.rules = rank == 0 ? "A" : "B";
      check_throws<InvalidArgument>(
          [&] {
            Communicator::create(
                rank, 2, [&](const std::string& mine) { return meeting.all_gather(rank, mine); }, options);
          },
          "rank 0 has A, rank 1 has B");
    });
  for (auto& thread : threads) thread.join();
}

// Buffers in shared memory are read where they lie, whatever the table says, and no time of theirs counts.
void shared_buffers_go_their_own_way() {
  run_ranks(2, [](Communicator& comm) {
    comm.install(
        DecisionTable::parse("decisions\t1\t2\n"
                             "row\tallreduce\tany\tany\t0\t-\tring/8,direct\tmeasured\t1\t0\tslow"));
    const size_t count = 20000;
    auto* buffer = static_cast<int32_t*>(comm.allocate(count * 4));
    for (int call = 0; call < 40; ++call) {
      Exchange exchange = allreduce(comm, count, call);
      std::copy(exchange.input.begin(), exchange.input.end(), buffer);
      exchange.call.input = exchange.call.output = buffer;
      comm.run(exchange.call);
      check(std::equal(exchange.expected.begin(), exchange.expected.end(), buffer), "the result");
    }
    comm.deallocate(buffer);
    check(comm.decisions()[0].typical == 0, "nothing was watched");
    Exchange exchange = allreduce(comm, count, 0);
    comm.run(exchange.call);
    check(exchange.right() && comm.decisions()[0].typical > 0, "an ordinary buffer is");
  });
}

// A choice that takes far longer than predicted: the group tries the other way on live calls, and takes it.
void slow_choices_are_replaced() {
  std::mutex mutex;
  std::vector<std::string> told;
  CommunicatorOptions options = quick_options();
  options.log = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    told.push_back(text);
  };
  options.decisions =
      "decisions\t1\t2\n"
      "row\tallreduce\tany\tany\t16384\t-\tring/20000,direct\tmeasured\t1e-06\t1e-12\ta table of another day";
  std::atomic<int> changed_at[3] = {};
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration took{};
  run_ranks(
      3,
      [&](Communicator& comm) {
        for (int call = 1; call <= 400; ++call) {
          Exchange exchange = allreduce(comm, 6000, call);
          comm.run(exchange.call);
          check(exchange.right(), "every call is right, whatever is tried");
          if (changed_at[comm.rank()] == 0 && comm.chosen_algorithm(exchange.call) == "direct") {
            changed_at[comm.rank()] = call;
            if (comm.rank() == 0) took = std::chrono::steady_clock::now() - begin;
          }
        }
        const DecisionState row = comm.decisions()[0];
        check(row.decision.ways[0].name() == "direct", "the choice now");
        check(row.decision.alpha > 1e-06, "the prediction now");
      },
      options);
  // Few calls are enough only where they are long.
  const bool long_calls = took > std::chrono::milliseconds(500);
  check(changed_at[0] > (long_calls ? 4 : 24), "not before enough calls were slow");
  check(changed_at[0] != 0 && changed_at[0] == changed_at[1] && changed_at[1] == changed_at[2],
        "at the same call on all ranks");
  check(!told.empty() && told[0].find("ring/20000") != std::string::npos &&
            told[0].find("direct is used") != std::string::npos,
        "rank 0 is told");
}

void choices_without_another_way_stay() {
  run_ranks(2, [](Communicator& comm) {
    comm.install(DecisionTable::parse(
        "decisions\t1\t2\nrow\tallreduce\tany\tany\t16384\t-\tring/100\tpin\t1e-09\t1e-15\tpinned"));
    for (int call = 0; call < 60; ++call) {
      Exchange exchange = allreduce(comm, 5000, call);
      comm.run(exchange.call);
    }
    check(comm.decisions()[0].decision.ways[0].name() == "ring/100", "the pin");
    check(comm.sequence() == 61, "no call but ours");
  });
}

}  // namespace
}  // namespace pycoll::test

int main() {
  using namespace pycoll::test;
  run("tables are read", tables_are_read);
  run("wrong tables are refused", wrong_tables_are_refused);
  run("the table chooses", the_table_chooses);
  run("the group's first table is rank 0's", the_groups_first_table_is_rank_0s);
  run("tables carry their topology", tables_carry_their_topology);
  run("rooted rows serve every root", rooted_rows_serve_every_root);
  run("schedules of their own run", schedules_of_their_own_run);
  run("ranks with different tables hear of it", ranks_with_different_tables_hear_of_it);
  run("the distance chooses once the ranks agree", the_distance_chooses_once_the_ranks_agree);
  run("rules must be the same", rules_must_be_the_same);
  run("shared buffers go their own way", shared_buffers_go_their_own_way);
  run("slow choices are replaced", slow_choices_are_replaced);
  run("choices without another way stay", choices_without_another_way_stay);
  return result();
}
