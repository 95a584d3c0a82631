#include <algorithm>

#include "algorithms/builder.h"
#include "algorithms/list.h"

namespace pycoll {

namespace {

// After the step of distance d every rank r has shards r, r+1, ..., r+2d-1 (mod n): it had d of them, and
// rank r + d sends it the next d, or in the last step as many as are still missing.
Schedule build_bruck(const BuildRequest& request) {
  ScheduleBuilder schedule("bruck", request, request.ranks);
  const int n = schedule.ranks();
  for (int round = 0, distance = 1; distance < n; ++round, distance *= 2)
    for (int rank = 0; rank < n; ++rank)
      for (int i = 0; i < std::min(distance, n - distance); ++i)
        schedule.copy(round, rank, (rank - distance + n) % n, schedule.shard((rank + i) % n));
  return schedule.finish();
}

}  // namespace

Algorithm bruck() {
  return {
      .name = "bruck",
      .description =
          "in step k each rank receives 2^k shards from the rank 2^k ahead; ceil(log2 n) rounds for any n",
      .source =
          "Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all communications in "
          "multiport message-passing systems, IEEE TPDS 8 (1997), the concatenation operation",
      .collectives = {CollectiveKind::AllGather},
      .valid_ranks = "any",
      .accepts = any_ranks,
      .build = build_bruck,
  };
}

}  // namespace pycoll
