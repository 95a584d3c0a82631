#include "reduce/reduce.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "core/error.h"
#include "reduce/conversions.h"
#include "reduce/kernel_table.h"

namespace pycoll {
namespace {

constexpr std::array<std::string_view, kOps> kOpNames{"sum",  "avg", "prod", "min",       "max",
                                                      "band", "bor", "bxor", "premul_sum"};

// Below, the C library's copy is as fast as any.
constexpr size_t kVectorCopy = 1024;

constexpr size_t index(DType dtype) {
  return static_cast<size_t>(dtype);
}
constexpr size_t index(Op op) {
  return static_cast<size_t>(op);
}

constexpr bool is_integer(DType dtype) {
  return dtype >= DType::Int8 && dtype <= DType::UInt64;
}
constexpr bool is_complex(DType dtype) {
  return dtype == DType::Complex64 || dtype == DType::Complex128;
}
constexpr bool is_float(DType dtype) {
  return dtype <= DType::Float8E5M2;
}

// What this processor can run, the best last.
class Kernels {
 public:
  Kernels() {
    add(kBaselineKernels);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
      add(kAvx2Kernels);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        add(kAvx512Kernels);
      }
    }
#endif
    active_ = &tables_[size_ - 1];
  }

  const KernelTable& active() const { return *active_.load(std::memory_order_relaxed); }
  std::span<const std::string_view> names() const { return {names_.data(), size_}; }

  void select(std::string_view name) {
    for (size_t i = 0; i < size_; ++i) {
      if (names_[i] == name) {
        active_.store(&tables_[i], std::memory_order_relaxed);
        return;
      }
    }
    std::string known;
    for (std::string_view each : names()) known += (known.empty() ? "" : ", ") + std::string(each);
    throw InvalidArgument("no kernels named \"" + std::string(name) + "\"; this processor runs: " + known);
  }

 private:
  // `faster` need not be complete: its gaps are filled from the table before.
  void add(const KernelTable& faster) {
    KernelTable& table = tables_[size_];
    if (size_ > 0) table = tables_[size_ - 1];
    for (size_t dtype = 0; dtype < kDTypes; ++dtype) {
      for (size_t op = 0; op < kOps; ++op) {
        if (faster.reduce[dtype][op]) table.reduce[dtype][op] = faster.reduce[dtype][op];
      }
      if (faster.widen[dtype]) table.widen[dtype] = faster.widen[dtype];
      if (faster.narrow[dtype]) table.narrow[dtype] = faster.narrow[dtype];
    }
    table.copy = faster.copy;
    table.copy_streaming = faster.copy_streaming;
    table.name = faster.name;
    names_[size_++] = faster.name;
  }

  std::array<KernelTable, 3> tables_{};
  std::array<std::string_view, 3> names_{};
  size_t size_ = 0;
  std::atomic<const KernelTable*> active_;
};

Kernels kernels;

// What goes wrong is apart from what goes right, which must cost a few nanoseconds only.
[[noreturn, gnu::cold, gnu::noinline]] void throw_unsupported(DType dtype, Op op) {
  std::string hint;
  if (is_complex(dtype)) {
    hint = "complex numbers take sum, avg, prod and premul_sum";
  } else if (is_float(dtype)) {
    hint = "floating-point numbers take sum, avg, prod, min, max and premul_sum";
  } else if (dtype == DType::Bool) {
    hint = "truth values take sum (or), prod (and), min, max, band, bor and bxor";
  } else {
    hint = "the internal int128 takes sum";
  }
  throw Unsupported("op " + std::string(name_of(op)) + " has no meaning for dtype " +
                    std::string(name_of(dtype)) + ": " + hint);
}

