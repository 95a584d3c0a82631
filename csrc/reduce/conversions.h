// What travels when integers are averaged hop by hop (see wire_dtype): the conversions that need no vectors.
#pragma once
#include <cstddef>

#include "reduce/dtype.h"

namespace pycoll {

// The power of two by which each of `ranks` contributions to a floating-point average is scaled: no sum of
// them overflows, and no bit is lost but below the smallest normal number.
double average_scale(int ranks);

// To int64, or to int128 from 64-bit integers.
void widen_integers(DType dtype, const void* source, void* destination, size_t count);
// The sum divided by `ranks`, truncated toward zero.
void narrow_integers(DType dtype, const void* source, void* destination, size_t count, int ranks);

}  // namespace pycoll
