// Who is here for a collective, and who is late: found out in each call, by one rank that counts.
//
// Every rank tells the clerk, rank 0, that it is here. When all are, the clerk says so and the call goes on.
// When a few are missing, and nobody has come for a while, it lets the others begin without them, a group of
// pieces at a time; when the last comes it says which groups were begun. The order of arrivals is that at the
// clerk, so there is one answer, and all ranks get it. The clerk answers while rank 0 computes, too: a thread
// attends to that.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "core/clock.h"
#include "engine/hosts/links.h"
#include "engine/hosts/slow_rank.h"

namespace pycoll {

class RollCall {
 public:
  static constexpr int kMostLate = 3;

  // A rank's last call: the share of its time in which it was stuck (slow_rank.h), negative: not known, and
  // what it took, 0: not known.
  struct Experience {
    float stuck = -1;
    float seconds = 0;
  };

  explicit RollCall(HostLinks& links);

  // This rank is here. `groups`: in how many the early ranks may begin; `patience`: how long the clerk waits
  // for the next rank before it lets the others begin.
  void arrive(const shm::CallHeader& header, uint32_t hints, int groups, SteadyClock::duration patience,
              const Experience& last);

  // What the clerk has said of a call so far.
  struct State {
    uint64_t sequence = 0;
    bool began = false;    // the early ranks have been told to begin
    bool decided = false;  // all are here, or calls differ
    bool differs = false;
    bool around = false;    // nobody is late, but the rank named is slow, and the others go around it
    int open = 0;           // groups that early ranks may reduce; once decided, those that they have or will
    std::vector<int> late;  // without whom they began
    uint32_t hints = 0;
    std::vector<int64_t> ago_ns;  // once decided: by rank, how long before `told` it came
    SteadyClock::time_point told;
  };
  State state(uint64_t sequence) const;
  // What is asked often, of the call that this rank is in.
  int open() const { return open_.load(std::memory_order_acquire); }
  bool began() const { return began_.load(std::memory_order_acquire); }
  bool decided() const { return decided_.load(std::memory_order_acquire); }

  void report(uint64_t sequence, int groups);  // an early rank has reduced so many
  void differ(uint64_t sequence);              // another rank is in another kind of call
  // Whom this rank waits for: the clerk; the clerk itself for a rank that is missing.
  int awaited() const;

 private:
  static constexpr int kAhead = 2;
  struct Roll {  // the clerk's
    uint64_t sequence = 0;
    int count = 0;
    int groups = 0;
    int open = 0;
    bool began = false;
    bool decided = false;
    bool differs = false;
    std::vector<char> here;
    std::vector<int> late;
    std::vector<SteadyClock::time_point> came;
    std::vector<uint64_t> signatures;
    std::vector<float> stuck;
    bool around = false;
    size_t bytes = 0;
    double seconds = 0;  // that the clerk's last call took
    uint32_t hints = 0;
    SteadyClock::duration patience{};
    SteadyClock::time_point last{};
  };

  void heed(int source, std::span<const std::byte> note);
  void enroll(int rank, const shm::CallHeader& header, uint32_t hints, int groups,
              SteadyClock::duration patience, const Experience& last);
  void begin();
  void open_more(int reduced);
  void decide(bool differs);
  void tell_all();
  void take(std::span<const std::byte> note);

  HostLinks& links_;  // whose mutex guards what follows
  State state_;
  Roll roll_;
  SlowRank slow_rank_;
  std::atomic<int> open_{0};
  std::atomic<bool> began_{false};
  std::atomic<bool> decided_{false};
};

}  // namespace pycoll
