// How far apart two processors are, measured: the time a cache line takes from one to the other.
#pragma once
#include <vector>

namespace pycoll {

// The processors this thread may run on, in order.
std::vector<int> allowed_cpus();

// Nanoseconds a cache line takes from one processor to the other, one way: the median over batches of a line
// bounced between two threads pinned to `cpu_a` and `cpu_b`. The default is the first two allowed processors.
// Takes about 5 ms, 250 ms at most on a busy machine. NaN where there is only one processor, or where the two
// never ran together. InvalidArgument for a processor that this process may not use, or twice the same.
double core_to_core_ns(int cpu_a = -1, int cpu_b = -1);

}  // namespace pycoll
