#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace pycoll {

enum class DType : uint8_t {
  Float32,
  Float64,
  Float16,
  BFloat16,
  Float8E4M3FN,
  Float8E5M2,
  Int8,
  Int16,
  Int32,
  Int64,
  UInt8,
  UInt16,
  UInt32,
  UInt64,
  Bool,
  Complex64,
  Complex128,
  Int128,  // internal: the accumulator of 64-bit integer averages; no user buffer has it
};

size_t size_of(DType dtype);
// numpy's and torch's names: "float32", "bfloat16", "float8_e4m3fn", "int8", "bool", "complex64", ...
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
std::span<const DType> all_dtypes();  // without the internal ones

}  // namespace pycoll
