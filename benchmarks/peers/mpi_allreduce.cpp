// MPI_Allreduce in place, for any MPI.
#include <mpi.h>

#include "measure.h"

namespace {

struct Mpi {
  int ranks;
  float* allocate(size_t count) { return bench::private_buffer(count); }
  void allreduce(float* buffer, size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, buffer, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  float expected(size_t index, uint64_t iteration) const {
    return bench::sum_of_contributions(ranks, index, iteration);
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);  // errors are fatal, with MPI's own message
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int code = bench::guarded_main([&] {
    bench::Arguments arguments(argc, argv);
    bench::Harness harness = bench::make_harness(arguments, rank, ranks);
    if (rank == 0) {
      char version[MPI_MAX_LIBRARY_VERSION_STRING];
      int length = 0;
      MPI_Get_library_version(version, &length);
      std::fprintf(stderr, "%s\n", version);
    }
    Mpi mpi{ranks};
    bench::Measurement(harness, mpi, arguments);
  });
  MPI_Finalize();
  return code;
}
