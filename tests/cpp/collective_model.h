// What collectives promise, computed the slow and obvious way.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/communicator.h"

namespace pycoll::test {

// One rank's part in a collective of int32, with distinct values everywhere, and what must come out of it.
struct Exchange {
  CollectiveCall call;
  std::vector<int32_t> input;
  std::vector<int32_t> before;  // the input as it was
  std::vector<int32_t> output;
  std::vector<int32_t> expected;

  static int32_t value(int rank, size_t element, int salt) {
    return static_cast<int32_t>(
        (element * 31 + static_cast<size_t>(rank) * 1009 + static_cast<size_t>(salt) * 7) % 100003);
  }

  Exchange(CollectiveKind kind, int rank, int ranks, size_t count, int root, Op op, int salt) {
    const auto n = static_cast<size_t>(ranks);
    const bool at_root = rank == root;
    size_t in = count;
    size_t out = count;
    switch (kind) {
      case CollectiveKind::AllReduce:
        break;
      case CollectiveKind::Reduce:
        out = at_root ? count : 0;
        break;
      case CollectiveKind::ReduceScatter:
        in = n * count;
        break;
      case CollectiveKind::AllGather:
        out = n * count;
        break;
      case CollectiveKind::Gather:
        out = at_root ? n * count : 0;
        break;
      case CollectiveKind::Broadcast:
        in = at_root ? count : 0;
        break;
      case CollectiveKind::Scatter:
        in = at_root ? n * count : 0;
        break;
      case CollectiveKind::AllToAll:
        in = out = n * count;
        break;
      case CollectiveKind::Barrier:
        in = out = count = 0;
        break;
    }
    for (size_t i = 0; i < in; ++i) input.push_back(value(rank, i, salt));
    before = input;
    output.assign(out, -1);
    const auto me = static_cast<size_t>(rank);
    for (size_t i = 0; i < out; ++i) {
      const size_t share = count == 0 ? 0 : i / count;
      const size_t at = count == 0 ? 0 : i % count;
      switch (kind) {
        case CollectiveKind::AllReduce:
        case CollectiveKind::Reduce:
          expected.push_back(combined(ranks, i, op, salt));
          break;
        case CollectiveKind::ReduceScatter:
          expected.push_back(combined(ranks, me * count + i, op, salt));
          break;
        case CollectiveKind::AllGather:
        case CollectiveKind::Gather:
          expected.push_back(value(static_cast<int>(share), at, salt));
          break;
        case CollectiveKind::Broadcast:
          expected.push_back(value(root, i, salt));
          break;
        case CollectiveKind::Scatter:
          expected.push_back(value(root, me * count + i, salt));
          break;
        case CollectiveKind::AllToAll:
          expected.push_back(value(static_cast<int>(share), me * count + at, salt));
          break;
        case CollectiveKind::Barrier:
          break;
      }
    }
    call.kind = kind;
    call.dtype = DType::Int32;
    call.op = op;
    call.root = root;
    call.count = count;
    call.input = in == 0 ? nullptr : input.data();
    call.output = out == 0 ? nullptr : output.data();
  }

  bool right() const { return output == expected && input == before; }

 private:
  static int32_t combined(int ranks, size_t element, Op op, int salt) {
    int64_t result = value(0, element, salt);
    for (int rank = 1; rank < ranks; ++rank) {
      const int64_t next = value(rank, element, salt);
      result = op == Op::Max   ? std::max(result, next)
               : op == Op::Min ? std::min(result, next)
                               : result + next;
    }
    return static_cast<int32_t>(op == Op::Avg ? result / ranks : result);
  }
};

}  // namespace pycoll::test
