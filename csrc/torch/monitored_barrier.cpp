// A barrier that names who is missing: rank 0 hears from every rank and answers each. It leaves the group
// usable when it fails, for nothing in it has a deadline that the engine knows of.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "torch/backend.h"
#include "torch/errors.h"

namespace pycoll::torch_adapter {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kBarrierTag = uint64_t(1) << 62;  // torch's own tags have 32 bits
constexpr size_t kVerdict = 1024;                    // bytes of rank 0's answer; empty: all have come
constexpr milliseconds kLookUp{100};                 // for a signal, now and then

// Messages under way, and what they point at, which must live on when we stop waiting for them.
class Mail : public std::enable_shared_from_this<Mail> {
 public:
  struct Letter {
    std::vector<char> text;
    std::shared_ptr<pycoll::Work> work;
    bool over = false;
  };

  explicit Mail(Communicator& communicator) : communicator_(communicator) {}

  Letter& send(int to, uint64_t tag, const std::string& text) {
    Letter& letter = letters_.emplace_back();
    letter.text.assign(text.begin(), text.end());
    letter.text.resize(kVerdict);
    return watch(letter, communicator_.send(letter.text.data(), kVerdict, to, tag, Nanoseconds::max()));
  }

  Letter& receive(int from, uint64_t tag) {
    Letter& letter = letters_.emplace_back();
    letter.text.resize(kVerdict);
    return watch(letter, communicator_.recv(letter.text.data(), kVerdict, from, tag, Nanoseconds::max()));
  }

  // Until `enough` or the deadline; whether it was enough.
  template <class Enough>
  bool wait(Clock::time_point deadline, Enough enough) {
    std::unique_lock lock(mutex_);
    while (!enough()) {
      const auto now = Clock::now();
      if (now >= deadline) return false;
      changed_.wait_until(lock, std::min(deadline, now + kLookUp));
      if (const auto& interrupted = communicator_.options().interrupted) {
        lock.unlock();
        interrupted();
        lock.lock();
      }
    }
    return true;
  }

 private:
  Letter& watch(Letter& letter, std::shared_ptr<pycoll::Work> work) {
    letter.work = std::move(work);
    letter.work->on_done([self = shared_from_this(), &letter] {
      const std::lock_guard lock(self->mutex_);
      letter.over = true;
      self->changed_.notify_all();
    });
    return letter;
  }

  Communicator& communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Letter> letters_;
};

// What was lost; rethrows what is no loss of a peer but the end of the group.
std::string loss(const Mail::Letter& letter) {
  if (!letter.over || !letter.work->exception()) return {};
  try {
    std::rethrow_exception(letter.work->exception());
  } catch (const PeerLost& e) {
    return e.what();
  }
}

std::string joined(const std::vector<int>& ranks) {
  std::string text;
  for (int r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

}  // namespace

void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  translating_errors([&] {
    const milliseconds limit = opts.timeout.count() < 0 ? options_->timeout : opts.timeout;
    const uint64_t tag = kBarrierTag | monitored_barriers_++;
    if (getSize() == 1) return;
    if (getRank() == 0)
      watch_barrier(limit, tag, wait_all_ranks);
    else
      pass_watched_barrier(limit, tag);
  });
}

void Backend::watch_barrier(milliseconds limit, uint64_t tag, bool wait_all_ranks) {
  auto mail = std::make_shared<Mail>(*communicator_);
  std::vector<const Mail::Letter*> letters;
  for (int r = 1; r < getSize(); ++r) letters.push_back(&mail->receive(r, tag));
  const auto started = Clock::now();
  mail->wait(started + limit, [&] {
    bool all = true, lost = false;
    for (const auto* letter : letters) {
      all = all && letter->over;
      lost = lost || (letter->over && letter->work->exception());
    }
    return all || (lost && !wait_all_ranks);
  });
  const milliseconds waited = std::chrono::duration_cast<milliseconds>(Clock::now() - started);
  std::vector<int> lost, absent;
  std::string reasons;
  for (int r = 1; r < getSize(); ++r) {
    const Mail::Letter& letter = *letters[size_t(r - 1)];
    const std::string reason = loss(letter);
    if (!reason.empty()) reasons += "; " + reason;
    if (!letter.over)
      absent.push_back(r);
    else if (!reason.empty())
      lost.push_back(r);
  }
  const bool timed_out =
      waited >= limit;  // else it gave up because of a rank that is lost, and others may be near
  std::vector<int> failed = lost;
  if (timed_out) failed.insert(failed.end(), absent.begin(), absent.end());
  std::sort(failed.begin(), failed.end());
  std::string verdict;
  if (!failed.empty())
    verdict =
        c10::str("group '", communicator_->options().group, "': ", failed.size() > 1 ? "Ranks " : "Rank ",
                 joined(failed), " failed to pass monitoredBarrier in ", waited.count(), " ms", reasons);
  for (int r = 1; r < getSize(); ++r) mail->send(r, tag, verdict.substr(0, kVerdict - 1));
  if (failed.empty()) return;
  if (timed_out) verdict += c10::str(" (Rank 0 timed out in monitoredBarrier after ", limit.count(), " ms)");
  C10_THROW_ERROR(
      DistBackendError,
      verdict + (lost.empty() ? ". The group is still usable; look at what those ranks are doing." : ""));
}

void Backend::pass_watched_barrier(milliseconds limit, uint64_t tag) {
  auto mail = std::make_shared<Mail>(*communicator_);
  mail->send(0, tag, "");
  const Mail::Letter& answer = mail->receive(0, tag);
  // Rank 0 may have come later than this rank, and is to have the time to say who did not come at all.
  const milliseconds grace = std::clamp(limit / 4, milliseconds(50), milliseconds(1000));
  const bool answered = mail->wait(Clock::now() + limit + grace, [&] { return answer.over; });
  std::string why = loss(answer);
  if (answered && why.empty()) why = answer.text.data();
  if (!answered) why = c10::str("no answer in ", (limit + grace).count(), " ms");
  if (why.empty()) return;
  C10_THROW_ERROR(DistBackendError,
                  c10::str("Rank ", getRank(),
                           " successfully reached monitoredBarrier, but received errors while waiting "
                           "for send/recv from rank 0: ",
                           why));
}

}  // namespace pycoll::torch_adapter
