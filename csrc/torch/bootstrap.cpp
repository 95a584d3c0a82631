#include "torch/bootstrap.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "core/error.h"

namespace pycoll::torch_adapter {
namespace {

using Clock = std::chrono::steady_clock;

class StoreExchange {
 public:
  explicit StoreExchange(const Rendezvous& rendezvous)
      : rendezvous_(rendezvous), started_(Clock::now()), deadline_(started_ + rendezvous.timeout) {}

  std::vector<std::string> all_gather(const std::string& mine) {
    const int exchange = exchanges_++;
    std::vector<std::string> keys;
    for (int r = 0; r < rendezvous_.ranks; ++r)
      keys.push_back(std::to_string(exchange) + "/" + std::to_string(r));
    try {
      rendezvous_.store->set(keys[size_t(rendezvous_.rank)], mine);
      wait_for(keys);
      return read(keys);
    } catch (const c10::DistError& e) {
      throw PeerLost(who() +
                     "the rendezvous store failed while the group was being made; the process that "
                     "hosts it (rank 0, or the launcher) has probably exited: " +
                     e.what_without_backtrace());
    }
  }

 private:
  std::string who() const {
    return "group " + rendezvous_.group + ", rank " + std::to_string(rendezvous_.rank) + " of " +
           std::to_string(rendezvous_.ranks) + ": ";
  }

  // Polls rather than waits, so that a failure elsewhere is seen at once.
  void wait_for(const std::vector<std::string>& keys) {
    auto pause = std::chrono::microseconds(50);
    while (!rendezvous_.store->check(keys)) {
      if (rendezvous_.store->check({kFailedKey})) throw_failure();
      if (Clock::now() >= deadline_) throw_timeout(keys);
      if (rendezvous_.check_interrupted) rendezvous_.check_interrupted();
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(10'000));
    }
  }

  std::vector<std::string> read(const std::vector<std::string>& keys) {
    std::vector<std::string> values;
    if (rendezvous_.store->hasExtendedApi()) {
      for (const auto& value : rendezvous_.store->multiGet(keys))
        values.emplace_back(value.begin(), value.end());
    } else {
      for (const auto& key : keys) values.push_back(rendezvous_.store->get_to_str(key));
    }
    return values;
  }

  [[noreturn]] void throw_failure() {
    throw Aborted(who() + "the group was not made, because of rank " +
                  rendezvous_.store->get_to_str(kFailedKey));
  }

  [[noreturn]] void throw_timeout(const std::vector<std::string>& keys) {
    std::string missing;
    for (int r = 0; r < rendezvous_.ranks; ++r)
      if (!rendezvous_.store->check({keys[size_t(r)]}))
        missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    throw Timeout(who() + "timed out after " + c10::str(seconds) + " s waiting for rank " + missing +
                  " to join the group; is it running, with the same rendezvous address and world size?");
  }

  const Rendezvous rendezvous_;
  const Clock::time_point started_, deadline_;
  int exchanges_ = 0;
};

}  // namespace

AllGatherBytes all_gather_over(const Rendezvous& rendezvous) {
  auto exchange = std::make_shared<StoreExchange>(rendezvous);
  return [exchange](const std::string& mine) { return exchange->all_gather(mine); };
}

}  // namespace pycoll::torch_adapter
