#include "engine/shm_communicator.h"

#include <pthread.h>

#include <cstring>
#include <limits>

#include "algorithms/registry.h"
#include "schedule/verify.h"

namespace pycoll {
namespace {

constexpr std::string_view kDirect = "direct";

thread_local bool on_group_thread = false;

// A forked child has its parent's groups in its memory, and must neither use nor leave them: it is not the
// rank.
std::atomic<int> fork_generation{0};
const int fork_watch = ::pthread_atfork(nullptr, nullptr, [] { ++fork_generation; });

// The call's input and output in bytes, as this rank's part in it has them.
struct Extents {
  size_t input;
  size_t output;
};

Extents extents_of(const CollectiveCall& call, int ranks) {
  const size_t share = call.count * size_of(call.dtype);
  const size_t all = share * static_cast<size_t>(ranks);
  switch (call.kind) {
    case CollectiveKind::AllGather:
    case CollectiveKind::Gather:
      return {share, all};
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::Scatter:
      return {all, share};
    case CollectiveKind::AllToAll:
      return {all, all};
    default:
      return {share, share};
  }
}

// The larger of a rank's two buffers, the same on every rank.
uint64_t table_bytes(const CollectiveCall& call, int ranks) {
  const uint64_t share = call.count * size_of(call.dtype);
  switch (call.kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::Reduce:
    case CollectiveKind::Broadcast:
      return share;
    case CollectiveKind::Barrier:
      return 0;
    default:
      return share * static_cast<uint64_t>(ranks);
  }
}

bool overlap(const CollectiveCall& call, int ranks) {
  if (call.input == nullptr || call.output == nullptr) return false;
  const auto input = reinterpret_cast<uintptr_t>(call.input);
  const auto output = reinterpret_cast<uintptr_t>(call.output);
  const Extents bytes = extents_of(call, ranks);
  return input < output + bytes.output && output < input + bytes.input;
}

// In place: the same buffer, or where one side is a share, the rank's own share of the other.
bool in_place(const CollectiveCall& call, int ranks, int rank) {
  const Extents bytes = extents_of(call, ranks);
  const auto* input = static_cast<const std::byte*>(call.input);
  const auto* output = static_cast<const std::byte*>(call.output);
  const auto me = static_cast<size_t>(rank);
  if (bytes.input < bytes.output) return input == output + me * bytes.input;
  if (bytes.output < bytes.input) return output == input + me * bytes.output;
  return input == output;
}

// Whether the call moves data into or out of this rank, hence needs the pointer.
bool needs_input(const CollectiveCall& call, int rank) {
  if (call.count == 0 || call.kind == CollectiveKind::Barrier) return false;
  return rank == call.root ||
         (call.kind != CollectiveKind::Broadcast && call.kind != CollectiveKind::Scatter);
}

bool needs_output(const CollectiveCall& call, int rank) {
  if (call.count == 0 || call.kind == CollectiveKind::Barrier) return false;
  return rank == call.root || (call.kind != CollectiveKind::Reduce && call.kind != CollectiveKind::Gather);
}

}  // namespace

std::shared_ptr<Communicator> Communicator::create(int rank, int ranks, const AllGatherBytes& all_gather,
                                                   CommunicatorOptions options) {
  std::shared_ptr<ShmCommunicator> communicator;
  std::exception_ptr failure;
  std::string text;
  try {
    communicator =
        std::make_shared<ShmCommunicator>(rank, ranks, join_group(rank, ranks, all_gather, options), options);
    communicator->start();
    if (rank == 0) communicator->begin_with(DecisionTable::parse(options.decisions));
  } catch (const std::exception& error) {
    failure = std::current_exception();
    text = error.what();
  }
  try {
    const std::string decisions = confirm_group(rank, all_gather, options, text);
    if (communicator && rank != 0) communicator->begin_with(DecisionTable::parse(decisions));
  } catch (...) {
    if (communicator) communicator->close();
    if (!failure) throw;
  }
  if (failure) std::rethrow_exception(failure);
  return communicator;
}

ShmCommunicator::ShmCommunicator(int rank, int ranks, Bootstrapped bootstrapped, CommunicatorOptions options)
    : options_(std::move(options)),
      group_(std::move(bootstrapped.segment), rank, ranks, options_.group, bootstrapped.patience),
      arrivals_(group_),
      direct_(group_, arrivals_),
      channels_(group_),
      executor_(channels_),
      selection_(options_.group, ranks,
                 [this](CollectiveKind kind, const Way& way, int root) {
                   return way.schedule ? own_plan(way.schedule, kind)
                                       : build_plan(kind, way.algorithm, way.pieces, root);
                 }),
      heap_(group_),
      queue_(std::make_shared<WorkQueue>([this] {
        group_.fail(
            shm::FailureKind::Timeout,
            "group '" + group_.name() + "', rank " + std::to_string(group_.rank()) +
                ": a wait() timed out before its collective was complete. The group is no longer usable.");
      })),
      point_to_point_(std::make_unique<PointToPoint>(group_, heap_)),
      timeout_(options_.timeout.count()),
      fork_generation_(fork_generation) {}

void ShmCommunicator::start() {
  std::mutex mutex;
  std::condition_variable entered;
  bool in = false;
  // The thread keeps the group alive, not the other way round: it must be able to outlast a close() that
  // could not wait.
  std::thread([self = shared_from_this(), &mutex, &entered, &in] {
    self->group_.enter();
    {
      const std::lock_guard lock(mutex);
      in = true;
      entered.notify_one();
    }
    on_group_thread = true;
    self->queue_->serve();
    self->group_.leave();
    self->served_.set_value();
  }).detach();
  std::unique_lock lock(mutex);
  entered.wait(lock, [&] { return in; });
}

ShmCommunicator::~ShmCommunicator() = default;

void ShmCommunicator::close() {
  if (fork_generation_ != fork_generation || closed_.exchange(true)) return;
  const auto error = std::make_exception_ptr(
      Aborted("group '" + group_.name() + "': closed by this rank before the operation was complete"));
  point_to_point_->stop(error);
  queue_->stop(error);
  // Not from the group's own thread, and not for ever: that thread may be in a callback that waits for this
  // caller.
  served_.get_future().wait_for(std::chrono::seconds(1));
}

void ShmCommunicator::throw_if_closed() const {
  if (fork_generation_ != fork_generation.load(std::memory_order_relaxed))
    throw InvalidArgument(
        "group '" + group_.name() +
        "' was made before this process was forked, and belongs to the parent; make a group of "
        "the child's own");
  if (closed_.load(std::memory_order_relaxed))
    throw InvalidArgument("group '" + group_.name() + "': this communicator is closed; make a new one");
}

void ShmCommunicator::check(const CollectiveCall& call) const {
  const auto complain = [&](const std::string& what) {
    throw InvalidArgument("group '" + group_.name() + "', rank " + std::to_string(rank()) + ": " +
                          std::string(name_of(call.kind)) + " " + what);
  };
  if (is_rooted(call.kind) && (call.root < 0 || call.root >= ranks()))
    complain("with root " + std::to_string(call.root) + "; the group has ranks 0 to " +
             std::to_string(ranks() - 1));
  if (call.input == nullptr && needs_input(call, rank())) complain("needs an input buffer on this rank");
  if (call.output == nullptr && needs_output(call, rank())) complain("needs an output buffer on this rank");
  if (overlap(call, ranks()) && !in_place(call, ranks(), rank()))
    complain("with an input and an output that overlap, other than in place; give it a copy of the input");
  if (call.dtype == DType::Int128) complain("has no dtype int128");
  if (is_reduction(call.kind)) {
    require_supported(call.dtype, call.op);
    if (call.op == Op::PremulSum) require_factor(call.dtype, call.factor);
  }
}

std::shared_ptr<const Plan> ShmCommunicator::plan_for(const CollectiveCall& call) {
  const std::lock_guard lock(plans_mutex_);
  if (call.schedule) {
    require_fit(*call.schedule, call.kind);
    if (is_rooted(call.kind) && call.schedule->collective.root != call.root)
      throw InvalidArgument("group '" + group_.name() + "': the schedule is for root " +
                            std::to_string(call.schedule->collective.root) + "; the call has root " +
                            std::to_string(call.root));
    if (const auto known = own_plans_.find(call.schedule.get()); known != own_plans_.end())
      return known->second;
    auto plan = own_plan(call.schedule, call.kind);
    constexpr size_t kOwnPlans = 64;  // who makes a new schedule for each call must not fill the memory
    if (own_plans_.size() >= kOwnPlans) own_plans_.clear();
    own_plans_.emplace(call.schedule.get(),
                       plan);  // the plan keeps the schedule, so the address stays its own
    return plan;
  }
  auto& plan = plans_[{call.kind, call.algorithm, call.pieces, is_rooted(call.kind) ? call.root : 0}];
  if (!plan) plan = build_plan(call.kind, call.algorithm, call.pieces, is_rooted(call.kind) ? call.root : 0);
  return plan;
}

void ShmCommunicator::require_fit(const Schedule& schedule, CollectiveKind kind) const {
  const Collective& collective = schedule.collective;
  if (collective.kind != kind || collective.ranks != ranks())
    throw InvalidArgument("group '" + group_.name() + "': the schedule is for " +
                          std::string(name_of(collective.kind)) + " of " + std::to_string(collective.ranks) +
                          " ranks; the call is " + std::string(name_of(kind)) + " of " +
                          std::to_string(ranks()) + " ranks");
}

std::shared_ptr<const Plan> ShmCommunicator::own_plan(const std::shared_ptr<const Schedule>& schedule,
                                                      CollectiveKind kind) const {
  require_fit(*schedule, kind);
  verify(*schedule);
  return make_plan(schedule, rank());
}

std::shared_ptr<const Plan> ShmCommunicator::build_plan(CollectiveKind kind, std::string_view algorithm,
                                                        int pieces, int root) const {
  const BuildRequest request{.kind = kind, .ranks = ranks(), .pieces = pieces, .root = root, .params = {}};
  auto schedule = std::make_shared<Schedule>(build(algorithm, request));
  verify(*schedule);
  return make_plan(std::move(schedule), rank());
}

std::shared_ptr<const Plan> ShmCommunicator::prepare(const CollectiveCall& call) {
  throw_if_closed();
  check(call);
  if (!call.schedule && (call.algorithm.empty() || (call.algorithm == kDirect && call.pieces == 0)))
    return nullptr;
  return plan_for(call);
}

void ShmCommunicator::run(const CollectiveCall& call) {
  const std::shared_ptr<const Plan> plan = prepare(call);
  queue_->run([&](const Deadline& deadline) { execute(call, plan.get(), deadline); });
  if (selection_.has_news()) tell_news();
}

std::shared_ptr<Work> ShmCommunicator::submit(const CollectiveCall& call) {
  if (selection_.has_news()) tell_news();
  std::shared_ptr<const Plan> plan = prepare(call);
  return queue_->submit([this, call, plan = std::move(plan)](const Deadline& deadline) {
    execute(call, plan.get(), deadline);
  });
}

// The table is asked here and not when the call was made: it is the same on all ranks at a sequence number.
void ShmCommunicator::execute(const CollectiveCall& call, const Plan* plan, const Deadline& deadline) {
  const uint64_t bytes = table_bytes(call, ranks());
  Selection::Row* const row =
      call.algorithm.empty() && !call.schedule ? selection_.find(call.kind, call.dtype, bytes) : nullptr;
  if (row == nullptr) {
    perform(call, plan, deadline);
    return;
  }
  const bool timed = Selection::is_timed(*row, bytes);
  const Arrivals::Met met = perform(call, selection_.plan(*row, call.root), deadline, row, timed);
  if (timed && met.last != 0) look_at_time(*row, call, met, deadline);
  if (met.hints != 0) selection_.heed(*row, met.hints);
}

// The same answer on all ranks: each sees the headers of all.
bool ShmCommunicator::all_buffers_are_shared(const CollectiveCall& call, uint64_t sequence) const {
  const bool from_root = call.kind == CollectiveKind::Broadcast || call.kind == CollectiveKind::Scatter;
  for (int rank = 0; rank < ranks(); ++rank) {
    const shm::CallHeader& header = arrivals_.header(rank, sequence);
    if ((!from_root || rank == call.root) && header.input.length == 0) return false;
    if (call.kind == CollectiveKind::AllReduce && header.output.length == 0) return false;
  }
  return true;
}

void ShmCommunicator::look_at_time(Selection::Row& row, const CollectiveCall& call, const Arrivals::Met& met,
                                   const Deadline& deadline) {
  // The longer the group lives the better it is known; asking costs as much as a look at the clock.
  if (timed_calls_++ % 256 == 0) seconds_per_tick_ = arrivals_.seconds_per_tick();
  const double tick = seconds_per_tick_;
  const double seconds = static_cast<double>(ticks() - met.last) * tick;
  // Ranks that share processors see nothing of how far apart those are.
  if (!group_.more_ranks_than_processors())
    selection_.feel_distance(met.seen == 0
                                 ? std::numeric_limits<double>::quiet_NaN()
                                 : static_cast<double>(static_cast<int64_t>(met.seen - met.last)) * tick);
  if (!selection_.timed(row, table_bytes(call, ranks()), seconds, tick)) return;
  // The trial is over, for all ranks at this call. What a way costs the group is what it costs the slowest.
  std::vector<double> scores = selection_.scores(row);
  CollectiveCall agreement;
  agreement.dtype = DType::Float64;
  agreement.op = Op::Max;
  agreement.input = agreement.output = scores.data();
  agreement.count = scores.size();
  perform(agreement, nullptr, deadline);
  selection_.settle(row, scores, sequence(), tick);
}

void ShmCommunicator::tell_news() {
  for (const std::string& text : selection_.take_news())
    if (rank() == 0 && options_.log) options_.log(text);
}

void ShmCommunicator::install(DecisionTable table) {
  throw_if_closed();
  Selection::Prepared prepared = selection_.prepare(std::move(table));
  queue_->run([&](const Deadline& deadline) {
    group_.throw_if_failed();
    shm::CallHeader& header = next_header();
    shm::CallHeader install_header;
    install_header.sequence = header.sequence;
    install_header.table = header.table;
    install_header.schedule_hash = prepared.table.hash;
    install_header.root = kInstall;
    header = install_header;
    shm::Operation install = operation("install", 0, {}, deadline);
    arrivals_.announce(install.sequence);
    arrivals_.match(install);
    selection_.adopt(std::move(prepared));
  });
}

// That of the next call, with whatever an earlier call left in it.
shm::CallHeader& ShmCommunicator::next_header() {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(sequence, std::memory_order_relaxed);
  shm::CallHeader& header = arrivals_.header(sequence);
  header.sequence = sequence;
  header.table = selection_.hash();
  return header;
}

shm::Operation ShmCommunicator::operation(std::string_view name, size_t bytes, const CollectiveCall& call,
                                          const Deadline& deadline) const {
  return {.name = name,
          .sequence = sequence_.load(std::memory_order_relaxed),
          .bytes = bytes,
          .in_background = on_group_thread,
          .interrupted = &options_.interrupted,
          .timeout = call.timeout ? *call.timeout : Nanoseconds(timeout_.load(std::memory_order_relaxed)),
          .started = {},
          .deadline = deadline};
}

Arrivals::Met ShmCommunicator::perform(const CollectiveCall& call, const Plan* plan, const Deadline& deadline,
                                       const Selection::Row* row, bool timed) {
  group_.throw_if_failed();
  const bool barrier = call.kind == CollectiveKind::Barrier;
  const size_t bytes = barrier ? 0 : call.count * size_of(call.dtype);
  // What of a call is not of its kind must not make ranks differ.
  shm::CallHeader& header = next_header();
  const uint64_t sequence = header.sequence;
  header.count = barrier ? 0 : call.count;
  header.schedule_hash = plan != nullptr ? plan->hash : 0;
  header.factor = call.factor;
  // All_to_all in place writes what others may still want to read: not from where it lies.
  const bool readable = call.kind != CollectiveKind::AllToAll || call.input != call.output;
  header.input = readable ? heap_.locate(call.input, extents_of(call, ranks()).input) : shm::HeapRange{};
  header.output =
      call.kind == CollectiveKind::AllReduce ? heap_.locate(call.output, bytes) : shm::HeapRange{};
  header.root = is_rooted(call.kind) ? call.root : 0;
  header.kind = call.kind;
  header.dtype = barrier ? DType::UInt8 : call.dtype;
  header.op = is_reduction(call.kind) ? call.op : Op::Sum;
  const std::string_view algorithm = plan != nullptr ? std::string_view(plan->schedule->algorithm) : kDirect;
  header.algorithm[algorithm.copy(header.algorithm, sizeof header.algorithm - 1)] = '\0';

  shm::Operation operation = this->operation(name_of(call.kind), bytes, call, deadline);
  if (plan == nullptr) direct_.prepare(call, sequence);
  arrivals_.announce(sequence, row != nullptr ? selection_.hints(*row) : 0);
  Arrivals::Met met = arrivals_.match(operation, timed);
  // The table is of buffers that must be copied. Those in shared memory are best read where they lie.
  if (row != nullptr && bytes > shm::kSmallSlot && all_buffers_are_shared(call, sequence)) {
    plan = nullptr;
    met.seen = met.last = 0;
  }
  if (plan == nullptr) {
    direct_.finish(call, operation);
  } else if (bytes != 0) {
    channels_.begin(operation);
    executor_.run(*plan, call);
  }
  return met;
}

std::shared_ptr<Work> ShmCommunicator::send(const void* data, size_t bytes, int destination, uint64_t tag,
                                            std::optional<Nanoseconds> timeout) {
  throw_if_closed();
  group_.throw_if_failed();
  if (destination < 0 || destination >= ranks() || destination == rank())
    throw InvalidArgument("group '" + group_.name() + "', rank " + std::to_string(rank()) +
                          ": cannot send to rank " + std::to_string(destination));
  return point_to_point_->send(data, bytes, destination, tag, timeout.value_or(Nanoseconds(timeout_.load())));
}

std::shared_ptr<Work> ShmCommunicator::recv(void* data, size_t bytes, int source, uint64_t tag,
                                            std::optional<Nanoseconds> timeout, int* source_out) {
  throw_if_closed();
  group_.throw_if_failed();
  if (source < -1 || source >= ranks() || source == rank())
    throw InvalidArgument("group '" + group_.name() + "', rank " + std::to_string(rank()) +
                          ": cannot receive from rank " + std::to_string(source));
  return point_to_point_->recv(data, bytes, source, tag, timeout.value_or(Nanoseconds(timeout_.load())),
                               source_out);
}

void* ShmCommunicator::allocate(size_t bytes) {
  throw_if_closed();
  return heap_.allocate(bytes);
}

MemoryReport ShmCommunicator::memory() const {
  return {.shared_bytes = group_.segment().layout().stride + point_to_point_->shared_bytes(),
          .private_bytes = executor_.scratch_bytes(),
          .allocated_bytes = heap_.allocated_bytes()};
}

std::vector<ArrivalRecord> ShmCommunicator::arrivals() const {
  return arrivals_.records();
}

std::string ShmCommunicator::chosen_algorithm(const CollectiveCall& call) const {
  if (call.schedule) return call.schedule->algorithm;
  if (!call.algorithm.empty()) return call.algorithm;
  return selection_.choice(call.kind, call.dtype, table_bytes(call, ranks()));
}

void ShmCommunicator::abort(const std::string& reason) {
  group_.fail(shm::FailureKind::Aborted,
              "group '" + group_.name() + "' was aborted by rank " + std::to_string(rank()) + ": " + reason);
}

}  // namespace pycoll
