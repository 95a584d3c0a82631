// When a rank whose link is slow is gone around, and when no longer.
#include "engine/hosts/slow_rank.h"

#include <array>

#include "check.h"

namespace pycoll::test {
namespace {

constexpr size_t kBytes = 16 << 20;
using Stuck = std::array<float, 4>;
constexpr Stuck kEven = {0.9F, 0.8F, 0.9F, 0.7F};  // all wires are full
constexpr Stuck kSecondSlow = {0.1F, 0.9F, 0.95F, 0.05F};

// `calls` calls as usual.
SlowRank after_usual_calls(int calls = 5) {
  SlowRank slow;
  for (int call = 0; call < calls; ++call)
    check(slow.choose(kBytes, kEven, call == 0 ? 0 : 0.2) < 0, "as usual");
  return slow;
}

void a_slow_link_is_gone_around() {
  SlowRank slow = after_usual_calls();
  check(slow.choose(kBytes, kEven, 0.2) < 0, "still as usual");
  check(slow.choose(kBytes, kSecondSlow, 2.1) < 0, "one slow call may be anything");
  check(slow.choose(kBytes, kSecondSlow, 2.1) == 2, "the rank that receives and sends slowly");
  int as_usual = 0;
  for (int call = 0; call < 64; ++call) {
    const int went = slow.choose(kBytes, kEven, as_usual > 0 && call % 16 == 15 ? 2.1 : 1.5);
    as_usual += went < 0;
    check(went == 2 || went == -1, "that rank and no other");
  }
  check(as_usual == 4, "now and then one call goes as usual: " + std::to_string(as_usual));
}

void a_link_that_recovers_is_used_again() {
  SlowRank slow = after_usual_calls();
  slow.choose(kBytes, kSecondSlow, 2.1);
  int went = slow.choose(kBytes, kSecondSlow, 2.1);
  check(went == 2, "gone around");
  int calls = 0;
  for (; went == 2 && calls < 100; ++calls) went = slow.choose(kBytes, kEven, 1.5);
  check(calls == 15, "one call as usual, after " + std::to_string(calls));
  for (int call = 0; call < 100; ++call) check(slow.choose(kBytes, kEven, 0.2) < 0, "and from then on all");
}

void what_wins_nothing_is_given_up() {
  SlowRank slow = after_usual_calls();
  slow.choose(kBytes, kSecondSlow, 2.1);
  check(slow.choose(kBytes, kSecondSlow, 2.1) == 2, "tried");
  check(slow.choose(kBytes, kEven, 2.1) < 0, "given up");
  for (int call = 0; call < 50; ++call)
    check(slow.choose(kBytes, kSecondSlow, 2.1) < 0, "and not tried again for a while");
}

void nothing_is_concluded_from_little() {
  for (const Stuck& stuck : {Stuck{0.9F, 0.9F, 0.9F, 0.1F}, Stuck{0.9F, 0.1F, 0.9F, 0.1F},
                             Stuck{0.9F, 0.3F, 0.1F, 0.1F}, Stuck{-1.0F, 0.9F, 0.9F, 0.1F}}) {
    SlowRank slow = after_usual_calls();
    for (int call = 0; call < 10; ++call)
      check(slow.choose(kBytes, stuck, 2.1) < 0, "no one rank is to blame");
  }
  SlowRank larger = after_usual_calls();
  for (int call = 0; call < 10; ++call)
    check(larger.choose(kBytes * 64, kSecondSlow, 12.8) < 0, "another size has times of its own");
}

}  // namespace
}  // namespace pycoll::test

int main() {
  using namespace pycoll::test;
  run("a slow link is gone around", a_slow_link_is_gone_around);
  run("a link that recovers is used again", a_link_that_recovers_is_used_again);
  run("what wins nothing is given up", what_wins_nothing_is_given_up);
  run("nothing is concluded from little", nothing_is_concluded_from_little);
  return result();
}
