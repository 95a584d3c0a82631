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
    // Sized first and written once: most of a sanitizer's time in tests of collectives went into growing
    // these.
    input.resize(in);
    for (size_t i = 0; i < in; ++i) input[i] = value(rank, i, salt);
    before = input;
    output.assign(out, -1);
    expected.resize(out);
    switch (kind) {
      case CollectiveKind::AllReduce:
      case CollectiveKind::Reduce:
        expect_combined(ranks, 0, op, salt);
        break;
      case CollectiveKind::ReduceScatter:
        expect_combined(ranks, static_cast<size_t>(rank) * count, op, salt);
        break;
      case CollectiveKind::AllGather:
      case CollectiveKind::Gather:
        for (int source = 0; static_cast<size_t>(source) * count < out; ++source)
          expect_share(source, count, 0, source, salt);
        break;
      case CollectiveKind::Broadcast:
        expect_share(0, count, 0, root, salt);
        break;
      case CollectiveKind::Scatter:
        expect_share(0, count, static_cast<size_t>(rank) * count, root, salt);
        break;
      case CollectiveKind::AllToAll:
        for (int source = 0; source < ranks; ++source)
          expect_share(source, count, static_cast<size_t>(rank) * count, source, salt);
        break;
      case CollectiveKind::Barrier:
        break;
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
  // All of the output: the ranks' elements from `first` on, combined.
  void expect_combined(int ranks, size_t first, Op op, int salt) {
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = combined(ranks, first + i, op, salt);
  }

  // Share `number` of the output, `count` elements: those of `source` from `first` on.
  void expect_share(int number, size_t count, size_t first, int source, int salt) {
    const size_t at = static_cast<size_t>(number) * count;
    for (size_t i = 0; i < count; ++i) expected[at + i] = value(source, first + i, salt);
  }

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
