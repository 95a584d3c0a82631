// Bodies of CUDA kernels that work in memory shared otherwise than by staging: through a switch that reduces
// (multicast objects), and in buffers of pools that ranks find out about on the way.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/agreement.h"
#include "cuda/nvls.h"
#include "cuda_machine.h"

namespace {

using namespace pycoll;
using namespace pycoll::cuda;
using namespace pycoll::test;

char* const kMulti = reinterpret_cast<char*>(uintptr_t{1} << 44);  // nobody reads or writes there

Collective collective_of(NvlsKind kind, int ranks) {
  if (kind == NvlsKind::AllReduce) return {.kind = CollectiveKind::AllReduce, .ranks = ranks, .pieces = 1};
  return {.kind = kind == NvlsKind::AllGather ? CollectiveKind::AllGather : CollectiveKind::ReduceScatter,
          .ranks = ranks,
          .pieces = ranks};
}

template <class R>
void add_nvls(Machine& machine, NvlsKind kind, uint64_t count, uint64_t window, int blocks, bool in_place) {
  using F = typename R::Format;
  using Storage = typename F::Storage;
  const int ranks = machine.ranks();
  auto parts = parts_of<R>(collective_of(kind, ranks), count);
  if (in_place)
    for (Part<F>& part : *parts) part.output = part.input;
  for (uint64_t begin = 0; begin < count; begin += window) {
    auto calls = std::make_shared<std::vector<NvlsCall>>();
    for (int rank = 0; rank < ranks; ++rank) {
      Part<F>& part = (*parts)[static_cast<size_t>(rank)];
      NvlsCall call{};
      call.layout = machine.layout();
      call.heap = machine.heaps()[rank];
      call.multi = kMulti;
      call.rank = rank;
      call.kind = kind;
      call.elements = std::min(window, count - begin);
      call.stride = count;
      const Storage* const input = in_place ? part.output.data() : part.input.data();
      call.input = reinterpret_cast<const char*>(input + begin);
      call.output = reinterpret_cast<char*>(part.output.data() + begin);
      call.params = OpParams::of(ranks, factor_of(kIsInteger<F>, rank));
      calls->push_back(call);
    }
    const bool is_last = begin + window >= count;
    machine.add(
        blocks,
        [calls, heaps = machine.heaps(), ranks](HostContext& context, int rank) {
          SwitchContext on_switch(context, kMulti, heaps, ranks);
          if constexpr (std::is_same_v<F, Raw>) {
            return run_nvls_all_gather(on_switch, (*calls)[static_cast<size_t>(rank)]);
          } else {
            return run_nvls<R>(on_switch, (*calls)[static_cast<size_t>(rank)]);
          }
        },
        [is_last, check_all = check_of<F>(parts, name_of_call<R>("through the switch", ranks, count))] {
          if (is_last) check_all();
        });
  }
}

template <class Visit>
void for_each_switch_reduction(const Visit& visit) {
  const auto if_it_can = [&]<class R>(R reduction) {
    if constexpr (kNvlsReduces<R>) visit(reduction);
  };
  for_each_reduction(if_it_can);
}

void through_the_switch() {
  for (const int ranks : kRanks) {
    Machine machine(ranks, 2, 40000);
    const auto ring =
        prepared(build("ring", {.kind = CollectiveKind::AllReduce, .ranks = ranks, .params = {}}));
    size_t turn = 0;
    for_each_switch_reduction([&]<class R>(R) {
      for (const uint64_t count : {uint64_t{1}, static_cast<uint64_t>(ranks) * 7 + 3, uint64_t{523}}) {
        if (++turn % 2 == 0 && ranks > 5) continue;
        const int blocks = 1 + static_cast<int>(turn % 2);
        add_nvls<R>(machine, NvlsKind::AllReduce, count, turn % 3 == 0 ? 17 : count, blocks, turn % 2 == 0);
        add_nvls<R>(machine, NvlsKind::ReduceScatter, count, turn % 3 == 1 ? 61 : count, blocks, false);
      }
      // Calls of other kinds between them use the same working memory.
      add_schedule<R>(machine, ring, "a ring between", 101, 101, 2);
      add_nvls<Reduction<Raw, Op::Sum>>(machine, NvlsKind::AllGather, 1 + turn * 13, 97, 2, false);
    });
    machine.run();
    check(!machine.stopped(), "nothing was aborted");
  }
}

void an_abort_ends_the_wait_for_the_switch() {
  Machine machine(3, 1, 4000);
  add_nvls<Reduction<F32, Op::Sum>>(machine, NvlsKind::AllReduce, 100, 100, 1, false);
  machine.run_without(2);
  check(machine.stopped(), "the others give up");
}

// What PTX has, and no more: nothing else may be launched.
void what_the_switch_reduces() {
  int reduced = 0;
  for_each_switch_reduction([&]<class R>(R) { ++reduced; });
  check(
      reduced == 3 + 2 * 5 + 2 * 2,
      "float32: sum, avg, premul_sum; 16-bit floats also min and max; of 8-bit ones what travels in float32");
  check(!kNvlsReduces<Reduction<F32, Op::Min>>, "no min of float32");
  check(!kNvlsReduces<Reduction<F16, Op::Prod>>, "no products");
  check(kNvlsReduces<Reduction<E4M3, Op::Avg>>, "8-bit averages travel in float32");
}

// Ranks' pools: two segments each, which all peers have mapped.
struct Pools {
  explicit Pools(int ranks, size_t bytes) : table(static_cast<size_t>(ranks) * kMostSegments) {
    for (int rank = 0; rank < ranks; ++rank)
      for (int segment = 0; segment < 2; ++segment) {
        memory.emplace_back(bytes / sizeof(Packet) + 1);
        table[static_cast<size_t>(rank * kMostSegments + segment)] =
            reinterpret_cast<char*>(memory.back().data());
      }
  }
  char* at(int rank, uint64_t offer) const {
    return table[static_cast<size_t>(rank) * kMostSegments + (offer >> kOffsetBits) - 1] +
           (offer & ((uint64_t{1} << kOffsetBits) - 1)) * 16;
  }
  std::vector<std::vector<Packet>> memory;
  std::vector<char*> table;
};

// In place in the pools, each rank's buffer elsewhere; rank `without` offers none.
template <class R>
void add_pooled(Machine& machine, const std::shared_ptr<Pools>& pools, const std::shared_ptr<Prepared>& plan,
                const std::string& what, uint64_t count, uint64_t window, int blocks, int without) {
  using F = typename R::Format;
  using Storage = typename F::Storage;
  const Collective& collective = plan->tables.collective;
  const int ranks = collective.ranks;
  const uint64_t elements = collective.logical_elements(count);
  auto parts = parts_of<R>(collective, count);
  const auto offer_at = [=](int rank) {
    return offer_of(static_cast<uint64_t>(rank % 2), static_cast<uint64_t>(rank) * 48 + 16);
  };
  auto buffers = std::make_shared<std::vector<Storage*>>();
  for (int rank = 0; rank < ranks; ++rank)
    buffers->push_back(reinterpret_cast<Storage*>(pools->at(rank, offer_at(rank))));
  // Pools are used by one call after another: a call's input is put there when all have ended the one before.
  for (uint64_t begin = 0; begin < count; begin += window) {
    const bool is_first = begin == 0, is_last = begin + window >= count;
    auto calls = std::make_shared<std::vector<ScheduleCall>>();
    for (int rank = 0; rank < ranks; ++rank) {
      ScheduleCall call{};
      call.layout = machine.layout();
      call.heaps = machine.heaps();
      call.work = machine.work();
      call.snapshots = machine.layout().staging / 2 / 16 * 16;
      call.tables = &plan->views[static_cast<size_t>(rank)];
      call.rank = rank;
      call.params = OpParams::of(ranks, 1);
      Storage* const user = (*buffers)[static_cast<size_t>(rank)];
      Part<F>& part = (*parts)[static_cast<size_t>(rank)];
      const bool gathers = collective.kind == CollectiveKind::AllGather;
      set_window(call, collective, gathers ? part.input.data() : user, user, sizeof(Storage), count, begin,
                 std::min(window, count - begin));
      call.offer = {.asks = true,
                    .mine = rank == without ? 0 : offer_at(rank) + begin * sizeof(Storage) / 16,
                    .segments = pools->table.data()};
      calls->push_back(call);
    }
    const bool in_place = collective.kind != CollectiveKind::AllGather;
    if (is_first && in_place)
      machine.add(
          machine.layout().blocks,
          [=](HostContext& context, int rank) {
            const auto& input = (*parts)[static_cast<size_t>(rank)].input;
            if (context.block() == 0 && context.thread() == 0)
              std::copy(input.begin(), input.end(), (*buffers)[static_cast<size_t>(rank)]);
            return true;
          },
          [] {});
    machine.add(
        blocks,
        [calls, plan](HostContext& context, int rank) {
          return run_schedule<R>(context, (*calls)[static_cast<size_t>(rank)]);
        },
        [] {});
    if (!is_last) continue;
    machine.add(
        machine.layout().blocks,
        [=](HostContext& context, int rank) {
          if (context.block() == 0 && context.thread() == 0)
            std::copy_n((*buffers)[static_cast<size_t>(rank)], elements,
                        (*parts)[static_cast<size_t>(rank)].output.begin());
          return true;
        },
        [check_all = check_of<F>(parts, name_of_call<R>(what, ranks, count)), pools] { check_all(); });
  }
}

void buffers_in_pools() {
  using R = Reduction<F32, Op::Sum>;
  for (const int ranks : {2, 3, 5, 8}) {
    const auto pools = std::make_shared<Pools>(ranks, 20000);
    for (const bool staged : {false, true}) {
      Machine machine(ranks, 2, 40000);
      for (int rank = 0; rank < ranks; ++rank)
        std::memset(machine.heaps()[rank] + machine.layout().staging_begin(), 0x5a, machine.layout().staging);
      const int without = staged ? ranks - 1 : -1;
      int turn = 0;
      for (const auto& plan : all_reduces(ranks)) {
        if (plan->tables.snapshots) continue;
        ++turn;
        add_pooled<R>(machine, pools, plan, "in pools", 523, turn % 2 == 0 ? 523 : 160, 1 + turn % 2,
                      without);
      }
      const auto gather =
          prepared(build("direct", {.kind = CollectiveKind::AllGather, .ranks = ranks, .params = {}}));
      add_pooled<Reduction<Raw, Op::Sum>>(machine, pools, gather, "in pools", 211, 211, 2, without);
      machine.run();
      check(!machine.stopped(), "nothing was aborted");
      bool untouched = true;
      for (int rank = 0; rank < ranks; ++rank) {
        const char* const begin = machine.heaps()[rank] + machine.layout().staging_begin();
        untouched &= std::all_of(begin, begin + machine.layout().staging, [](char c) { return c == 0x5a; });
      }
      check(untouched != staged, staged ? "one rank has none: all use staging" : "staging is not used");
    }
  }
}

// Which ranks have one changes from call to call.
void some_calls_in_pools() {
  using R = Reduction<I32, Op::Max>;
  const int ranks = 4;
  const auto pools = std::make_shared<Pools>(ranks, 20000);
  Machine machine(ranks, 2, 40000);
  machine.scatter_arrivals();
  const auto plan =
      prepared(build("direct_two_shot", {.kind = CollectiveKind::AllReduce, .ranks = ranks, .params = {}}));
  for (int call = 0; call < 12; ++call) {
    add_pooled<R>(machine, pools, plan, "now and then in pools", 300, 300, 1 + call % 2, call % 6 - 1);
    if (call % 3 == 0) add_schedule<R>(machine, plan, "never in pools", 77, 77, 2);
  }
  machine.run();
}

}  // namespace

int main() {
  test::run("through the switch", through_the_switch);
  test::run("an abort ends the wait for the switch", an_abort_ends_the_wait_for_the_switch);
  test::run("what the switch reduces", what_the_switch_reduces);
  test::run("buffers in pools", buffers_in_pools);
  test::run("some calls in pools", some_calls_in_pools);
  return test::result();
}
