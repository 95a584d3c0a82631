// The bodies of the CUDA kernels on threads of the host: every format and operator, every algorithm, many
// ranks, sizes around every boundary, calls that follow each other without a pause. What it cannot see is the
// device itself: warps, its memory order, real peers.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/registry.h"
#include "check.h"
#include "core/error.h"
#include "cuda/interpreter.h"
#include "cuda/packets.h"
#include "cuda/table.h"
#include "cuda/windows.h"
#include "cuda_host_context.h"
#include "cuda_machine.h"
#include "schedule/verify.h"

namespace {

using namespace pycoll;
using namespace pycoll::cuda;
using namespace pycoll::test;

template <class R>
PacketCall packet_call(const Machine& machine, Part<typename R::Format>& part, int rank, uint64_t elements,
                       bool in_place) {
  if (in_place) part.output = part.input;
  PacketCall call{};
  call.layout = machine.layout();
  call.heaps = machine.heaps();
  call.rank = rank;
  call.output = reinterpret_cast<char*>(part.output.data());
  call.input = in_place ? call.output : reinterpret_cast<const char*>(part.input.data());
  call.elements = elements;
  call.params = OpParams::of(machine.ranks(), factor_of(kIsInteger<typename R::Format>, rank));
  return call;
}

template <class R>
void add_packets(Machine& machine, uint64_t count, int blocks, bool in_place) {
  using F = typename R::Format;
  const int ranks = machine.ranks();
  const auto make_calls = [&](const Parts<F>& parts, uint64_t elements, bool here) {
    auto calls = std::make_shared<std::vector<PacketCall>>();
    for (int rank = 0; rank < ranks; ++rank)
      calls->push_back(packet_call<R>(machine, (*parts)[static_cast<size_t>(rank)], rank, elements, here));
    return calls;
  };
  Collective collective{.kind = CollectiveKind::AllReduce, .ranks = ranks, .pieces = 1, .root = 0};
  {
    auto parts = parts_of<R>(collective, count);
    auto calls = make_calls(parts, count, in_place);
    machine.add(
        blocks,
        [calls](HostContext& context, int rank) {
          return run_one_shot<R>(context, (*calls)[static_cast<size_t>(rank)]);
        },
        check_of<F>(parts, name_of_call<R>("one-shot", ranks, count)));
  }
  {
    auto parts = parts_of<R>(collective, count);
    auto calls = make_calls(parts, count, in_place);
    for (PacketCall& call : *calls) call.gathers = true;
    machine.add(
        blocks,
        [calls](HostContext& context, int rank) {
          return run_two_shot<R>(context, (*calls)[static_cast<size_t>(rank)]);
        },
        check_of<F>(parts, name_of_call<R>("two-shot", ranks, count)));
  }
  collective = {.kind = CollectiveKind::ReduceScatter, .ranks = ranks, .pieces = ranks, .root = 0};
  const uint64_t shard = count / static_cast<uint64_t>(ranks) + 1;
  auto parts = parts_of<R>(collective, shard);
  auto calls = make_calls(parts, shard * static_cast<uint64_t>(ranks), false);
  machine.add(
      blocks,
      [calls](HostContext& context, int rank) {
        return run_two_shot<R>(context, (*calls)[static_cast<size_t>(rank)]);
      },
      check_of<F>(parts, name_of_call<R>("reduce_scatter", ranks, shard)));
}

void add_all_gather(Machine& machine, uint64_t bytes, int blocks) {
  using R = Reduction<Raw, Op::Sum>;
  const int ranks = machine.ranks();
  auto parts =
      parts_of<R>({.kind = CollectiveKind::AllGather, .ranks = ranks, .pieces = ranks, .root = 0}, bytes);
  auto calls = std::make_shared<std::vector<PacketCall>>();
  for (int rank = 0; rank < ranks; ++rank)
    calls->push_back(packet_call<R>(machine, (*parts)[static_cast<size_t>(rank)], rank, bytes, false));
  machine.add(
      blocks,
      [calls](HostContext& context, int rank) {
        return run_all_gather(context, (*calls)[static_cast<size_t>(rank)]);
      },
      check_of<Raw>(parts, name_of_call<R>("all_gather", ranks, bytes)));
}

void every_dtype_and_op() {
  for (const int ranks : kRanks) {
    Machine machine(ranks, 2, 40000);
    const auto plans = all_reduces(ranks);
    size_t turn = 0;
    for_each_reduction([&]<class R>(R) {
      for (const uint64_t count : {uint64_t{1}, static_cast<uint64_t>(ranks) * 5 + 1, uint64_t{523}}) {
        // Many ranks are many threads: each reduction gets some of the sizes.
        if (++turn % 2 == 0 && ranks > 5) continue;
        const int blocks = 1 + static_cast<int>(turn % 2);
        add_packets<R>(machine, count, count == 1 ? 1 : blocks, turn % 3 == 0);
        const auto& plan = plans[turn % plans.size()];
        add_schedule<R>(machine, plan, "a schedule", count, count, blocks);
      }
    });
    machine.run();
    check(!machine.stopped(), "nothing was aborted");
  }
}

void every_algorithm_and_collective() {
  for (const int ranks : kRanks) {
    Machine machine(ranks, 2, 64000);
    for (const Algorithm& algorithm : algorithms()) {
      if (!algorithm.accepts(ranks)) continue;
      for (const CollectiveKind kind : algorithm.collectives) {
        if (kind == CollectiveKind::AllToAll && ranks > 9) continue;  // time
        BuildRequest request{.kind = kind, .ranks = ranks, .params = {}};
        if (is_rooted(kind)) request.root = ranks - 1;
        std::shared_ptr<Prepared> plan;
        try {
          plan = prepared(build(algorithm.name, request));
        } catch (const InvalidArgument&) {
          continue;
        }
        const std::string what = std::string(algorithm.name) + " " + std::string(name_of(kind));
        const uint64_t count = kind == CollectiveKind::Barrier ? 0 : 37;
        add_schedule<Reduction<I32, Op::Sum>>(machine, plan, what, count, count, 2);
        if (is_reduction(kind))
          add_schedule<Reduction<BF16, Op::Avg>>(machine, plan, what + " in windows", count, 10, 1);
        else
          add_schedule<Reduction<Raw, Op::Sum>>(machine, plan, what + " in windows", count, 10, 1);
        if (kind == CollectiveKind::AllReduce && !plan->tables.snapshots)
          add_schedule<Reduction<F32, Op::Sum>>(machine, plan, what + ", zero-copy", 301, 301, 2, false,
                                                true);
      }
    }
    for (const uint64_t bytes : {1u, 7u, 8u, 9u, 1000u}) add_all_gather(machine, bytes, bytes < 16 ? 1 : 2);
    machine.run();
  }
}

// Sums that depend on the order of summands: whatever it is, all ranks get the same.
void all_ranks_get_the_same_bits() {
  using R = Reduction<F32, Op::Sum>;
  for (const int ranks : {3, 5, 8}) {
    Machine machine(ranks, 2, 20000);
    for (const auto& plan : all_reduces(ranks)) {
      const auto inputs = std::make_shared<std::vector<std::vector<float>>>();
      const auto outputs = std::make_shared<std::vector<std::vector<float>>>();
      for (int rank = 0; rank < ranks; ++rank) {
        std::mt19937 random(static_cast<unsigned>(rank));
        std::vector<float> numbers(331);
        for (float& number : numbers) number = static_cast<float>(random()) / 65537.0f - 30000.0f;
        inputs->push_back(numbers);
        outputs->push_back(std::vector<float>(numbers.size()));
      }
      const auto call_of = [=, &machine](int rank) {
        ScheduleCall call{};
        call.layout = machine.layout();
        call.heaps = machine.heaps();
        call.work = machine.work();
        call.snapshots = machine.layout().staging / 2 / 16 * 16;
        call.tables = &plan->views[static_cast<size_t>(rank)];
        call.rank = rank;
        auto& input = (*inputs)[static_cast<size_t>(rank)];
        set_window(call, plan->tables.collective, input.data(), (*outputs)[static_cast<size_t>(rank)].data(),
                   4, input.size(), 0, input.size());
        return call;
      };
      machine.add(
          2, [=](HostContext& context, int rank) { return run_schedule<R>(context, call_of(rank)); },
          [=] {
            for (const auto& output : *outputs)
              check(output == outputs->front(), "an algorithm gives ranks different sums");
          });
    }
    machine.run();
  }
}

// Early ranks reduce-scatter; each owner swaps its piece with the late rank and gives the sum to the others.
Schedule late_schedule(int ranks) {
  const int early = ranks - 1;
  Schedule schedule;
  schedule.collective = {.kind = CollectiveKind::AllReduce, .ranks = ranks, .pieces = early, .root = 0};
  for (int hop = 0; hop + 1 < early; ++hop)
    for (int rank = 0; rank < early; ++rank) {
      const int piece = (rank + early - 1 - hop) % early;
      schedule.transfers.push_back({hop, rank, (rank + 1) % early, piece, Action::Reduce});
    }
  for (int piece = 0; piece < early; ++piece) {
    schedule.transfers.push_back({early, piece, early, piece, Action::Reduce});
    schedule.transfers.push_back({early, early, piece, piece, Action::Reduce});
    for (int to = 0; to < early; ++to)
      if (to != piece) schedule.transfers.push_back({early + 1, piece, to, piece, Action::Copy});
  }
  return schedule;
}

void the_late_rank_is_found() {
  for (const int ranks : kRanks) {
    Machine machine(ranks, 2, 20000);
    machine.scatter_arrivals();
    const auto late = prepared(late_schedule(ranks));
    check(!late->tables.snapshots, "swaps need no snapshots");
    const auto built =
        prepared(build("late_rank", {.kind = CollectiveKind::AllReduce, .ranks = ranks, .params = {}}));
    const auto others = all_reduces(ranks);
    for (int call = 0; call < 20; ++call) {
      add_schedule<Reduction<I64, Op::Sum>>(machine, late, "late", 211, 211, 1 + call % 2, true);
      add_schedule<Reduction<BF16, Op::Sum>>(machine, built, "late_rank", 150, 150, 1 + call % 2, true);
      if (call % 4 == 0) add_schedule<Reduction<F16, Op::Max>>(machine, others[0], "between", 33, 33, 2);
      if (call % 5 == 0) add_packets<Reduction<E5M2, Op::Sum>>(machine, 99, 2, false);
    }
    machine.run();
  }
}

void an_abort_ends_all_waits() {
  for (int kind = 0; kind < 3; ++kind) {
    Machine machine(3, 2, 20000);
    using R = Reduction<F32, Op::Sum>;
    const auto ring = prepared(build("ring", {.kind = CollectiveKind::AllReduce, .ranks = 3, .params = {}}));
    if (kind == 0) add_schedule<R>(machine, ring, "ring", 100, 100, 2);
    if (kind == 1) add_packets<R>(machine, 100, 2, false);
    if (kind == 2) add_schedule<R>(machine, prepared(late_schedule(3)), "late", 100, 100, 2, true);
    // Rank 0 never comes.
    machine.run_without(0);
    check(machine.stopped(), "the others give up");
  }
}

bool same(double a, double b) {
  return a == b || (a != a && b != b);
}

// Every code of every small format, both ways, and every pair of 8-bit codes under every operator.
template <class F>
void same_numbers_as_the_host() {
  using Storage = typename F::Storage;
  std::vector<Storage> codes;
  for (uint32_t code = 0; code < 1u << (8 * sizeof(Storage)); ++code)
    codes.push_back(static_cast<Storage>(code));
  std::vector<float> wide(codes.size());
  widen(F::kDType, Op::PremulSum, codes.data(), wide.data(), codes.size(), 1, 1);
  bool decoded = true;
  for (size_t i = 0; i < codes.size(); ++i) decoded &= same(F::decode(codes[i]), wide[i]);
  check(decoded, std::string("decoding ") + std::string(name_of(F::kDType)));

  std::mt19937 random(1);
  std::vector<float> numbers = wide;
  for (int i = 0; i < 200000; ++i) numbers.push_back(bits<float>(static_cast<uint32_t>(random())));
  for (const float number : wide) {  // around the middle between neighbours
    numbers.push_back(number * 1.03125f);
    numbers.push_back(number * 1.0625f);
    numbers.push_back(bits<float>(bits<uint32_t>(number * 1.0625f) + 1));
  }
  std::vector<Storage> narrowed(numbers.size());
  narrow(F::kDType, Op::PremulSum, numbers.data(), narrowed.data(), numbers.size(), 1);
  bool encoded = true;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Storage mine = F::encode(numbers[i]);
    encoded &= mine == narrowed[i] || (numbers[i] != numbers[i] && F::decode(mine) != F::decode(mine));
  }
  check(encoded, std::string("encoding ") + std::string(name_of(F::kDType)));
}

