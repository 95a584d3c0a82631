#include "torch/cuda_ways.h"

#include <limits>
#include <sstream>

#include "core/error.h"

namespace pycoll::torch_adapter {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

uint64_t bytes_of(const std::string& text) {
  size_t used = 0;
  const uint64_t bytes = text.empty() ? 0 : std::stoull(text, &used);
  if (text.empty() || used != text.size())
    throw InvalidArgument("a table of ways has '" + text + "' for a size");
  return bytes;
}

bool is_narrow(DType dtype) {
  return dtype == DType::Float16 || dtype == DType::BFloat16 || dtype == DType::Float8E4M3FN ||
         dtype == DType::Float8E5M2;
}

}  // namespace

bool CudaWay::covers(uint64_t bytes, DType dtype) const {
  return bytes >= begin && bytes < end && (dtypes == "any" || (dtypes == "narrow") == is_narrow(dtype));
}

std::vector<CudaWay> parse_ways(const std::string& table) {
  std::vector<CudaWay> rows;
  for (const std::string& line : split(table, '\n')) {
    const auto fields = split(line, '\t');
    if (fields.size() < 5) throw InvalidArgument("a table of ways has the line '" + line + "'");
    rows.push_back({.begin = bytes_of(fields[0]),
                    .end = fields[1].empty() ? std::numeric_limits<uint64_t>::max() : bytes_of(fields[1]),
                    .dtypes = fields[2],
                    .pinned = fields[3] == "pin",
                    .ways = split(fields[4], ','),
                    .reason = fields.size() > 5 ? fields[5] : std::string()});
  }
  return rows;
}

}  // namespace pycoll::torch_adapter
