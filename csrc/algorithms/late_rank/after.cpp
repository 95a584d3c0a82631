#include <list>
#include <mutex>
#include <utility>

#include "algorithms/late_rank/phases.h"

namespace pycoll::late_rank {

namespace {

std::vector<Transfer> make(int ranks, int pieces, const std::vector<int>& arrivals) {
  if (arrivals.size() > 1) return several_late(ranks, pieces, arrivals);
  if (has_closed_form(ranks)) return closed_form(ranks, pieces);
  if (ranks == 3) return three_ranks(pieces);
  return by_matching(ranks, pieces);
}

// Matchings take up to a tenth of a second, and are asked for again for every rank that may be late: those
// used last are kept.
class Kept {
 public:
  std::shared_ptr<const std::vector<Transfer>> find(int ranks, int pieces, const std::vector<int>& arrivals) {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->ranks == ranks && entry->pieces == pieces && entry->arrivals == arrivals) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entry->transfers;
      }
    return nullptr;
  }

  void keep(int ranks, int pieces, const std::vector<int>& arrivals,
            std::shared_ptr<const std::vector<Transfer>> transfers) {
    const std::lock_guard lock(mutex_);
    total_ += transfers->size();
    entries_.push_front({ranks, pieces, arrivals, std::move(transfers)});
    while (total_ > kMostTransfers) {
      total_ -= entries_.back().transfers->size();
      entries_.pop_back();
    }
  }

 private:
  static constexpr size_t kMostTransfers = size_t{1} << 20;
  struct Entry {
    int ranks;
    int pieces;
    std::vector<int> arrivals;
    std::shared_ptr<const std::vector<Transfer>> transfers;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
  size_t total_ = 0;
};

}  // namespace

std::shared_ptr<const std::vector<Transfer>> after_arrival(int ranks, int pieces,
                                                           const std::vector<int>& arrivals) {
  static Kept kept;
  if (auto found = kept.find(ranks, pieces, arrivals)) return found;
  auto made = std::make_shared<const std::vector<Transfer>>(make(ranks, pieces, arrivals));
  kept.keep(ranks, pieces, arrivals, made);
  return made;
}

}  // namespace pycoll::late_rank
