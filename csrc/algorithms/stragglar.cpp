#include <bit>
#include <numeric>

#include "algorithms/builder.h"
#include "algorithms/late_rank/parts.h"
#include "algorithms/list.h"
#include "algorithms/params.h"

namespace pycoll {

namespace {

bool power_of_two(int ranks) {
  return ranks >= 2 && std::has_single_bit(static_cast<unsigned>(ranks));
}

// The published algorithm: one chunk an early rank, n-2+log2 n rounds after the arrival. For powers of two
// its rule, half of the ranks give away the oldest chunk for a young one while the rank whose turn it is
// swaps with the late one, is that of the closed form; what it lacks is the choice of the number of pieces.
Schedule build_stragglar(const BuildRequest& request) {
  const int n = request.ranks, chunks = n - 1;
  ScheduleBuilder schedule("stragglar", request, chunks, {"late", "phase"});
  std::vector<int> order(late_rank::at(n));
  std::iota(order.begin(), order.end(), 0);
  const int late = integer_param(request, "late", n - 1, 0, n - 1);
  std::erase(order, late);
  order.push_back(late);
  late_rank::Parts parts(schedule, order);
  parts.add_before(late_rank::reduce_to_owners(chunks, chunks, chunks, chunks), chunks);
  parts.add_after(late_rank::closed_form(n, chunks), chunks);
  return parts.finish(request);
}

}  // namespace

Algorithm stragglar() {
  return {
      .name = "stragglar",
      .description =
          "the published late-rank algorithm, with one chunk an early rank: n-2+log2 n rounds after the "
          "arrival; a baseline for late_rank",
      .source = "Devraj et al., Efficient AllReduce with Stragglers (StragglAR), arXiv 2505.23523",
      .collectives = {CollectiveKind::AllReduce},
      .valid_ranks = "powers of two, from 2",
      .accepts = power_of_two,
      .build = build_stragglar,
      .for_late_ranks = true,
  };
}

}  // namespace pycoll
