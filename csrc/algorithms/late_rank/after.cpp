#include <list>
#include <mutex>
#include <utility>

#include "algorithms/late_rank/phases.h"

namespace pycoll::late_rank {

namespace {

// What the rounds depend on.
struct Case {
  int ranks;
  int pieces;
  std::vector<int> arrivals;
  std::vector<int> cluster;
  bool operator==(const Case&) const = default;
};

std::vector<Transfer> make(const Case& asked) {
  if (asked.arrivals.size() > 1) return several_late(asked.ranks, asked.pieces, asked.arrivals);
  if (asked.cluster.empty() && has_closed_form(asked.ranks)) return closed_form(asked.ranks, asked.pieces);
  if (asked.cluster.empty() && asked.ranks == 3) return three_ranks(asked.pieces);
  return by_matching(asked.ranks, asked.pieces, asked.cluster);
}

// Matchings take up to a tenth of a second, and are asked for again for every rank that may be late: those
// used last are kept.
class Kept {
 public:
  std::shared_ptr<const std::vector<Transfer>> find(const Case& asked) {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->first == asked) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entry->second;
      }
    return nullptr;
  }

  void keep(const Case& asked, std::shared_ptr<const std::vector<Transfer>> transfers) {
    const std::lock_guard lock(mutex_);
    total_ += transfers->size();
    entries_.emplace_front(asked, std::move(transfers));
    while (total_ > kMostTransfers) {
      total_ -= entries_.back().second->size();
      entries_.pop_back();
    }
  }

 private:
  static constexpr size_t kMostTransfers = size_t{1} << 20;
  std::mutex mutex_;
  std::list<std::pair<Case, std::shared_ptr<const std::vector<Transfer>>>> entries_;
  size_t total_ = 0;
};

}  // namespace

std::shared_ptr<const std::vector<Transfer>> after_arrival(int ranks, int pieces,
                                                           const std::vector<int>& arrivals,
                                                           const std::vector<int>& cluster) {
  static Kept kept;
  const Case asked{ranks, pieces, arrivals, cluster};
  if (auto found = kept.find(asked)) return found;
  auto made = std::make_shared<const std::vector<Transfer>>(make(asked));
  kept.keep(asked, made);
  return made;
}

}  // namespace pycoll::late_rank
