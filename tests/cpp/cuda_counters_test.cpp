// The CUDA kernels' counters and flags after billions of calls, and calls whose input is their output: on
// threads of the host.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "cuda/interpreter.h"
#include "cuda/packets.h"
#include "cuda/windows.h"
#include "cuda_machine.h"

namespace {

using namespace pycoll;
using namespace pycoll::cuda;
using namespace pycoll::test;

using Sum = Reduction<I32, Op::Sum>;

// As after so many calls that used other flags and packets than what comes.
void count_calls(const Machine& machine, size_t (Layout::*counter)(int) const, uint64_t calls, size_t bytes) {
  for (int rank = 0; rank < machine.ranks(); ++rank)
    for (int block = 0; block < machine.layout().blocks; ++block)
      std::memcpy(machine.heaps()[rank] + (machine.layout().*counter)(block), &calls, bytes);
}

// A flag that nobody ever raised is never later than a call, however many calls there were.
void flags_after_billions_of_schedules() {
  for (const uint64_t calls : {(uint64_t{1} << 31) + 3, (uint64_t{1} << 32) - 1, uint64_t{1} << 32}) {
    Machine machine(4, 2, 20000);
    machine.scatter_arrivals();
    count_calls(machine, &Layout::schedule_calls, calls, 8);
    for (const char* name : {"ring", "direct", "double_binary_tree"}) {
      const auto plan = prepared(build(name, {.kind = CollectiveKind::AllReduce, .ranks = 4, .params = {}}));
      for (int turn = 0; turn < 4; ++turn)
        add_schedule<Sum>(machine, plan, name + (" after " + std::to_string(calls) + " calls"), 301, 301, 2);
    }
    machine.run();
  }
}

// 20 bits of a count of calls are gone after a million.
void late_ranks_after_a_million_calls() {
  constexpr uint64_t kCalls = (uint64_t{1} << 20) - 2;
  Machine machine(3, 2, 20000);
  machine.scatter_arrivals();
  const auto plan =
      prepared(build("late_rank", {.kind = CollectiveKind::AllReduce, .ranks = 3, .params = {}}));
  for (int block = 0; block < 2; ++block) {
    const uint64_t tickets = kCalls * (3 | uint64_t{3} << 32);
    std::memcpy(machine.heaps()[0] + machine.layout().ticket(block), &tickets, 8);
    for (int rank = 0; rank < 3; ++rank) {
      const uint64_t said = kCalls << 12;
      std::memcpy(machine.heaps()[rank] + machine.layout().late(block), &said, 8);
      std::memcpy(machine.heaps()[rank] + machine.layout().late(block) + 8, &kCalls, 8);
    }
  }
  for (int turn = 0; turn < 6; ++turn) add_schedule<Sum>(machine, plan, "late_rank", 211, 211, 2, true);
  machine.run();
}

void add_packets_to(Machine& machine, const Parts<I32>& parts, bool is_one_shot) {
  const uint64_t count = (*parts)[0].input.size();
  machine.add(
      2,
      [=, &machine](HostContext& context, int rank) {
        Part<I32>& part = (*parts)[static_cast<size_t>(rank)];
        PacketCall call{};
        call.layout = machine.layout();
        call.heaps = machine.heaps();
        call.rank = rank;
        call.input = reinterpret_cast<const char*>(part.input.data());
        call.output = reinterpret_cast<char*>(part.output.data());
        call.elements = count;
        call.gathers = true;
        call.params = OpParams::of(3);
        return is_one_shot ? run_one_shot<Sum>(context, call) : run_two_shot<Sum>(context, call);
      },
      check_of<I32>(parts, "packets of " + std::to_string(count) + " elements"));
}

// Memory that was never written says 0, and no call has that number: whoever waits for rank 0, which never
// comes, waits until the group is aborted.
void packets_after_billions_of_calls() {
  for (const uint64_t calls : {(uint64_t{1} << 32) - 2, (uint64_t{1} << 32) - 1, uint64_t{0}})
    for (const bool is_one_shot : {true, false}) {
      Machine machine(3, 2, 1000);
      count_calls(machine, &Layout::packet_calls, calls, 4);
      const auto parts =
          parts_of<Sum>({.kind = CollectiveKind::AllReduce, .ranks = 3, .pieces = 1, .root = 0}, 300);
      add_packets_to(machine, parts, is_one_shot);
      machine.run_without(0);
      check(machine.stopped(), "nobody goes on without rank 0, after " + std::to_string(calls) + " calls");
    }
  Machine machine(3, 2, 1000);
  machine.scatter_arrivals();
  count_calls(machine, &Layout::packet_calls, (uint64_t{1} << 32) - 4, 4);
  for (int call = 0; call < 12; ++call) {
    const uint64_t count = 40 + 10 * static_cast<uint64_t>(call);  // packets that no call had
    const auto parts =
        parts_of<Sum>({.kind = CollectiveKind::AllReduce, .ranks = 3, .pieces = 1, .root = 0}, count);
    add_packets_to(machine, parts, call % 3 != 0);
  }
  machine.run();
}

// In place: a rank's block of threads may have stored all of its part before another one begins to load.
void an_all_to_all_in_place() {
  constexpr int kMost = 2;
  for (const uint64_t count : {40001u, 40016u, 40u}) {
    Machine machine(3, kMost, 9 * (count + 15));
    const auto plan = prepared(build("direct", {.kind = CollectiveKind::AllToAll, .ranks = 3, .params = {}}));
    const Collective& collective = plan->tables.collective;
    const auto parts = parts_of<Reduction<Raw, Op::Sum>>(collective, count);
    std::vector<ScheduleCall> calls;
    for (int rank = 0; rank < 3; ++rank) {
      Part<Raw>& part = (*parts)[static_cast<size_t>(rank)];
      part.output = part.input;
      ScheduleCall call{};
      call.layout = machine.layout();
      call.heaps = machine.heaps();
      call.work = machine.work();
      call.snapshots = machine.layout().staging / 2 / 16 * 16;
      call.tables = &plan->views[static_cast<size_t>(rank)];
      call.rank = rank;
      call.params = OpParams::of(3);
      set_window(call, collective, part.output.data(), part.output.data(), 1, count, 0, count);
      calls.push_back(call);
    }
    machine.add(
        blocks_for(calls[0], 1, kMost),
        [calls](HostContext& context, int rank) {
          if (context.block() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          return run_schedule<Reduction<Raw, Op::Sum>>(context, calls[static_cast<size_t>(rank)]);
        },
        check_of<Raw>(parts, "all_to_all in place of " + std::to_string(count) + " bytes"));
    machine.run();
    check(blocks_for(calls[0], 1, kMost) == (count == 40 ? 1 : 2), "large pieces have several blocks");
    check(window_length(collective, 1, count, 9 * 20000 + 5) == std::min<uint64_t>(count, 20000),
          "a window's blocks begin at whole vectors");
  }
}

}  // namespace

int main() {
  test::run("flags after billions of schedules", flags_after_billions_of_schedules);
  test::run("late ranks after a million calls", late_ranks_after_a_million_calls);
  test::run("packets after billions of calls", packets_after_billions_of_calls);
  test::run("an all_to_all in place", an_all_to_all_in_place);
  return test::result();
}
