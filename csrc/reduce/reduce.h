// Elementwise reduction of many sources in one pass, and the numerics contract (DESIGN, section 8):
//  * 8- and 16-bit floats accumulate in float32 and round once a call;
//  * Avg divides in the accumulator, so it does not overflow where the mean fits; integer Avg truncates
//  toward zero;
//  * integer Sum wraps; Bool: Sum is or, Prod is and;
//  * Min and Max propagate NaN;
//  * complex takes Sum, Avg, Prod and PremulSum only.
// The summands are added in the order given, so equal calls give equal bits on every rank and every machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "reduce/dtype.h"

namespace pycoll {

enum class Op : uint8_t { Sum, Avg, Prod, Min, Max, BitAnd, BitOr, BitXor, PremulSum };

// "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum"
std::string_view name_of(Op op);
std::optional<Op> op_from_name(std::string_view name);

// Throws Unsupported, naming op and dtype, where the pair has no meaning (complex max, float band, bool avg,
// ...).
void require_supported(DType dtype, Op op);
// Throws InvalidArgument where a factor of PremulSum does not fit the dtype (integers take whole factors
// only).
void require_factor(DType dtype, double factor);

// How results are stored: non-temporal stores bypass the cache. They win where the cores that exchange data
// share no cache, and for buffers that no cache holds; chosen by measurement, never by guess.
enum class Stores : uint8_t { Plain, NonTemporal };

// For i < count: v = op over k of sources[k][i], then every destinations[j][i] = v.
// A destination may be exactly one of the sources; no other overlap is allowed. Buffers need only the dtype's
// natural alignment. `factors`, one a source, for PremulSum only; those of integers must be whole numbers.
// Avg divides by `divisor`, at least the number of sources (0: that number). Throws InvalidArgument or
// Unsupported.
void reduce_many(DType dtype, Op op, std::span<const void* const> sources,
                 std::span<void* const> destinations, size_t count, const double* factors = nullptr,
                 int divisor = 0, Stores stores = Stores::Plain);

// memcpy with a choice of stores. No overlap unless identical.
void copy_bytes(void* destination, const void* source, size_t bytes, Stores stores = Stores::Plain);

// A schedule reduces hop by hop, so an op that scales, or whose partial results may not fit the dtype,
// travels in a wider dtype: load every rank's contribution with `widen`, run the schedule with `wire_op` on
// `wire_dtype`, store with `narrow`. Sum, Prod, Min, Max and the bit ops travel as they are.
//   Avg:       16/8-bit floats in float32; float32/64 and complex in their own dtype, scaled by an exact
//   power of two
//              so that no partial sum overflows; integers up to 32 bits in int64, 64-bit ones in int128.
//   PremulSum: 16/8-bit floats in float32; the others in their own dtype; the factor is applied by widen.
DType wire_dtype(DType dtype, Op op);
Op wire_op(Op op);
void widen(DType dtype, Op op, const void* source, void* destination, size_t count, double factor, int ranks);
void narrow(DType dtype, Op op, const void* source, void* destination, size_t count, int ranks);

// What the kernels were compiled for and picked at run time: "avx512", "avx2", "baseline", "neon".
std::string_view kernel_name();

// For tests and measurements: what this processor can run, the best last; and use another one than the best
// from now on, in this process. All give the same bits (of a NaN, only that it is one). InvalidArgument for
// an unknown name.
std::span<const std::string_view> kernel_names();
void select_kernels(std::string_view name);

}  // namespace pycoll
