// The in-place floor: each rank scales its own buffer. An allreduce in place must read and write every rank's
// buffer at least once, so this is what it would take if ranks needed nothing from each other.
#include "measure.h"

namespace {

struct Floor {
  bench::Harness& harness;
  float* allocate(size_t count) { return bench::private_buffer(count); }
  void allreduce(float* buffer, size_t count) {
    for (size_t i = 0; i < count; ++i) buffer[i] *= 2.0f;
  }
  float expected(size_t index, uint64_t iteration) const {
    return 2.0f * bench::contribution(harness.rank(), index, iteration);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded_main([&] {
    bench::Arguments arguments(argc, argv);
    bench::Harness harness =
        bench::make_harness(arguments, arguments.integer("--rank"), arguments.integer("--ranks"));
    Floor floor{harness};
    bench::Measurement(harness, floor, arguments);
  });
}
