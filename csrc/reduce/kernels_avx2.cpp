#if defined(__x86_64__)
#define PYCOLL_ISA avx2
#include "reduce/kernels.h"

namespace pycoll {
namespace avx2 {

constexpr KernelTable make_table() {
  KernelTable table{};
  table.name = "avx2";
  add_hot_kernels(table);
  return table;
}

}  // namespace avx2

constinit const KernelTable kAvx2Kernels = avx2::make_table();

}  // namespace pycoll
#endif
