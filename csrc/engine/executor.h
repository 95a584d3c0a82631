// Runs any verified schedule over any transport, in dataflow order, cutting through pieces.
#pragma once
#include <vector>

#include "engine/communicator.h"
#include "engine/program.h"
#include "transport/transport.h"

namespace pycoll {

class Executor {
 public:
  explicit Executor(Transport& transport) : transport_(transport) {}

  void run(const Plan& plan, const CollectiveCall& call);
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

  void run_in_output(const Plan& plan, const CollectiveCall& call);
  void run_in_scratch(const Plan& plan, const CollectiveCall& call);
  void load(const Plan& plan, const CollectiveCall& call, Window window);
  void store(const Plan& plan, const CollectiveCall& call, Window window);
  void move(const Program& program, DType dtype, Op op);
  bool progress(const Program& program, DType dtype, Op op);
  bool send_some(const Step& step, size_t index);
  bool receive_some(const Step& step, size_t index, DType dtype, Op op);
  int awaited_peer(const Program& program) const;

  Transport& transport_;
  std::vector<Extent> extents_;    // by piece of the program
  std::vector<size_t> done_;       // by step, in bytes
  std::vector<size_t> next_send_;  // by peer: position in its list of steps
  std::vector<size_t> next_receive_;
  std::vector<std::byte> scratch_;
};

}  // namespace pycoll