[[gnu::noinline]] void require_factors(DType dtype, size_t sources, const double* factors) {
  if (!factors) throw InvalidArgument("premul_sum needs one factor a source, got none");
  for (size_t i = 0; i < sources; ++i) require_factor(dtype, factors[i]);
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_bad_divisor(size_t sources, int divisor) {
  throw InvalidArgument("avg of " + std::to_string(sources) +
                        " sources needs a divisor of at least as many (0: their number), got " +
                        std::to_string(divisor));
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_no_buffers() {
  throw InvalidArgument("reduce_many needs at least one source and one destination");
}

}  // namespace

std::string_view name_of(Op op) {
  return kOpNames[index(op)];
}

std::optional<Op> op_from_name(std::string_view name) {
  const auto found = std::find(kOpNames.begin(), kOpNames.end(), name);
  if (found == kOpNames.end()) return std::nullopt;
  return static_cast<Op>(found - kOpNames.begin());
}

void require_supported(DType dtype, Op op) {
  if (!kernels.active().reduce[index(dtype)][index(op)]) throw_unsupported(dtype, op);
}

void reduce_many(DType dtype, Op op, std::span<const void* const> sources,
                 std::span<void* const> destinations, size_t count, const double* factors, int divisor,
                 Stores stores) {
  const ReduceKernel kernel = kernels.active().reduce[index(dtype)][index(op)];
  if (!kernel) throw_unsupported(dtype, op);
  if (sources.empty() || destinations.empty()) throw_no_buffers();
  if (op == Op::PremulSum) require_factors(dtype, sources.size(), factors);
  if (op == Op::Avg) {
    if (divisor == 0) divisor = static_cast<int>(sources.size());
    if (divisor < 0 || static_cast<size_t>(divisor) < sources.size())
      throw_bad_divisor(sources.size(), divisor);
  }
  kernel({.sources = sources.data(),
          .source_count = sources.size(),
          .destinations = destinations.data(),
          .destination_count = destinations.size(),
          .count = count,
          .factors = factors,
          .divisor = divisor,
          .stores = stores});
}

void copy_bytes(void* destination, const void* source, size_t bytes, Stores stores) {
  if (bytes == 0 || destination == source) return;
  if (stores == Stores::NonTemporal) {
    kernels.active().copy_streaming(destination, source, bytes);
  } else if (bytes < kVectorCopy) {
    std::memcpy(destination, source, bytes);
  } else {
    kernels.active().copy(destination, source, bytes);
  }
}

DType wire_dtype(DType dtype, Op op) {
  require_supported(dtype, op);
  if (op != Op::Avg && op != Op::PremulSum) return dtype;
  switch (dtype) {
    case DType::Float16:
    case DType::BFloat16:
    case DType::Float8E4M3FN:
    case DType::Float8E5M2:
      return DType::Float32;
    case DType::Int64:
    case DType::UInt64:
      return op == Op::Avg ? DType::Int128 : dtype;
    default:
      return op == Op::Avg && is_integer(dtype) ? DType::Int64 : dtype;
  }
}

void require_factor(DType dtype, double factor) {
  if (!is_integer(dtype)) return;
  const bool fits = factor >= -0x1p63 && factor < 0x1p64;
  if (fits && factor == std::trunc(factor)) return;
  throw InvalidArgument("premul_sum of dtype " + std::string(name_of(dtype)) +
                        " needs whole factors that fit 64 bits, got " + std::to_string(factor) +
                        "; convert the array to a floating-point dtype for any other");
}

Op wire_op(Op op) {
  return op == Op::Avg || op == Op::PremulSum ? Op::Sum : op;
}

void widen(DType dtype, Op op, const void* source, void* destination, size_t count, double factor,
           int ranks) {
  require_supported(dtype, op);
  const WidenKernel kernel = kernels.active().widen[index(dtype)];
  if (wire_op(op) == op) {
    copy_bytes(destination, source, count * size_of(dtype));
  } else if (op == Op::Avg) {
    if (ranks < 1) throw InvalidArgument("avg over " + std::to_string(ranks) + " ranks");
    if (kernel) {
      kernel(source, destination, count, average_scale(ranks));
    } else {
      widen_integers(dtype, source, destination, count);
    }
  } else if (kernel) {
    kernel(source, destination, count, factor);
  } else {
    const void* const sources[] = {source};
    void* const destinations[] = {destination};
    reduce_many(dtype, op, sources, destinations, count, &factor);
  }
}

void narrow(DType dtype, Op op, const void* source, void* destination, size_t count, int ranks) {
  require_supported(dtype, op);
  const NarrowKernel kernel = kernels.active().narrow[index(dtype)];
  if (wire_dtype(dtype, op) == dtype && op != Op::Avg) {
    copy_bytes(destination, source, count * size_of(dtype));
  } else if (op == Op::Avg) {
    if (ranks < 1) throw InvalidArgument("avg over " + std::to_string(ranks) + " ranks");
    if (kernel) {
      kernel(source, destination, count, ranks);
    } else {
      narrow_integers(dtype, source, destination, count, ranks);
    }
  } else {
    kernel(source, destination, count, 1);
  }
}

std::string_view kernel_name() {
  return kernels.active().name;
}

std::span<const std::string_view> kernel_names() {
  return kernels.names();
}

void select_kernels(std::string_view name) {
  kernels.select(name);
}

}  // namespace pycoll
