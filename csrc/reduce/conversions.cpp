#include "reduce/conversions.h"

#include <bit>
#include <cmath>
#include <string>

#include "core/error.h"

namespace pycoll {
namespace {

template <class T, class Wide>
void widen_all(const void* source, void* destination, size_t count) {
  const auto* from = static_cast<const T*>(source);
  auto* to = static_cast<Wide*>(destination);
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<Wide>(from[i]);
}

template <class T, class Wide>
void narrow_all(const void* source, void* destination, size_t count, int ranks) {
  const auto* from = static_cast<const Wide*>(source);
  auto* to = static_cast<T*>(destination);
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i] / ranks);
}

// Calls visit.operator()<T, Wide>() for an integer dtype.
template <class Visit>
void with_integer(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::Int8:
      return visit.template operator()<int8_t, int64_t>();
    case DType::Int16:
      return visit.template operator()<int16_t, int64_t>();
    case DType::Int32:
      return visit.template operator()<int32_t, int64_t>();
    case DType::Int64:
      return visit.template operator()<int64_t, __int128>();
    case DType::UInt8:
      return visit.template operator()<uint8_t, int64_t>();
    case DType::UInt16:
      return visit.template operator()<uint16_t, int64_t>();
    case DType::UInt32:
      return visit.template operator()<uint32_t, int64_t>();
    case DType::UInt64:
      return visit.template operator()<uint64_t, __int128>();
    default:
      throw Unsupported("dtype " + std::string(name_of(dtype)) + " is not averaged as an integer");
  }
}

}  // namespace

double average_scale(int ranks) {
  return std::ldexp(1.0, -std::bit_width(static_cast<unsigned>(ranks) - 1));
}

void widen_integers(DType dtype, const void* source, void* destination, size_t count) {
  with_integer(dtype, [&]<class T, class Wide>() { widen_all<T, Wide>(source, destination, count); });
}

void narrow_integers(DType dtype, const void* source, void* destination, size_t count, int ranks) {
  with_integer(dtype, [&]<class T, class Wide>() { narrow_all<T, Wide>(source, destination, count, ranks); });
}

}  // namespace pycoll
