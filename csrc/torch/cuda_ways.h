// Which way an all_reduce of CUDA tensors goes: the table of pycoll.torch.gpu_ways.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "reduce/dtype.h"

namespace pycoll::torch_adapter {

struct CudaWay {
  uint64_t begin, end;  // bytes: [begin, end)
  std::string dtypes;   // "any", "wide" or "narrow"
  bool pinned;
  std::vector<std::string> ways;  // in order of preference
  std::string reason;

  bool covers(uint64_t bytes, DType dtype) const;
};

// Throws InvalidArgument for what is no table.
std::vector<CudaWay> parse_ways(const std::string& table);

}  // namespace pycoll::torch_adapter
