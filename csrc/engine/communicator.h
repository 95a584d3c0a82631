// A group of ranks that can run collectives: the one face of the engine.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "engine/decisions.h"
#include "engine/placement.h"
#include "reduce/dtype.h"
#include "reduce/reduce.h"
#include "schedule/schedule.h"
#include "transport/network.h"

namespace pycoll {

using Nanoseconds = std::chrono::nanoseconds;

// Every rank gives its bytes and gets everybody's, by rank. The one thing bootstrap needs from outside; made
// from a torch Store, a TCP rendezvous, or a barrier between threads. It must throw rather than wait for
// ever.
using AllGatherBytes = std::function<std::vector<std::string>(const std::string& mine)>;

struct CommunicatorOptions {
  std::string group = "default";                  // named in errors
  Nanoseconds timeout = std::chrono::minutes(5);  // of a collective that names none, and of bootstrap
  // Called now and then on a caller's thread that waits long. What it throws ends the wait, and the group.
  std::function<void()> interrupted = nullptr;
  std::string decisions = "";  // the group's decision table, as text; rank 0's counts
  // Instead of `decisions`: called on rank 0 once it is known who is where. What it throws ends the making of
  // the group, on all ranks.
  std::function<std::string(const Placement&)> decide = nullptr;
  std::string rules = "";  // the user's wishes that the table rests on; must be equal on all ranks
  // Ranks that give the same text share memory, others do not, even on one machine; "": by host and
  // container.
  std::string host = "";
  // How ranks of other hosts are reached; rank, ranks and group are filled in by create().
  NetworkOptions network = {};
  // Sums are to be the same bits for any size, layout and run: so nothing begins before all ranks are there.
  bool fixed_order = false;
  // Told on rank 0, on a caller's thread, when the group has changed its decisions.
  std::function<void(const std::string&)> log = nullptr;
};

// One call of one collective, as the caller states it.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::AllReduce;
  DType dtype = DType::Float32;
  Op op = Op::Sum;      // reductions only
  double factor = 1.0;  // PremulSum only: what this rank's contribution is multiplied by
  int root = 0;         // rooted kinds only
  // `count` elements of dtype: the whole buffer for allreduce, reduce and broadcast; one shard or block for
  // the others (all_gather: input count, output ranks*count; reduce_scatter: input ranks*count, output count;
  //  all_to_all: ranks*count both; gather: output ranks*count at the root; scatter: input ranks*count at the
  //  root).
  // input may be output, or for all_gather and reduce_scatter the rank's own shard of it. Input is null where
  // the kind reads none (broadcast or scatter away from the root), output likewise (reduce or gather away
  // from the root). Input is never written unless it is output.
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  // How: a verified schedule, else a registry name with `pieces` (0: its default), else (empty) the engine's
  // choice by the decision table.
  std::shared_ptr<const Schedule> schedule;
  std::string algorithm;
  int pieces = 0;
  std::optional<Nanoseconds> timeout;
  // What the user called, where that has another name; for Mismatch's text. It must outlive the call.
  std::string_view caller = {};
  // How the caller divides the buffer, or divides itself into several calls, in words that name all sizes.
  // Ranks whose words differ get Mismatch. Null: neither.
  std::shared_ptr<const std::string> parts = {};
};

// An asynchronous collective. Collectives of one group run in the order they were submitted.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when the collective is complete; rethrows its error. A collective not yet begun, and those before
  // it, run on this thread. When `timeout` passes first the group is aborted and Timeout is thrown.
  virtual void wait(std::optional<Nanoseconds> timeout = std::nullopt) = 0;
  virtual std::exception_ptr exception() const = 0;  // null while running and after success
  // Runs `callback` once when the work ends (at once if it has), on the thread that ends it, with no lock of
  // the engine held: it may submit and wait for further collectives. It must not throw.
  virtual void on_done(std::function<void()> callback) = 0;
};

struct MemoryReport {
  size_t shared_bytes;     // this rank's part of the group's shared segment (staging, control)
  size_t private_bytes;    // scratch of schedules
  size_t allocated_bytes;  // buffers made by allocate()
};

