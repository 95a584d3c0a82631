// A schedule as one rank sees it: what it sends and receives, in which order, and what each step must wait
// for.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "schedule/schedule.h"

namespace pycoll {

struct Step {
  int32_t peer;
  int32_t piece;  // index into Program::pieces
  bool sends;
  Action action;
  // Dataflow, byte by byte within the piece: a step may not overtake these. A send follows the last write of
  // earlier rounds; a write follows the write before it and all sends, of its own round too, that read what
  // it overwrites.
  int32_t after_write = -1;          // a step, or -1
  std::vector<int32_t> after_sends;  // writes only
};

struct Program {
  std::vector<Step> steps;                  // by (round, piece), the order in which every stream carries them
  std::vector<int32_t> pieces;              // the schedule's pieces that this rank touches, ascending
  std::vector<std::vector<int32_t>> sends;  // by peer: steps in stream order
  std::vector<std::vector<int32_t>> receives;
  std::vector<int32_t> peers;  // those with sends or receives
};

// Ordering streams by (round, piece) on both sides is what makes bounded streams free of deadlock: the
// earliest unfinished (round, piece) only ever waits for itself, a few bytes earlier.
Program make_program(const Schedule& schedule, int rank);

// A verified schedule with what execution needs of it, shared by all calls that use it.
struct Plan {
  std::shared_ptr<const Schedule> schedule;
  Program program;
  uint64_t hash = 0;
  size_t most_pieces = 0;  // of any rank's program: all ranks cut windows of scratch alike
};

std::shared_ptr<const Plan> make_plan(std::shared_ptr<const Schedule> schedule, int rank);

}  // namespace pycoll
