#include "torch/bootstrap.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "torch/waits.h"

namespace pycoll::torch_adapter {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTimeToLookForTheDead{5};  // between looks for a key
constexpr std::chrono::milliseconds kTimeToTell{200};          // of a wait, before others are told of it

class StoreExchange {
 public:
  explicit StoreExchange(const Rendezvous& rendezvous)
      : rendezvous_(rendezvous),
        started_(Clock::now()),
        deadline_(started_ + rendezvous.options.timeout),
        processes_(size_t(rendezvous.ranks)),
        wait_(rendezvous.notes, rendezvous.global_ranks, in_world(rendezvous.rank)) {
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

  // The rank in torch's world of a rank of the group.
  int in_world(int rank) const {
    return rendezvous_.global_ranks.empty() ? rank : rendezvous_.global_ranks[size_t(rank)];
  }

  // Polls rather than waits, so that a failure elsewhere is seen at once.
  void wait_for(const std::vector<std::string>& keys) {
    auto pause = std::chrono::microseconds(50);
    auto time_to_tell = Clock::now() + kTimeToTell;
    while (!rendezvous_.store->check(keys)) {
      if (rendezvous_.store->check({kFailedKey})) throw_failure();
      if (pause >= kTimeToLookForTheDead) throw_if_gone(keys);
      if (Clock::now() >= deadline_) throw_timeout(keys);
      if (Clock::now() >= time_to_tell) {
        wait_.tell(missing(keys, true));
        time_to_tell = Clock::now() + 5 * kTimeToTell;
      }
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

  // The ranks whose keys are not there, by their numbers in the world or in the group.
  std::vector<int> missing(const std::vector<std::string>& keys, bool by_world) const {
    std::vector<int> ranks;
    for (int r = 0; r < rendezvous_.ranks; ++r)
      if (!rendezvous_.store->check({keys[size_t(r)]})) ranks.push_back(by_world ? in_world(r) : r);
    return ranks;
  }

  [[noreturn]] void throw_timeout(const std::vector<std::string>& keys) {
    const std::vector<int> absent = missing(keys, false), absent_of_world = missing(keys, true);
    const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
    std::string message =
        who() + c10::str("timed out after ", seconds, " s waiting for rank ", comma_separated(absent));
    if (absent != absent_of_world) message += " (of the world: " + comma_separated(absent_of_world) + ")";
    message += " to join the group";
    wait_.tell(absent_of_world);
    wait_.leave_it_told();
    const std::string chain = wait_.chain_from(absent_of_world);
    if (!chain.empty())
      message += ". In the world, " + chain +
                 ". Each rank waits for its groups one after another: make them in the same order on all";
    else if (rendezvous_.notes)
      message += "; does it call new_group, with the same ranks?";
    else
      message += "; is it running, with the same rendezvous address and world size?";
    throw Timeout(message);
  }

  const Rendezvous rendezvous_;
  const Clock::time_point started_, deadline_;
  std::vector<std::optional<Process>> processes_;  // of the ranks, where known
  int exchanges_ = 0;
  ToldWait wait_;
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
