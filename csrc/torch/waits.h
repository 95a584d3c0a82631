// Which groups the ranks of a job are making, and for whom each waits there: told through a store, so that
// ranks that wait for each other in a circle can say so when their time is up.
#pragma once
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace pycoll::torch_adapter {

// This rank's wait in the making of one group. All ranks are the job's own, that is torch's global ones.
class ToldWait {
 public:
  // `notes`: the job's, null where there is none; `members`: of the group, empty where they are not known.
  ToldWait(c10::intrusive_ptr<c10d::Store> notes, const std::vector<int>& members, int self);
  ~ToldWait();
  ToldWait(const ToldWait&) = delete;
  ToldWait& operator=(const ToldWait&) = delete;

  void tell(const std::vector<int>& missing);

  // For those whose time is up a moment later, what was told stays until this rank makes another group.
  void leave_it_told() { left_ = true; }

  // "rank 1 waits for rank 2 to make a group of ranks 1, 2; rank 2 waits ..." from `missing` on; empty where
  // none of them waits.
  std::string chain_from(const std::vector<int>& missing) const;

 private:
  c10::intrusive_ptr<c10d::Store> notes_;
  std::string members_;
  int self_;
  std::string told_;
  bool left_ = false;
};

std::string comma_separated(const std::vector<int>& ranks);

}  // namespace pycoll::torch_adapter