template <class F>
void same_results_as_the_host() {
  std::vector<uint8_t> left, right;
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b) {
      left.push_back(static_cast<uint8_t>(a));
      right.push_back(static_cast<uint8_t>(b));
    }
  const double factors[] = {3, 0.75};
  const void* const sources[] = {left.data(), right.data()};
  for_each_op<F>([&]<class R>(R) {
    for (const int ranks : {2, 3}) {
      std::vector<uint8_t> expected(left.size());
      void* const destinations[] = {expected.data()};
      reduce_many(F::kDType, R::kOperator, sources, destinations, left.size(), factors, ranks);
      const OpParams params = OpParams::of(ranks);
      bool right_all = true;
      for (size_t i = 0; i < left.size(); ++i) {
        const auto sum =
            R::combine(R::term(left[i], params, factors[0]), R::term(right[i], params, factors[1]));
        right_all &= same(F::decode(R::finish(sum, params)), F::decode(expected[i]));
      }
      check(right_all, std::string(name_of(F::kDType)) + " " + std::string(name_of(R::kOperator)));
    }
  });
}

void numbers() {
  same_numbers_as_the_host<F16>();
  same_numbers_as_the_host<BF16>();
  same_numbers_as_the_host<E4M3>();
  same_numbers_as_the_host<E5M2>();
  same_results_as_the_host<E4M3>();
  same_results_as_the_host<E5M2>();
  // Averages of 64-bit integers whose sum fits no 64 bits.
  using R = Reduction<I64, Op::Avg>;
  const OpParams params = OpParams::of(3);
  const int64_t big = INT64_MAX - 1;
  check(R::finish(
            R::combine(R::combine(R::term(big, params, 1), R::term(big, params, 1)), R::term(big, params, 1)),
            params) == big,
        "avg of three great integers");
}

}  // namespace

int main() {
  test::run("numbers", numbers);
  test::run("every dtype and op", every_dtype_and_op);
  test::run("every algorithm and collective", every_algorithm_and_collective);
  test::run("all ranks get the same bits", all_ranks_get_the_same_bits);
  test::run("the late rank is found", the_late_rank_is_found);
  test::run("an abort ends all waits", an_abort_ends_all_waits);
  return test::result();
}
