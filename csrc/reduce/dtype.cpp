#include "reduce/dtype.h"

#include <array>

namespace pycoll {
namespace {

struct Entry {
  DType dtype;
  size_t size;
  std::string_view name;
};

constexpr std::array kEntries{
    Entry{DType::Float32, 4, "float32"},
    Entry{DType::Float64, 8, "float64"},
    Entry{DType::Float16, 2, "float16"},
    Entry{DType::BFloat16, 2, "bfloat16"},
    Entry{DType::Float8E4M3FN, 1, "float8_e4m3fn"},
    Entry{DType::Float8E5M2, 1, "float8_e5m2"},
    Entry{DType::Int8, 1, "int8"},
    Entry{DType::Int16, 2, "int16"},
    Entry{DType::Int32, 4, "int32"},
    Entry{DType::Int64, 8, "int64"},
    Entry{DType::UInt8, 1, "uint8"},
    Entry{DType::UInt16, 2, "uint16"},
    Entry{DType::UInt32, 4, "uint32"},
    Entry{DType::UInt64, 8, "uint64"},
    Entry{DType::Bool, 1, "bool"},
    Entry{DType::Complex64, 8, "complex64"},
    Entry{DType::Complex128, 16, "complex128"},
    Entry{DType::Int128, 16, "int128"},
};

constexpr size_t kUserDtypes = kEntries.size() - 1;

constexpr auto kUserList = [] {
  std::array<DType, kUserDtypes> list{};
  for (size_t i = 0; i < kUserDtypes; ++i) list[i] = kEntries[i].dtype;
  return list;
}();

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i) return false;
  }
  return kEntries.back().dtype == DType::Int128;
}
static_assert(in_enum_order(), "the table is indexed by DType");

}  // namespace

size_t size_of(DType dtype) {
  return kEntries[static_cast<size_t>(dtype)].size;
}

std::string_view name_of(DType dtype) {
  return kEntries[static_cast<size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (DType dtype : kUserList) {
    if (name_of(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::span<const DType> all_dtypes() {
  return kUserList;
}

}  // namespace pycoll
