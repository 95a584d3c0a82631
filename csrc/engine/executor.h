// Runs any verified schedule over any transport, in dataflow order, cutting through pieces.
#pragma once
#include <vector>

#include "core/clock.h"
#include "engine/communicator.h"
#include "engine/program.h"
#include "transport/transport.h"

namespace pycoll {

// How far a run may go for now. Pieces are those of the schedule.
class Gate {
 public:
  virtual ~Gate() = default;
  virtual int open() = 0;             // pieces before this one may move
  virtual bool closed() = 0;          // and will be all
  virtual void moved(int piece) = 0;  // this rank has done one of its steps with it
  virtual int keeper() = 0;           // the rank that opens it
};

class Executor {
 public:
  explicit Executor(Transport& transport) : transport_(transport) {}

  void run(const Plan& plan, const CollectiveCall& call);

  // Of collectives whose output holds the whole buffer, step by step: whether a call can go so, its input
  // brought to where the output is, and one of its plans, as far as the gate lets it.
  static bool works_in_output(const CollectiveCall& call);
  void load_output(const CollectiveCall& call);
  void run_loaded(const Plan& plan, const CollectiveCall& call, Gate* gate = nullptr);
  // Of the last run: how long this rank had something to send and no room for it.
  SteadyClock::duration stuck() const { return stuck_for_; }
  size_t scratch_bytes() const { return scratch_.capacity(); }

 private:
  // Where piece i of the program lies: `base + begin`, `bytes` long.
  struct Extent {
    std::byte* begin;
    size_t bytes;
  };
  struct Window {  // the part of every piece that one pass handles, in elements
    size_t begin;
    size_t length;
  };

  void run_in_scratch(const Plan& plan, const CollectiveCall& call);
  void load(const Plan& plan, const CollectiveCall& call, Window window);
  void store(const Plan& plan, const CollectiveCall& call, Window window);
  void move(const Program& program, DType dtype, Op op, Gate* gate = nullptr);
  bool progress(const Program& program, DType dtype, Op op, Gate* gate);
  bool send_some(const Step& step, size_t index);
  bool receive_some(const Step& step, size_t index, DType dtype, Op op);
  int awaited_peer(const Program& program, int end) const;
  bool has_business_with(const Program& program, int peer, int end) const;
  static bool unfinished(const Program& program, const std::vector<int32_t>& list, size_t next, int end);

  Transport& transport_;
  std::vector<Extent> extents_;    // by piece of the program
  std::vector<size_t> done_;       // by step, in bytes
  std::vector<size_t> next_send_;  // by peer: position in its list of steps
  std::vector<size_t> next_receive_;
  std::vector<std::byte> scratch_;
  bool is_stuck_ = false;
  SteadyClock::duration stuck_for_{};
};

}  // namespace pycoll
