// oneCCL's allreduce on the CPU, in place.
#include <oneapi/ccl.hpp>

#include "measure.h"

namespace {

struct OneCcl {
  ccl::communicator& communicator;
  int ranks;
  float* allocate(size_t count) { return bench::private_buffer(count); }
  void allreduce(float* buffer, size_t count) {
    ccl::allreduce(buffer, buffer, count, ccl::reduction::sum, communicator).wait();
  }
  float expected(size_t index, uint64_t iteration) const {
    return bench::sum_of_contributions(ranks, index, iteration);
  }
};

// Rank 0 makes the key-value store that the others connect to.
ccl::shared_ptr_class<ccl::kvs> shared_store(bench::Harness& harness) {
  ccl::shared_ptr_class<ccl::kvs> store;
  std::string address;
  if (harness.rank() == 0) {
    store = ccl::create_main_kvs();
    ccl::kvs::address_type bytes = store->get_address();
    address.assign(bytes.begin(), bytes.end());
  }
  address = harness.all_gather(address)[0];
  if (harness.rank() == 0) return store;
  ccl::kvs::address_type bytes;
  std::copy(address.begin(), address.end(), bytes.begin());
  return ccl::create_kvs(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded_main([&] {
    bench::Arguments arguments(argc, argv);
    ccl::init();
    const char* rank = std::getenv("PMI_RANK");  // set by the launcher, mpiexec
    if (!rank) throw std::runtime_error("PMI_RANK is not set: start this program by mpiexec");
    bench::Harness harness = bench::make_harness(arguments, std::stoi(rank), arguments.integer("--ranks"));
    auto communicator = ccl::create_communicator(harness.ranks(), harness.rank(), shared_store(harness));
    OneCcl library{communicator, harness.ranks()};
    bench::Measurement(harness, library, arguments);
  });
}
