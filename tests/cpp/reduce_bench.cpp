// Speeds of the reduction kernels, to see a regression: GB/s of bytes read and written, the median of several
// runs.
//   reduce_bench [kernels]     e.g. reduce_bench avx2
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reduce/reduce.h"

namespace {

using namespace pycoll;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one call, the median of nine batches of about a millisecond or more each.
double time_of(const std::function<void()>& call) {
  call();
  size_t calls = 1;
  for (double elapsed = 0; elapsed < 1e-3; calls *= 2) {
    const double begin = seconds();
    for (size_t i = 0; i < calls; ++i) call();
    elapsed = seconds() - begin;
  }
  std::vector<double> each;
  for (int batch = 0; batch < 9; ++batch) {
    const double begin = seconds();
    for (size_t i = 0; i < calls; ++i) call();
    each.push_back((seconds() - begin) / static_cast<double>(calls));
  }
  std::nth_element(each.begin(), each.begin() + 4, each.end());
  return each[4];
}

// Buffers on bases that are no power of two apart: those alias in the caches and measure that instead.
class Buffers {
 public:
  Buffers(size_t how_many, size_t bytes) {
    const size_t stride = (bytes + 4095) / 4096 * 4096 + 4096 + 192;
    memory_.reset(
        static_cast<std::byte*>(std::aligned_alloc(4096, (how_many * stride + 4095) / 4096 * 4096)));
    std::fill_n(memory_.get(), how_many * stride, std::byte{});
    for (size_t i = 0; i < how_many; ++i) each_.push_back(memory_.get() + i * stride);
  }
  void* operator[](size_t i) const { return each_[i]; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<void*> each_;
};

void reductions(DType dtype, Op op, Stores stores) {
  for (size_t n : {2, 4, 8}) {
    for (size_t outs : {1, 2}) {
      std::printf("%-8s %-3s %-12s %zu sources, %zu outputs ", std::string(name_of(dtype)).c_str(),
                  std::string(name_of(op)).c_str(), stores == Stores::Plain ? "plain" : "non-temporal", n,
                  outs);
      for (size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{32} << 20}) {
        const Buffers buffers(n + outs, bytes);
        std::vector<const void*> from;
        std::vector<void*> to;
        for (size_t i = 0; i < n; ++i) from.push_back(buffers[i]);
        for (size_t i = 0; i < outs; ++i) to.push_back(buffers[n + i]);
        const double each =
            time_of([&] { reduce_many(dtype, op, from, to, bytes / size_of(dtype), nullptr, 0, stores); });
        std::printf(" %7.1f", static_cast<double>((n + outs) * bytes) / each / 1e9);
      }
      std::printf("\n");
    }
  }
}

void copies(Stores stores) {
  std::printf("copy %-12s                         ", stores == Stores::Plain ? "plain" : "non-temporal");
  for (size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{32} << 20}) {
    const Buffers buffers(2, bytes);
    const double each = time_of([&] { copy_bytes(buffers[0], buffers[1], bytes, stores); });
    std::printf(" %7.1f", static_cast<double>(2 * bytes) / each / 1e9);
  }
  std::printf("\n");
}

void small_calls() {
  for (DType dtype : {DType::Float32, DType::BFloat16, DType::Int64}) {
    for (size_t count : {1, 2, 8, 31, 64, 256}) {
      const Buffers buffers(3, 8192);
      const void* const from[] = {buffers[0], buffers[1]};
      void* const to[] = {buffers[2]};
      const double each = time_of([&] { reduce_many(dtype, Op::Sum, from, to, count); });
      std::printf("%-8s sum of %3zu elements, 2 sources: %6.1f ns\n", std::string(name_of(dtype)).c_str(),
                  count, each * 1e9);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) select_kernels(argv[1]);
  std::printf("kernels: %s\n", std::string(kernel_name()).c_str());
  small_calls();
  std::printf("GB/s read and written, a buffer of                   4 KiB  64 KiB   1 MiB  32 MiB\n");
  for (DType dtype :
       {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16, DType::Int32, DType::Int64}) {
    reductions(dtype, Op::Sum, Stores::Plain);
  }
  reductions(DType::Float32, Op::Avg, Stores::Plain);
  reductions(DType::BFloat16, Op::Avg, Stores::Plain);
  reductions(DType::Int64, Op::Avg, Stores::Plain);
  reductions(DType::Float8E4M3FN, Op::Sum, Stores::Plain);
  reductions(DType::Float32, Op::Sum, Stores::NonTemporal);
  copies(Stores::Plain);
  copies(Stores::NonTemporal);
}
