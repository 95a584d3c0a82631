// What a rank does in a collective where every rank can look at what every other has put down, in the terms
// that make all kinds one code.
#pragma once
#include <span>
#include <vector>

#include "engine/communicator.h"

namespace pycoll {

struct Role {
  bool stages;        // others read from this rank
  bool reads;         // this rank reads from others
  bool from_root;     // only the root is read
  bool personalised;  // each reader has a part of its own in what is staged
  bool reduces;       // what is read is combined; else each source has a part of the output
  bool gathers;
};
Role role_of(const CollectiveCall& call, int rank);

inline size_t share_bytes(const CollectiveCall& call) {
  return call.count * size_of(call.dtype);
}

// A part [offset, offset + bytes) of every share, which lies at `stride` from share to share where it is
// staged for readers one by one.
struct Stage {
  size_t offset;
  size_t bytes;
  size_t stride;
};

// Puts this rank's part into `slot`.
void stage(const CollectiveCall& call, const Role& role, const Stage& part, int rank, int ranks,
           std::byte* slot, Stores stores);

// Reads what all have staged, `slots[rank]`, in the order of ranks, and writes this rank's output.
class Reader {
 public:
  Reader(int rank, int ranks);
  void read(const CollectiveCall& call, const Role& role, const Stage& part);

  std::vector<const std::byte*> slots;  // by rank; this rank's own is not looked at
  std::vector<double> factors;          // by rank, of PremulSum

 private:
  int rank_;
  std::vector<const void*> sources_;
};

}  // namespace pycoll
