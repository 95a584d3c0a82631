// Ranks of a machine on threads of the host, what they are given and what must come out: for the tests of the
// CUDA kernels' bodies.
#pragma once
#include <algorithm>
#include <chrono>
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

namespace pycoll::test {

using namespace pycoll::cuda;

inline uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xff51afd7ed558ccdu + 1;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 29);
}

// Small numbers, of which every partial result is exact in every format, so that no order matters.
inline int value(Op op, int ranks, int rank, uint64_t i) {
  const uint64_t h = mixed(i, 7), n = static_cast<uint64_t>(ranks), r = static_cast<uint64_t>(rank);
  if (op == Op::Min || op == Op::Max) return static_cast<int>(mixed(i, r) % 15) - 7;
  const int hit = (h % n == r) + ((h >> 20) % n == r) * static_cast<int>((h >> 40) % 3);
  if (op == Op::Prod) return hit != 0 ? 2 : 1;
  return hit;
}

inline double factor_of(bool integer, int rank) {
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

struct Prepared {
  Tables tables;
  std::vector<TableView> views;
};

inline std::shared_ptr<Prepared> prepared(const Schedule& schedule) {
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

inline std::vector<std::shared_ptr<Prepared>> all_reduces(int ranks) {
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

inline constexpr int kRanks[] = {2, 3, 4, 5, 6, 7, 8, 9, 16};

}  // namespace pycoll::test