// A row of the decision table in force, with the present choice first.
struct DecisionState {
  Decision decision;
  double typical = 0;  // time of late calls as a multiple of the prediction; 0: not watched yet
};

// When each rank reached the last collectives (up to 1024 of them), oldest first.
struct ArrivalRecord {
  uint64_t sequence;
  std::vector<double> lateness;  // seconds after the first arrival, by rank
};

// Of AllReduces that need not wait for their last rank, as this rank saw them.
struct EarlyReport {
  uint64_t calls = 0;      // that could have begun before the last rank was there
  uint64_t early = 0;      // that did
  double seconds_won = 0;  // by these, against calls for which nobody was late; 0 while there was none
};

class Communicator {
 public:
  // Collective over the group. Throws Timeout, PeerLost, or what `all_gather` throws.
  static std::shared_ptr<Communicator> create(int rank, int ranks, const AllGatherBytes& all_gather,
                                              CommunicatorOptions options = {});
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual const CommunicatorOptions& options() const = 0;

  // Checks arguments (InvalidArgument, Unsupported: nothing was sent), runs to the end on this thread after
  // all that was submitted before. Throws Mismatch on all ranks alike; PeerLost, Timeout, Aborted end the
  // group.
  virtual void run(const CollectiveCall& call) = 0;
  virtual std::shared_ptr<Work> submit(const CollectiveCall& call) = 0;

  // What becomes several calls, as one work. Where the ranks' calls differ, which all learn at the same one,
  // those after it are left out; no other error of one keeps the rest from being made, so that ranks stay in
  // step. Ends with the first error.
  virtual std::shared_ptr<Work> submit_all(std::vector<CollectiveCall> calls) = 0;

  // `then` runs after the call went well and before any later one begins; the deadline is that of a wait()
  // that executes it. It may send and receive, and wait for that.
  using Then = std::function<void(const std::optional<SteadyClock::time_point>& deadline)>;
  virtual std::shared_ptr<Work> submit_then(const CollectiveCall& call, Then then) = 0;

  // Point to point, matched by (source, destination, tag) in order of posting; any number may be outstanding,
  // in any order of tags. A receive's buffer may be longer than the message. When it is shorter, the receive
  // ends with InvalidArgument and writes nothing, and the message is dropped; the send is complete. PeerLost
  // ends only the operations that need the lost rank, Timeout ends the group. A send that is complete is
  // delivered even when its sender leaves the group before the receive.
  virtual std::shared_ptr<Work> send(const void* data, size_t bytes, int destination, uint64_t tag,
                                     std::optional<Nanoseconds> timeout = std::nullopt) = 0;
  // source -1: from any rank; `source_out`, where given, must outlive the work.
  virtual std::shared_ptr<Work> recv(void* data, size_t bytes, int source, uint64_t tag,
                                     std::optional<Nanoseconds> timeout = std::nullopt,
                                     int* source_out = nullptr) = 0;

  // Buffers in shared memory: a collective whose buffers all lie in them copies nothing into staging. Local
  // calls.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* buffer) = 0;

  virtual void set_timeout(Nanoseconds timeout) = 0;
  virtual uint64_t sequence() const = 0;  // collectives begun so far
  virtual MemoryReport memory() const = 0;
  virtual std::vector<ArrivalRecord> arrivals() const = 0;
  virtual EarlyReport early_report() const = 0;

  // What the engine would run for such a call: a registry name.
  virtual std::string chosen_algorithm(const CollectiveCall& call) const = 0;
  // A collective: the table holds for all calls after it. Throws InvalidArgument, Unsupported or
  // ScheduleError for a table that cannot run here (nothing was sent), Mismatch when the ranks' tables
  // differ.
  virtual void install(DecisionTable table) = 0;
  virtual std::vector<DecisionState> decisions() const = 0;

  // Ends the group on every rank: whoever waits, and whoever calls later, gets Aborted with this reason.
  virtual void abort(const std::string& reason) = 0;
  // Leaves the group in peace. Idempotent; not collective. Later calls are InvalidArgument. A peer that still
  // waits for this rank gets PeerLost that says this rank has left.
  virtual void close() = 0;
};

}  // namespace pycoll
