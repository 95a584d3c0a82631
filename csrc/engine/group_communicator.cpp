#include "engine/group_communicator.h"

#include <pthread.h>

#include <cstring>
#include <limits>
#include <utility>

#include "engine/call_header.h"
#include "engine/calls.h"
#include "engine/hosts/default_ways.h"

namespace pycoll {
namespace {

constexpr std::string_view kDirect = "direct";
constexpr std::string_view kLateRank = "late_rank";

thread_local bool on_group_thread = false;

// A forked child has its parent's groups in its memory, and must neither use nor leave them: it is not the
// rank.
std::atomic<int> fork_generation{0};
const int fork_watch = ::pthread_atfork(nullptr, nullptr, [] { ++fork_generation; });

}  // namespace

std::shared_ptr<Communicator> Communicator::create(int rank, int ranks, const AllGatherBytes& all_gather,
                                                   CommunicatorOptions options) {
  std::shared_ptr<GroupCommunicator> communicator;
  const auto decide = std::exchange(options.decide, nullptr);  // it need not outlive this
  std::exception_ptr failure;
  std::string text;
  try {
    communicator = std::make_shared<GroupCommunicator>(rank, ranks,
                                                       join_group(rank, ranks, all_gather, options), options);
    communicator->start();
    if (rank == 0) {
      if (decide) options.decisions = decide(communicator->placement());
      communicator->begin_with(DecisionTable::parse(options.decisions));
    }
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

GroupCommunicator::GroupCommunicator(int rank, int ranks, Bootstrapped bootstrapped,
                                     CommunicatorOptions options)
    : options_(std::move(options)),
      rank_(rank),
      placement_(std::move(bootstrapped.placement)),
      group_(std::move(bootstrapped.segment), placement_.local(rank),
             static_cast<int>(placement_.host(rank).ranks.size()), options_.group, bootstrapped.patience,
             placement_.host(rank).ranks),
      arrivals_(group_),
      log_(ranks),
      direct_(group_, arrivals_, gain_, options_.fixed_order),
      channels_(group_),
      executor_(channels_),
      plans_(options_.group, rank, ranks, placement_.one_host() ? nullptr : placement_.topology()),
      hosts_(bootstrapped.network ? std::make_unique<Hosts>(group_, arrivals_, channels_, placement_, rank,
                                                            std::move(bootstrapped.network), plans_, gain_)
                                  : nullptr),
      selection_(
          options_.group, ranks,
          [this](CollectiveKind kind, const Way& way, int root) { return plans_.plan_for(kind, way, root); }),
      heap_(group_),
      queue_(std::make_shared<WorkQueue>([this] {
        group_.fail(
            shm::FailureKind::Timeout,
            "group '" + group_.name() + "', rank " + std::to_string(rank_) +
                ": a wait() timed out before its collective was complete. The group is no longer usable.");
      })),
      point_to_point_(std::make_unique<PointToPoint>(group_, heap_,
                                                     hosts_ ? std::optional(placement_) : std::nullopt,
                                                     std::move(bootstrapped.messages))),
      timeout_(options_.timeout.count()),
      fork_generation_(fork_generation) {}

void GroupCommunicator::start() {
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
    if (self->hosts_) self->hosts_->links.leave();
    self->served_.set_value();
  }).detach();
  std::unique_lock lock(mutex);
  entered.wait(lock, [&] { return in; });
}

GroupCommunicator::~GroupCommunicator() = default;

void GroupCommunicator::close() {
  if (fork_generation_ != fork_generation || closed_.exchange(true)) return;
  const auto error = std::make_exception_ptr(
      Aborted("group '" + group_.name() + "': closed by this rank before the operation was complete"));
  point_to_point_->stop(error);
  queue_->stop(error);
  // Not from the group's own thread, and not for ever: that thread may be in a callback that waits for this
  // caller.
  served_.get_future().wait_for(std::chrono::seconds(1));
}

void GroupCommunicator::throw_if_closed() const {
  if (fork_generation_ != fork_generation.load(std::memory_order_relaxed))
    throw InvalidArgument(
        "group '" + group_.name() +
        "' was made before this process was forked, and belongs to the parent; make a group of "
        "the child's own");
  if (closed_.load(std::memory_order_relaxed))
    throw InvalidArgument("group '" + group_.name() + "': this communicator is closed; make a new one");
}

std::shared_ptr<const Plan> GroupCommunicator::prepare(const CollectiveCall& call) {
  throw_if_closed();
  check_call(call, rank_, ranks(), group_.name());
  if (!call.schedule && call.algorithm.empty()) return nullptr;
  const bool fast_path = !call.schedule && call.algorithm == kDirect && call.pieces == 0;
  if (fast_path && (!hosts_ || hosts_->meeting.carries(call))) return nullptr;
  return plans_.plan_for(call);
}

void GroupCommunicator::run(const CollectiveCall& call) {
  const std::shared_ptr<const Plan> plan = prepare(call);
  queue_->run([&](const Deadline& deadline) { execute(call, plan.get(), deadline); });
  if (selection_.has_news()) tell_news();
}

std::shared_ptr<Work> GroupCommunicator::submit(const CollectiveCall& call) {
  if (selection_.has_news()) tell_news();
  std::shared_ptr<const Plan> plan = prepare(call);
  return queue_->submit([this, call, plan = std::move(plan)](const Deadline& deadline) {
    execute(call, plan.get(), deadline);
  });
}

std::shared_ptr<Work> GroupCommunicator::submit_all(std::vector<CollectiveCall> calls) {
  if (selection_.has_news()) tell_news();
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const CollectiveCall& call : calls) plans.push_back(prepare(call));
  return queue_->submit([this, calls = std::move(calls), plans = std::move(plans)](const Deadline& deadline) {
    std::exception_ptr first;
    for (size_t i = 0; i < calls.size(); ++i) {
      try {
        execute(calls[i], plans[i].get(), deadline);
      } catch (const Mismatch&) {
        if (!first) first = std::current_exception();
        break;
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  });
}

std::shared_ptr<Work> GroupCommunicator::submit_then(const CollectiveCall& call, Then then) {
  if (selection_.has_news()) tell_news();
  std::shared_ptr<const Plan> plan = prepare(call);
  return queue_->submit(
      [this, call, plan = std::move(plan), then = std::move(then)](const Deadline& deadline) {
        execute(call, plan.get(), deadline);
        then(deadline);
      });
}

// The table is asked here and not when the call was made: it is the same on all ranks at a sequence number.
void GroupCommunicator::execute(const CollectiveCall& call, const Plan* plan, const Deadline& deadline) {
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
bool GroupCommunicator::all_buffers_are_shared(const CollectiveCall& call, uint64_t sequence) const {
  const bool from_root = call.kind == CollectiveKind::Broadcast || call.kind == CollectiveKind::Scatter;
  if (hosts_) return false;
  for (int rank = 0; rank < ranks(); ++rank) {
    const shm::CallHeader& header = arrivals_.header(rank, sequence);
    if ((!from_root || rank == call.root) && header.input.length == 0) return false;
    if (call.kind == CollectiveKind::AllReduce && header.output.length == 0) return false;
  }
  return true;
}

void GroupCommunicator::look_at_time(Selection::Row& row, const CollectiveCall& call,
                                     const Arrivals::Met& met, const Deadline& deadline) {
  // The longer the group lives the better it is known; asking costs as much as a look at the clock.
  if (timed_calls_++ % 256 == 0) seconds_per_tick_ = log_.seconds_per_tick();
  const double tick = seconds_per_tick_;
  const double seconds = static_cast<double>(ticks() - met.last) * tick;
  // Ranks that share processors see nothing of how far apart those are.
  if (!hosts_ && !group_.more_ranks_than_processors())
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

void GroupCommunicator::tell_news() {
  for (const std::string& text : selection_.take_news())
    if (rank() == 0 && options_.log) options_.log(text);
}

void GroupCommunicator::install(DecisionTable table) {
  throw_if_closed();
  check_fits(table);
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
    CollectiveCall nothing;
    nothing.kind = CollectiveKind::Barrier;
    match(nothing, install, false);
    if (hosts_) hosts_->links.settle();
    follow(prepared.table);
    selection_.adopt(std::move(prepared));
  });
}

void GroupCommunicator::begin_with(DecisionTable table) {
  check_fits(table);
  follow(table);
  selection_.adopt(selection_.prepare(std::move(table)));
}

void GroupCommunicator::check_fits(const DecisionTable& table) const {
  if (table.topology && table.topology->rank_count() != ranks())
    throw InvalidArgument("group '" + group_.name() + "': the topology '" + table.topology->name + "' has " +
                          std::to_string(table.topology->rank_count()) + " ranks, the group " +
                          std::to_string(ranks()));
}

// Calls that name an algorithm, and those that no row covers, go by the table's topology too.
void GroupCommunicator::follow(const DecisionTable& table) {
  if (table.topology) plans_.fit_to(table.topology);
}

// That of the next call, with whatever an earlier call left in it.
shm::CallHeader& GroupCommunicator::next_header() {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  sequence_.store(sequence, std::memory_order_relaxed);
  shm::CallHeader& header = arrivals_.header(sequence);
  header.sequence = sequence;
  header.table = selection_.hash();
  return header;
}

shm::Operation GroupCommunicator::operation(std::string_view name, size_t bytes, const CollectiveCall& call,
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

// Waits until every rank of the group is in the collective, and has called the same.
Arrivals::Met GroupCommunicator::match(const CollectiveCall& call, shm::Operation& operation, bool timed) {
  const std::span<uint64_t> log = log_.begin(operation.sequence);
  if (hosts_) return hosts_->meeting.meet(call, operation, log, log_.seconds_per_tick());
  const Arrivals::Met met = arrivals_.meet(operation, log, timed);
  if (met.signature == Arrivals::kDiffer)
    throw_mismatch(group_.name(), operation.sequence, arrivals_.headers(operation.sequence));
  return met;
}

// Whether nobody is waited for before the call begins. By default, where it is worth it, and where the table
// or the call names the algorithm.
bool GroupCommunicator::goes_late(const CollectiveCall& call, const Plan* plan) const {
  if (!hosts_ || call.schedule || options_.fixed_order) return false;
  return (plan == nullptr || plan->schedule->algorithm == kLateRank) && hosts_->late_calls.fits(call);
}

// Once for each rank: that one call in a while goes as usual is no news.
void GroupCommunicator::tell_of_slow_rank(uint64_t sequence) {
  const int slow = hosts_->late_calls.around();
  if (slow < 0 || slow == told_slow_) return;
  told_slow_ = slow;
  selection_.add_news(
      "group '" + group_.name() + "': the link of rank " + std::to_string(slow) + " on host '" +
      placement_.host(slow).name + "' is slow; from collective #" + std::to_string(sequence) +
      " on large AllReduces go around it as if the rank were late, as long as that is quicker");
}

Arrivals::Met GroupCommunicator::perform(const CollectiveCall& call, const Plan* plan,
                                         const Deadline& deadline, const Selection::Row* row, bool timed) {
  group_.throw_if_failed();
  std::optional<HostLinks::Busy> busy;
  if (hosts_) busy.emplace(hosts_->links);
  // The meeting adds in the order of ranks, and schedules cannot: with a fixed order all sizes go by
  // schedule.
  const bool may_carry = !options_.fixed_order || !is_reduction(call.kind) || call.count == 0;
  const bool carried = hosts_ && plan == nullptr && may_carry && hosts_->meeting.carries(call);
  const bool late = !carried && goes_late(call, plan);
  std::shared_ptr<const Plan> default_plan;
  if (hosts_ && plan == nullptr && !carried && !late) {
    const Way way = default_way(call.kind, table_bytes(call, ranks()), placement_, options_.fixed_order);
    default_plan = plans_.plan_for(call.kind, way.algorithm, way.pieces, call.root);
    plan = default_plan.get();
  }
  const bool barrier = call.kind == CollectiveKind::Barrier;
  const size_t bytes = barrier ? 0 : call.count * size_of(call.dtype);
  // What of a call is not of its kind must not make ranks differ.
  shm::CallHeader& header = next_header();
  const uint64_t sequence = header.sequence;
  header.count = barrier ? 0 : call.count;
  header.schedule_hash = late ? hosts_->late_calls.hash(call) : plan != nullptr ? plan->hash : 0;
  header.factor = call.factor;
  set_parts(header, call.parts.get());
  // All_to_all in place writes what others may still want to read: not from where it lies.
  const bool readable = call.kind != CollectiveKind::AllToAll || call.input != call.output;
  header.input = readable ? heap_.locate(call.input, extents_of(call, ranks()).input) : shm::HeapRange{};
  header.output =
      call.kind == CollectiveKind::AllReduce ? heap_.locate(call.output, bytes) : shm::HeapRange{};
  header.root = is_rooted(call.kind) ? call.root : 0;
  header.kind = call.kind;
  header.dtype = barrier ? DType::UInt8 : call.dtype;
  header.op = is_reduction(call.kind) ? call.op : Op::Sum;
  const std::string_view algorithm = late              ? kLateRank
                                     : plan != nullptr ? std::string_view(plan->schedule->algorithm)
                                                       : kDirect;
  header.algorithm[algorithm.copy(header.algorithm, sizeof header.algorithm - 1)] = '\0';
  header.caller[call.caller.copy(header.caller, sizeof header.caller - 1)] = '\0';

  shm::Operation operation = this->operation(name_of(call.kind), bytes, call, deadline);
  const uint32_t hints = row != nullptr ? selection_.hints(*row) : 0;
  if (carried)
    hosts_->meeting.prepare(call, sequence);
  else if (plan == nullptr && !late)
    direct_.prepare(call, sequence);
  arrivals_.announce(sequence, hints);
  if (late) {
    Arrivals::Met met;
    hosts_->transport.begin(operation);
    const bool ran = hosts_->late_calls.run(call, header, hints, operation, log_.begin(sequence),
                                            log_.seconds_per_tick(), met);
    if (rank_ == 0) tell_of_slow_rank(sequence);
    // Where the calls differ, the meeting says how, to all.
    if (!ran) return match(call, operation, timed);
    hosts_->links.settle();
    return met;
  }
  if (!hosts_ && plan == nullptr && direct_.may_begin_early(call)) {
    const Arrivals::Met met = direct_.run_from_arrival(call, operation, log_.begin(sequence), timed);
    if (met.signature == Arrivals::kDiffer)
      throw_mismatch(group_.name(), sequence, arrivals_.headers(sequence));
    return met;
  }
  Arrivals::Met met = match(call, operation, timed);
  // The table is of buffers that must be copied. Those in shared memory are best read where they lie.
  if (row != nullptr && bytes > shm::kSmallSlot && all_buffers_are_shared(call, sequence)) {
    plan = nullptr;
    met.seen = met.last = 0;
  }
  if (carried) {
    hosts_->meeting.finish(call);
  } else if (plan == nullptr) {
    direct_.finish(call, operation);
  } else if (bytes != 0) {
    if (hosts_) {
      hosts_->transport.begin(operation);
      hosts_->executor.run(*plan, call);
    } else {
      channels_.begin(operation);
      executor_.run(*plan, call);
    }
  }
  if (hosts_) hosts_->links.settle();
  return met;
}

std::shared_ptr<Work> GroupCommunicator::send(const void* data, size_t bytes, int destination, uint64_t tag,
                                              std::optional<Nanoseconds> timeout) {
  throw_if_closed();
  group_.throw_if_failed();
  if (destination < 0 || destination >= ranks() || destination == rank())
    throw InvalidArgument("group '" + group_.name() + "', rank " + std::to_string(rank()) +
                          ": cannot send to rank " + std::to_string(destination));
  return point_to_point_->send(data, bytes, destination, tag, timeout.value_or(Nanoseconds(timeout_.load())));
}

std::shared_ptr<Work> GroupCommunicator::recv(void* data, size_t bytes, int source, uint64_t tag,
                                              std::optional<Nanoseconds> timeout, int* source_out) {
  throw_if_closed();
  group_.throw_if_failed();
  if (source < -1 || source >= ranks() || source == rank())
    throw InvalidArgument("group '" + group_.name() + "', rank " + std::to_string(rank()) +
                          ": cannot receive from rank " + std::to_string(source));
  return point_to_point_->recv(data, bytes, source, tag, timeout.value_or(Nanoseconds(timeout_.load())),
                               source_out);
}

void* GroupCommunicator::allocate(size_t bytes) {
  throw_if_closed();
  return heap_.allocate(bytes);
}

MemoryReport GroupCommunicator::memory() const {
  return {.shared_bytes = group_.segment().layout().stride + point_to_point_->shared_bytes(),
          .private_bytes = executor_.scratch_bytes() + point_to_point_->private_bytes() +
                           (hosts_ ? hosts_->executor.scratch_bytes() + hosts_->links.memory_bytes() : 0),
          .allocated_bytes = heap_.allocated_bytes()};
}

std::vector<ArrivalRecord> GroupCommunicator::arrivals() const {
  return log_.records();
}

std::string GroupCommunicator::chosen_algorithm(const CollectiveCall& call) const {
  if (call.schedule) return call.schedule->algorithm;
  if (!call.algorithm.empty()) return call.algorithm;
  return selection_.choice(call.kind, call.dtype, table_bytes(call, ranks()));
}

void GroupCommunicator::abort(const std::string& reason) {
  group_.fail(shm::FailureKind::Aborted,
              "group '" + group_.name() + "' was aborted by rank " + std::to_string(rank()) + ": " + reason);
  if (hosts_) hosts_->links.spread();
}

}  // namespace pycoll
