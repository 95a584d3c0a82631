// Groups made from groups. They meet at keys of the parent's making, which nobody else uses.
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torch/backend.h"
#include "torch/errors.h"

namespace pycoll::torch_adapter {

// This group's but for the decisions, which were made for its number of ranks.
CommunicatorOptions Backend::options_for(const std::string& key,
                                         const c10::intrusive_ptr<Options>& opts) const {
  CommunicatorOptions options = rendezvous_.options;
  options.group = opts && !opts->group_name.empty() ? opts->group_name : options.group + "/" + key;
  options.timeout = opts ? opts->timeout : options_->timeout;
  options.decisions.clear();
  options.decide = nullptr;  // it was lent for the making of the first group
  return options;
}

// `members`: ranks of this group, this one among them, in the order of the new group. They meet under their
// names and how often these have met: other ranks do not call, so there is no count that all of the group
// share.
c10::intrusive_ptr<c10d::Backend> Backend::derive(const std::string& how, const std::vector<int>& members,
                                                  const c10::intrusive_ptr<Options>& opts) {
  return translating_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    std::string key = how;
    for (int member : members) key += c10::str("-", member);
    key += c10::str("#", derived_[key]++);
    Rendezvous rendezvous = rendezvous_;
    rendezvous.store = c10::make_intrusive<c10d::PrefixStore>(key, rendezvous_.store);
    rendezvous.rank = int(std::find(members.begin(), members.end(), getRank()) - members.begin());
    rendezvous.ranks = int(members.size());
    rendezvous.options = options_for(key, opts);
    rendezvous.global_ranks.clear();
    for (int member : members)
      if (!rendezvous_.global_ranks.empty())
        rendezvous.global_ranks.push_back(rendezvous_.global_ranks[size_t(member)]);
    return create(rendezvous, accelerator_);
  });
}

// Gives null on ranks that are not in `ranks`; torch's ProcessGroup does not ask them.
c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& opts) {
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return nullptr;
  for (int r : ranks)
    if (r < 0 || r >= getSize())
      C10_THROW_ERROR(ValueError,
                      c10::str("pycoll split: rank ", r, " is not in a group of ", getSize(), " ranks"));
  return derive("split", ranks, opts);
}

// Called by the ranks that stay.
c10::intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t>& excluded, int flags,
                                                  const c10::intrusive_ptr<Options>& opts) {
  std::vector<int> stay;
  for (int r = 0; r < getSize(); ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) stay.push_back(r);
  if (std::find(stay.begin(), stay.end(), getRank()) == stay.end())
    C10_THROW_ERROR(ValueError,
                    c10::str("pycoll shrink: rank ", getRank(), " is to be left out, and must not call it"));
  constexpr int kAbort = 1;  // torch.distributed's SHRINK_ABORT
  if (flags & kAbort) abort();
  return derive("shrink", stay, opts);
}

// Ranks of several groups, or new ones, meet at a store that all of them have.
c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const c10::intrusive_ptr<Options>& opts, const int& rank,
                                                 const int& size) {
  return translating_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    return create(Rendezvous{.store = c10::make_intrusive<c10d::PrefixStore>("pycoll-merge", store),
                             .rank = rank,
                             .ranks = size,
                             .options = options_for("merged", opts),
                             .check_interrupted = rendezvous_.check_interrupted},
                  accelerator_);
  });
}

}  // namespace pycoll::torch_adapter
