// The complete table, for any processor of the architecture (SSE2, NEON).
#define PYCOLL_ISA baseline
#include "reduce/kernels.h"

namespace pycoll {
namespace baseline {

constexpr void add_bool(KernelTable& table) {
  ReduceKernel* row = table.reduce[index(DType::Bool)];
  row[static_cast<int>(Op::Sum)] = &reduce_kernel<BoolFormat, BitOrOp>;
  row[static_cast<int>(Op::Max)] = &reduce_kernel<BoolFormat, BitOrOp>;
  row[static_cast<int>(Op::BitOr)] = &reduce_kernel<BoolFormat, BitOrOp>;
  row[static_cast<int>(Op::Prod)] = &reduce_kernel<BoolFormat, BitAndOp>;
  row[static_cast<int>(Op::Min)] = &reduce_kernel<BoolFormat, BitAndOp>;
  row[static_cast<int>(Op::BitAnd)] = &reduce_kernel<BoolFormat, BitAndOp>;
  row[static_cast<int>(Op::BitXor)] = &reduce_kernel<BoolFormat, BitXorOp>;
}

// Without wide vectors the C library copies best.
void copy_by_library(void* destination, const void* source, size_t bytes) {
  __builtin_memcpy(destination, source, bytes);
}

constexpr KernelTable make_table() {
  KernelTable table{};
#if defined(__aarch64__)
  table.name = "neon";
#else
  table.name = "baseline";
#endif
  add_hot_kernels(table);
  table.copy = &copy_by_library;
  add_wrapping<uint8_t>(table, DType::Int8, DType::UInt8);
  add_wrapping<uint16_t>(table, DType::Int16, DType::UInt16);
  add_min_max<int8_t>(table, DType::Int8);
  add_min_max<int16_t>(table, DType::Int16);
  add_min_max<uint8_t>(table, DType::UInt8);
  add_min_max<uint16_t>(table, DType::UInt16);
  add_min_max<uint32_t>(table, DType::UInt32);
  add_min_max<uint64_t>(table, DType::UInt64);
  add_integer_avg<SummedInDouble<int8_t>>(table, DType::Int8);
  add_integer_avg<SummedInDouble<int16_t>>(table, DType::Int16);
  add_integer_avg<SummedInDouble<uint8_t>>(table, DType::UInt8);
  add_integer_avg<SummedInDouble<uint16_t>>(table, DType::UInt16);
  add_integer_avg<SummedInWide<uint32_t, int64_t>>(table, DType::UInt32);
  add_integer_avg<SummedInWide<int64_t, __int128>>(table, DType::Int64);
  add_integer_avg<SummedInWide<uint64_t, __int128>>(table, DType::UInt64);
  add_bool(table);
  constexpr int kProd = static_cast<int>(Op::Prod);
  table.reduce[index(DType::Complex64)][kProd] = &reduce_kernel<Scalar<Complex<float>>, ProdOp>;
  table.reduce[index(DType::Complex128)][kProd] = &reduce_kernel<Scalar<Complex<double>>, ProdOp>;
  table.reduce[index(DType::Int128)][static_cast<int>(Op::Sum)] =
      &reduce_kernel<Scalar<unsigned __int128>, SumOp>;
  return table;
}

}  // namespace baseline

constinit const KernelTable kBaselineKernels = baseline::make_table();

}  // namespace pycoll
