#if defined(__x86_64__)
#define PYCOLL_ISA avx512
#include "reduce/kernels.h"

namespace pycoll {
namespace avx512 {

constexpr KernelTable make_table() {
  KernelTable table{};
  table.name = "avx512";
  add_hot_kernels(table);
  return table;
}

}  // namespace avx512

constinit const KernelTable kAvx512Kernels = avx512::make_table();

}  // namespace pycoll
#endif
