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
#include "schedule/verify.h"

namespace {

using namespace pycoll;
using namespace pycoll::cuda;
using test::BlockBarrier;
using test::check;
using test::HostContext;

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xff51afd7ed558ccdu + 1;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 29);
}

// Small numbers, of which every partial result is exact in every format, so that no order matters.
int value(Op op, int ranks, int rank, uint64_t i) {
  const uint64_t h = mixed(i, 7), n = static_cast<uint64_t>(ranks), r = static_cast<uint64_t>(rank);
  if (op == Op::Min || op == Op::Max) return static_cast<int>(mixed(i, r) % 15) - 7;
  const int hit = (h % n == r) + ((h >> 20) % n == r) * static_cast<int>((h >> 40) % 3);
  if (op == Op::Prod) return hit != 0 ? 2 : 1;
  return hit;
}

double factor_of(bool integer, int rank) {
  return integer ? 1 + rank % 3 : rank % 2 == 0 ? 2 : 0.5;
}

template <class F>
std::vector<typename F::Storage> input_of(Op op, int ranks, int rank, uint64_t count) {
  std::vector<typename F::Storage> result;
  for (uint64_t i = 0; i < count; ++i)
    result.push_back(F::encode(static_cast<typename F::Acc>(value(op, ranks, rank, i))));
  return result;
}

// One rank's part in one call.
template <class F>
struct Part {
  std::vector<typename F::Storage> input, output, expected;
};

// Ranks of a machine, each some blocks of threads, and the calls that they run one after the other.
class Machine {
 public:
  Machine(int ranks, int blocks, size_t staging) : layout_(Layout::of(ranks, blocks, 2048, 1100, staging)) {
    for (int rank = 0; rank < ranks; ++rank) {
      memory_.emplace_back(layout_.bytes() / 16 + 1);
      heaps_.push_back(reinterpret_cast<char*>(memory_.back().data()));
      work_.push_back(heaps_.back() + layout_.staging_begin());
    }
  }
  int ranks() const { return layout_.ranks; }
  // Of a block: several, but where there are many blocks.
  int threads() const { return layout_.ranks <= 5 ? 2 : 1; }
  const Layout& layout() const { return layout_; }
  char* const* heaps() const { return heaps_.data(); }
  char* const* work() const { return work_.data(); }

  using Body = std::function<bool(HostContext&, int rank)>;
  // `blocks` of every rank run the body; `check` looks at what came out when all calls have run.
  void add(int blocks, Body body, std::function<void()> check) {
    calls_.push_back({blocks, std::move(body)});
    checks_.push_back(std::move(check));
  }
  // Whether ranks come to calls late, at random.
  void scatter_arrivals() { scattered_ = true; }
  // One rank never comes, and the group is aborted.
  void run_without(int missing) {
    missing_ = missing;
    aborted_ = true;
    run_calls();
  }

  void run() {
    run_calls();
    for (const auto& check_call : checks_) check_call();
  }
  bool stopped() const { return stopped_; }

