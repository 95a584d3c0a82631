#include "algorithms/late_rank/parts.h"

#include <string>
#include <utility>

#include "algorithms/params.h"

namespace pycoll::late_rank {

void Parts::place(const std::vector<Transfer>& transfers, int slots, std::vector<Transfer>& out) const {
  for (const Transfer& t : transfers) {
    const PieceRange pieces = schedule_.block(t.piece, slots);
    for (int piece = pieces.begin; piece < pieces.end; ++piece)
      out.push_back({t.round, order_[at(t.src)], order_[at(t.dst)], piece, t.action});
  }
}

void Parts::add_ring(int first, const std::vector<int>& order) {
  const int n = schedule_.ranks(), first_round = rounds_of(after_);
  const int64_t count = schedule_.pieces() - first;
  for (int step = 0; step < 2 * (n - 1); ++step)
    for (int position = 0; position < n; ++position) {
      const int shard = (position - step - 1 + 2 * n) % n;
      const int end = first + static_cast<int>((shard + 1) * count / n);
      for (int piece = first + static_cast<int>(shard * count / n); piece < end; ++piece)
        after_.push_back({first_round + step, order[at(position)], order[at((position + 1) % n)], piece,
                          step < n - 1 ? Action::Reduce : Action::Copy});
    }
}

Schedule Parts::finish(const BuildRequest& request) {
  const std::string phase = choice_param(request, "phase", {"both", "before", "after"});
  if (phase != "after") schedule_.add(before_, 0);
  if (phase != "before") schedule_.add(after_, phase == "both" ? rounds_of(before_) : 0);
  Schedule made = schedule_.finish();
  if (phase == "before") made.following = std::move(after_);
  if (phase == "after") made.preceding = std::move(before_);
  return made;
}

}  // namespace pycoll::late_rank
