// pycoll's engine, in place: private buffers, or (--zero-copy 1) buffers that the communicator allocates.
#include "engine/communicator.h"
#include "measure.h"

namespace {

struct Pycoll {
  pycoll::Communicator& communicator;
  bool zero_copy;
  float* allocate(size_t count) {
    if (!zero_copy) return bench::private_buffer(count);
    return static_cast<float*>(communicator.allocate(count * sizeof(float)));
  }
  void allreduce(float* buffer, size_t count) {
    pycoll::CollectiveCall call;
    call.input = buffer;
    call.output = buffer;
    call.count = count;
    communicator.run(call);
  }
  float expected(size_t index, uint64_t iteration) const {
    return bench::sum_of_contributions(communicator.ranks(), index, iteration);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded_main([&] {
    bench::Arguments arguments(argc, argv);
    bench::Harness harness =
        bench::make_harness(arguments, arguments.integer("--rank"), arguments.integer("--ranks"));
    auto communicator = pycoll::Communicator::create(
        harness.rank(), harness.ranks(), [&](const std::string& mine) { return harness.all_gather(mine); });
    Pycoll library{*communicator, arguments.integer("--zero-copy") != 0};
    bench::Measurement(harness, library, arguments);
    harness.barrier();
    communicator->close();
  });
}