 private:
  void run_calls() {
    std::vector<std::unique_ptr<BlockBarrier>> barriers, kernels;
    for (int i = 0; i < ranks() * layout_.blocks; ++i)
      barriers.push_back(std::make_unique<BlockBarrier>(this->threads()));
    for (int i = 0; i < ranks(); ++i)
      kernels.push_back(std::make_unique<BlockBarrier>(this->threads() * layout_.blocks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank)
      for (int block = 0; block < layout_.blocks; ++block)
        for (int thread = 0; thread < this->threads(); ++thread)
          threads.emplace_back([&, rank, block, thread] {
            std::mt19937 random(static_cast<unsigned>(rank));  // the same in all threads of a rank
            for (const auto& [blocks, body] : calls_) {
              if (scattered_ && random() % 3 == 0)
                std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
              HostContext context(thread, this->threads(), block, blocks,
                                  *barriers[static_cast<size_t>(rank * layout_.blocks + block)], aborted_);
              if (rank != missing_ && block < blocks && !body(context, rank)) stopped_ = true;
              kernels[static_cast<size_t>(rank)]->wait();  // a kernel begins when the one before has ended
            }
          });
    for (auto& thread : threads) thread.join();
  }

  struct Call {
    int blocks;
    Body body;
  };
  Layout layout_;
  std::vector<std::vector<Packet>> memory_;
  std::vector<char*> heaps_, work_;
  std::vector<Call> calls_;
  std::vector<std::function<void()>> checks_;
  std::atomic<bool> aborted_ = false, stopped_ = false;
  bool scattered_ = false;
  int missing_ = -1;
};

template <class F>
using Parts = std::shared_ptr<std::vector<Part<F>>>;

template <class R>
std::string name_of_call(const std::string& what, int ranks, uint64_t count) {
  return what + " " + std::string(name_of(R::Format::kDType)) + " " + std::string(name_of(R::kOperator)) +
         " on " + std::to_string(ranks) + " ranks, " + std::to_string(count) + " elements";
}

// Inputs and right outputs of a collective, computed by reduce_many where it reduces.
template <class R>
Parts<typename R::Format> parts_of(const Collective& collective, uint64_t count) {
  using F = typename R::Format;
  using Storage = typename F::Storage;
  const int ranks = collective.ranks;
  const Op op = R::kOperator;
  const bool reduces = is_reduction(collective.kind);
  auto parts = std::make_shared<std::vector<Part<F>>>(static_cast<size_t>(ranks));
  // Every rank's contribution to the whole logical buffer, and the buffer as it must become.
  const uint64_t elements = collective.logical_elements(count);
  std::vector<std::vector<Storage>> contributions;
  std::vector<Storage> whole(elements);
  for (int rank = 0; rank < ranks; ++rank) contributions.push_back(input_of<F>(op, ranks, rank, elements));
  if (reduces && elements > 0) {
    std::vector<const void*> sources;
    std::vector<double> factors;
    for (int rank = 0; rank < ranks; ++rank) {
      sources.push_back(contributions[static_cast<size_t>(rank)].data());
      factors.push_back(factor_of(kIsInteger<F>, rank));
    }
    void* const destinations[] = {whole.data()};
    reduce_many(F::kDType, op, sources, destinations, elements, factors.data(), ranks);
  }
  const uint64_t blocks =
      collective.pieces_multiple() == 1 ? 1 : static_cast<uint64_t>(collective.pieces_multiple());
  Collective by_blocks = collective;
  by_blocks.pieces = static_cast<int>(blocks);
  for (int rank = 0; rank < ranks; ++rank) {
    Part<F>& part = (*parts)[static_cast<size_t>(rank)];
    for (int block = 0; block < by_blocks.pieces; ++block) {
      const uint64_t begin = static_cast<uint64_t>(block) * count;
      const auto copy = [&](std::vector<Storage>& to, const std::vector<Storage>& from, int index) {
        const auto at = static_cast<uint64_t>(index) * count;
        if (to.size() < at + count) to.resize(at + count);
        std::copy_n(from.begin() + static_cast<ptrdiff_t>(begin), count,
                    to.begin() + static_cast<ptrdiff_t>(at));
      };
      const int in = by_blocks.input_index(rank, block), out = by_blocks.output_index(rank, block);
      const int owner = by_blocks.sole_contributor(block);
      if (in >= 0) copy(part.input, contributions[static_cast<size_t>(rank)], in);
      if (out >= 0) copy(part.expected, owner >= 0 ? contributions[static_cast<size_t>(owner)] : whole, out);
    }
    part.output.assign(part.expected.size(), static_cast<Storage>(77));
  }
  return parts;
}

template <class F>
std::function<void()> check_of(const Parts<F>& parts, const std::string& what) {
  return [parts, what] {
    for (size_t rank = 0; rank < parts->size(); ++rank)
      check((*parts)[rank].output == (*parts)[rank].expected, what + ": rank " + std::to_string(rank));
  };
}

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

struct Prepared {
  Tables tables;
  std::vector<TableView> views;
};

std::shared_ptr<Prepared> prepared(const Schedule& schedule) {
  verify(schedule);
  auto made = std::make_shared<Prepared>();
  made->tables = make_tables(schedule);
  for (const Table& table : made->tables.by_rank)
    made->views.push_back({table.instructions.data(), table.flags.data(), table.sources.data(),
                           static_cast<int32_t>(table.instructions.size())});
  return made;
}

// In windows of `window` elements of each block, or in place in users' buffers (zero-copy, AllReduce only).
template <class R>
void add_schedule(Machine& machine, const std::shared_ptr<Prepared>& plan, const std::string& what,
                  uint64_t count, uint64_t window, int blocks, bool finds_late = false,
                  bool zero_copy = false) {
  using F = typename R::Format;
  using Storage = typename F::Storage;
  const Collective& collective = plan->tables.collective;
  auto parts = parts_of<R>(collective, count);
  auto users = std::make_shared<std::vector<char*>>();
  auto aligned = std::make_shared<std::vector<std::vector<Packet>>>();
  const uint64_t size = collective.logical_elements(count) * sizeof(Storage);
  for (Part<F>& part : *parts) {
    aligned->emplace_back(size / sizeof(Packet) + 1);
    users->push_back(reinterpret_cast<char*>(aligned->back().data()));
    if (zero_copy) std::copy_n(part.input.begin(), count, reinterpret_cast<Storage*>(users->back()));
  }
  const uint64_t half = machine.layout().staging / 2 / 16 * 16;
  const uint64_t wire = sizeof(typename R::Wire::Storage);
  window = std::min(window, window_length(collective, wire, count, half));
  for (uint64_t begin = 0; begin == 0 || begin < count; begin += std::max<uint64_t>(window, 1)) {
    auto calls = std::make_shared<std::vector<ScheduleCall>>();
    for (int rank = 0; rank < collective.ranks; ++rank) {
      Part<F>& part = (*parts)[static_cast<size_t>(rank)];
      ScheduleCall call{};
      call.layout = machine.layout();
      call.heaps = machine.heaps();
      call.work = zero_copy ? users->data() : machine.work();
      call.snapshots = half;
      call.tables = plan->views.data() + (finds_late ? 0 : rank);
      call.rank = rank;
      call.finds_late = finds_late;
      call.params = OpParams::of(collective.ranks, factor_of(kIsInteger<F>, rank));
      char* const user = (*users)[static_cast<size_t>(rank)];
      set_window(call, collective, zero_copy ? user : reinterpret_cast<char*>(part.input.data()),
                 zero_copy ? user : reinterpret_cast<char*>(part.output.data()), sizeof(Storage), count,
                 begin, std::min(window, count - begin));
      calls->push_back(call);
    }
    const bool is_last = begin + window >= count;
    machine.add(
        blocks,
        [calls, plan](HostContext& context, int rank) {
          return run_schedule<R>(context, (*calls)[static_cast<size_t>(rank)]);
        },
        [=, check_all = check_of<F>(parts, name_of_call<R>(what, collective.ranks, count))] {
          if (!is_last) return;
          for (size_t rank = 0; zero_copy && rank < parts->size(); ++rank)
            std::copy_n(reinterpret_cast<const Storage*>((*users)[rank]), count,
                        (*parts)[rank].output.begin());
          check_all();
          (void)aligned;
        });
  }
}

template <class F, class Visit>
void for_each_op(const Visit& visit) {
  visit(Reduction<F, Op::Sum>{});
  visit(Reduction<F, Op::Avg>{});
  visit(Reduction<F, Op::Prod>{});
  visit(Reduction<F, Op::Min>{});
  visit(Reduction<F, Op::Max>{});
  visit(Reduction<F, Op::PremulSum>{});
}

template <class Visit>
void for_each_reduction(const Visit& visit) {
  for_each_op<F32>(visit);
  for_each_op<F16>(visit);
  for_each_op<BF16>(visit);
  for_each_op<E4M3>(visit);
  for_each_op<E5M2>(visit);
  for_each_op<F64>(visit);
  for_each_op<I32>(visit);
  for_each_op<I64>(visit);
}

std::vector<std::shared_ptr<Prepared>> all_reduces(int ranks) {
  std::vector<std::shared_ptr<Prepared>> made;
  for (const Algorithm& algorithm : algorithms()) {
    const auto& can = algorithm.collectives;
    if (std::find(can.begin(), can.end(), CollectiveKind::AllReduce) == can.end() ||
        !algorithm.accepts(ranks))
      continue;
    try {
      made.push_back(
          prepared(build(algorithm.name, {.kind = CollectiveKind::AllReduce, .ranks = ranks, .params = {}})));
    } catch (const InvalidArgument&) {  // it needs a topology
    } catch (const Unsupported&) {
    }
  }
  return made;
}

constexpr int kRanks[] = {2, 3, 4, 5, 6, 7, 8, 9, 16};

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
