#include "torch/bootstrap.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace pycoll::torch_adapter {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTimeToLookForTheDead{5};  // between looks for a key

class StoreExchange {
 public:
  explicit StoreExchange(const Rendezvous& rendezvous)
      : rendezvous_(rendezvous),
        started_(Clock::now()),
        deadline_(started_ + rendezvous.options.timeout),
        processes_(size_t(rendezvous.ranks)) {
    for (size_t r = 0; r < rendezvous.global_ranks.size() && r < processes_.size(); ++r)
      processes_[r] = KnownPeers::of(rendezvous.global_ranks[r]);
  }

  // The first time, each rank says who it is as well.
  std::vector<std::string> all_gather(const std::string& mine) {
    if (exchanges_ > 0) return exchange(mine);
    std::vector<std::string> values = exchange(Process::self().text() + '\n' + mine);
    for (size_t r = 0; r < values.size(); ++r) {
      const size_t end = values[r].find('\n');
      processes_[r] = Process::parse(values[r].substr(0, end));
      values[r].erase(0, end == std::string::npos ? end : end + 1);
    }
    return values;
  }

  const std::vector<std::optional<Process>>& processes() const { return processes_; }

 private:
  std::vector<std::string> exchange(const std::string& mine) {
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

  std::string who() const {
    return "group " + rendezvous_.options.group + ", rank " + std::to_string(rendezvous_.rank) + " of " +
           std::to_string(rendezvous_.ranks) + ": ";
  }

  // Polls rather than waits, so that a failure elsewhere is seen at once.
  void wait_for(const std::vector<std::string>& keys) {
    auto pause = std::chrono::microseconds(50);
    while (!rendezvous_.store->check(keys)) {
      if (rendezvous_.store->check({kFailedKey})) throw_failure();
      if (pause >= kTimeToLookForTheDead) throw_if_gone(keys);
      if (Clock::now() >= deadline_) throw_timeout(keys);
      if (rendezvous_.check_interrupted) rendezvous_.check_interrupted();
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(10'000));
    }
  }

  void throw_if_gone(const std::vector<std::string>& keys) {
    for (int r = 0; r < rendezvous_.ranks; ++r) {
      const auto& process = processes_[size_t(r)];
      if (!process || !process->gone() || rendezvous_.store->check({keys[size_t(r)]})) continue;
      throw PeerLost(
          who() + "rank " + std::to_string(r) + " (pid " + std::to_string(process->pid) +
          ") is gone: its process exited or was killed before the group was made. Look at that rank's "
          "own output for the cause.");
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
  std::vector<std::optional<Process>> processes_;  // of the ranks, where known
  int exchanges_ = 0;
};

}  // namespace

namespace {

// Writes kFailedKey for the ranks that wait, unless another one did.
void tell_failure(const Rendezvous& rendezvous, const std::string& message) noexcept {
  try {
    if (!rendezvous.store->check({kFailedKey}))
      rendezvous.store->set(kFailedKey, std::to_string(rendezvous.rank) + ": " + message);
  } catch (const std::exception&) {  // the store may be what failed
  }
}

}  // namespace

Joined join(const Rendezvous& rendezvous) {
  StoreExchange exchange(rendezvous);
  try {
    auto communicator = Communicator::create(
        rendezvous.rank, rendezvous.ranks, [&](const std::string& mine) { return exchange.all_gather(mine); },
        rendezvous.options);
    return {std::move(communicator), KnownPeers::learn(rendezvous.global_ranks, exchange.processes())};
  } catch (const std::exception& e) {
    tell_failure(rendezvous, e.what());
    throw;
  }
}

}  // namespace pycoll::torch_adapter
