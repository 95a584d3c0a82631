#include "engine/hosts/meeting.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/clock.h"
#include "core/error.h"
#include "engine/call_header.h"

namespace pycoll {
namespace {

constexpr size_t kHalf = shm::kGathered / 2;
constexpr size_t kUnit = 16;  // all parts of a block are aligned to it
// What all ranks give together: up to here one message in each of log2(hosts) rounds beats any schedule.
constexpr size_t kCarried = 32 << 10;

constexpr size_t round_up(size_t bytes) {
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

// What a host says, behind the BlockHead: for each of its ranks the nanoseconds from its arrival to the
// moment the block counts from, then its factor (of premul_sum), then what it gives.
struct Statement {
  BlockHead head;
  uint64_t signature = 0;  // of all its ranks' calls; Arrivals::kDiffer: they do not fit each other
  uint32_t hints = 0;
  uint32_t given = 0;  // bytes a rank
};
static_assert(sizeof(Statement) % kUnit == 0);

struct Arrived {
  uint64_t before_ns;
  double factor;
};
static_assert(sizeof(Arrived) == kUnit);

Statement statement_of(std::span<const std::byte> block) {
  Statement statement;
  std::memcpy(&statement, block.data(), sizeof statement);
  return statement;
}

}  // namespace

HostMeeting::HostMeeting(shm::Group& group, Arrivals& arrivals, HostLinks& links, HostExchange& exchange)
    : group_(group),
      arrivals_(arrivals),
      links_(links),
      exchange_(exchange),
      reader_(links.rank(), links.placement().ranks()),
      begins_(links.placement().hosts.size()),
      local_ticks_(static_cast<size_t>(group.ranks())) {}

// Bytes that each rank puts down, whether or not anybody reads them all.
size_t HostMeeting::given_bytes(const CollectiveCall& call) const {
  const Role role = role_of(call, links_.rank());
  const auto fan = static_cast<size_t>(role.personalised ? links_.placement().ranks() : 1);
  return whole(call, role).stride * fan;
}

Stage HostMeeting::whole(const CollectiveCall& call, const Role&) const {
  const size_t bytes = share_bytes(call);
  return {.offset = 0, .bytes = bytes, .stride = round_up(bytes)};
}

bool HostMeeting::carries(const CollectiveCall& call) const {
  if (call.kind == CollectiveKind::Barrier || call.count == 0) return true;
  // Before it is multiplied by anything: counts may be anything.
  if (share_bytes(call) > shm::kSmallSlot) return false;
  const size_t given = given_bytes(call);
  const Role role = role_of(call, links_.rank());
  const auto givers = static_cast<size_t>(role.from_root ? 1 : links_.placement().ranks());
  return given <= shm::kSmallSlot && given * givers <= kCarried;
}

void HostMeeting::prepare(const CollectiveCall& call, uint64_t sequence) {
  if (call.kind == CollectiveKind::Barrier || call.count == 0) return;
  carried_ = sequence;
  const Role role = role_of(call, links_.rank());
  if (role.stages)
    stage(call, role, whole(call, role), links_.rank(), links_.placement().ranks(),
          group_.small_slot(group_.rank(), sequence), Stores::Plain);
}

void HostMeeting::write_block(const CollectiveCall& call, const Arrivals::Met& local,
                              std::span<const uint64_t> ticks, uint64_t sequence, double seconds_per_tick) {
  const std::vector<int>& ranks = links_.placement().host(links_.rank()).ranks;
  const bool some = carried_ == sequence;
  const Role role = role_of(call, links_.rank());
  Statement statement;
  statement.signature = local.signature;
  statement.hints = local.hints;
  if (some && (!role.from_root || links_.placement().together(call.root, links_.rank())))
    statement.given = static_cast<uint32_t>(given_bytes(call));
  statement.head.bytes = sizeof statement + ranks.size() * (sizeof(Arrived) + statement.given);
  block_.resize(statement.head.bytes);
  std::memcpy(block_.data(), &statement, sizeof statement);
  const uint64_t now = pycoll::ticks();
  std::byte* at = block_.data() + sizeof statement;
  for (size_t local_rank = 0; local_rank < ranks.size(); ++local_rank) {
    const auto passed = static_cast<double>(static_cast<int64_t>(now - ticks[local_rank]));
    const Arrived arrived{.before_ns = static_cast<uint64_t>(std::max(0.0, passed * seconds_per_tick * 1e9)),
                          .factor = arrivals_.header(static_cast<int>(local_rank), sequence).factor};
    std::memcpy(at, &arrived, sizeof arrived);
    at += sizeof arrived;
  }
  for (size_t local_rank = 0; local_rank < ranks.size(); ++local_rank, at += statement.given)
    std::memcpy(at, group_.small_slot(static_cast<int>(local_rank), sequence), statement.given);
}

void HostMeeting::gather(uint64_t id, shm::Operation& operation) {
  std::byte* const shared = group_.gathered(0) + (id & 1) * kHalf;
  gathered_ = shared;
  const size_t hosts = begins_.size();
  if (group_.rank() == 0) {
    const std::span<const std::byte> all = exchange_.all_gather(id, block_, operation);
    if (all.size() > kHalf)
      throw Error("group '" + group_.name() + "' has too many ranks for a meeting of hosts");
    // The ranks of this host have read what was there: they have announced the next collective since. A
    // second exchange of the same collective has the other half.
    copy_bytes(shared, all.data(), all.size());
    group_.publish(group_.mine().gathered.value, id);
  } else {
    const auto& gathered = group_.control(0).gathered.value;
    group_.wait(operation, 0, [&] { return gathered.load(std::memory_order_acquire) >= id; });
  }
  const auto first = static_cast<size_t>(links_.placement().host_of[static_cast<size_t>(links_.rank())]);
  size_t at = 0;
  for (size_t i = 0; i < hosts; ++i) {
    begins_[(first + i) % hosts] = at;
    BlockHead head;
    std::memcpy(&head, shared + at, sizeof head);
    at += head.bytes;
  }
}

std::span<const std::byte> HostMeeting::block_of(int host) const {
  const std::byte* const block = gathered_ + begins_[static_cast<size_t>(host)];
  BlockHead head;
  std::memcpy(&head, block, sizeof head);
  return {block, head.bytes};
}

Arrivals::Met HostMeeting::meet(const CollectiveCall& call, shm::Operation& operation,
                                std::span<uint64_t> log, double seconds_per_tick) {
  const uint64_t sequence = operation.sequence;
  const Arrivals::Met local = arrivals_.meet(operation, local_ticks_);
  if (group_.rank() == 0) write_block(call, local, local_ticks_, sequence, seconds_per_tick);
  gather(2 * sequence, operation);
  Arrivals::Met met = local;
  met.seen = met.last = 0;
  const uint64_t now = ticks();
  for (size_t host = 0; host < begins_.size(); ++host) {
    const auto block = block_of(static_cast<int>(host));
    const Statement statement = statement_of(block);
    if (statement.signature != local.signature) met.signature = Arrivals::kDiffer;
    met.hints |= statement.hints;
    const std::vector<int>& ranks = links_.placement().hosts[host].ranks;
    const std::byte* at = block.data() + sizeof statement;
    const std::byte* given = at + ranks.size() * sizeof(Arrived);
    for (const int rank : ranks) {
      Arrived arrived;
      std::memcpy(&arrived, at, sizeof arrived);
      const double ago = static_cast<double>(arrived.before_ns + statement.head.age_ns) * 1e-9;
      const auto r = static_cast<size_t>(rank);
      log[r] = now - static_cast<uint64_t>(seconds_per_tick > 0 ? ago / seconds_per_tick : 0);
      met.last = std::max(met.last, log[r]);
      reader_.factors[r] = arrived.factor;
      reader_.slots[r] = given;
      at += sizeof arrived;
      given += statement.given;
    }
  }
  if (met.signature == Arrivals::kDiffer) tell_apart(operation);
  return met;
}

// Everybody knows that the calls differ: all exchange their headers, and all say the same.
void HostMeeting::tell_apart(shm::Operation& operation) {
  const uint64_t sequence = operation.sequence;
  if (group_.rank() == 0) {
    const std::vector<shm::CallHeader> headers = arrivals_.headers(sequence);
    BlockHead head;
    head.bytes = round_up(sizeof head + headers.size() * sizeof headers[0]);
    block_.assign(head.bytes, std::byte{});
    std::memcpy(block_.data(), &head, sizeof head);
    std::memcpy(block_.data() + sizeof head, headers.data(), headers.size() * sizeof headers[0]);
  }
  gather(2 * sequence + 1, operation);
  std::vector<shm::CallHeader> headers(static_cast<size_t>(links_.placement().ranks()));
  for (size_t host = 0; host < begins_.size(); ++host) {
    const std::byte* at = block_of(static_cast<int>(host)).data() + sizeof(BlockHead);
    for (const int rank : links_.placement().hosts[host].ranks) {
      std::memcpy(&headers[static_cast<size_t>(rank)], at, sizeof headers[0]);
      at += sizeof headers[0];
    }
  }
  links_.settle();
  throw_mismatch(group_.name(), sequence, headers);
}

void HostMeeting::finish(const CollectiveCall& call) {
  if (call.kind == CollectiveKind::Barrier || call.count == 0) return;
  const Role role = role_of(call, links_.rank());
  if (role.reads) reader_.read(call, role, whole(call, role));
}

}  // namespace pycoll
