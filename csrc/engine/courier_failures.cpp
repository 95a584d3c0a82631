// What ends operations but messages: deadlines, deaths, the failure of the group.
#include <set>
#include <string>
#include <utility>

#include "engine/courier.h"

namespace pycoll {

void Courier::check() {
  checked_ = SteadyClock::now();
  if (works_.count() == 0) return;
  group_.look_aside();
  if (group_.failed()) {
    try {
      group_.throw_failure();
    } catch (...) {
      return end_all(std::current_exception());
    }
  }
  for (const auto& work : works_.all())
    if (checked_ >= work->deadline())
      return end_late(*work, "timed out after " + shm::format_seconds(checked_ - work->posted));
  for (const int peer : needed_peers())
    if (gone(peer)) check_peer(peer);
}

int Courier::source_of(const MessageWork& work) const {
  const auto matched = remote_ ? remote_->source_of(work) : std::nullopt;
  return matched ? *matched : inbox_.source_of(work);
}

bool Courier::gone(int peer) {
  return peers_.is_near(peer) ? group_.gone(peer) : remote_->gone(peer);
}

std::vector<int> Courier::needed_peers() {
  bool any = false;
  std::set<int> needed;
  for (const auto& work : works_.all()) {
    const int peer = source_of(*work);
    any = any || peer < 0;
    if (peer >= 0) needed.insert(peer);
  }
  for (int peer = 0; peer < peers_.count() && any; ++peer) {
    if (!peers_.is_other(peer)) continue;
    needed.insert(peer);
    // Of other hosts one that is there will do: a connection to each would be many.
    if (!peers_.is_near(peer) && !remote_->gone(peer)) break;
  }
  for (const int peer : needed)
    if (!peers_.is_near(peer)) remote_->watch(peer);
  return {needed.begin(), needed.end()};
}

// Ends the works that cannot end without this rank, which is gone.
void Courier::check_peer(int peer) {
  progress();  // what it finished before it went still counts
  if (!peers_.is_near(peer)) remote_->drain(peer);
  bool all_gone = true;
  for (int other = 0; other < peers_.count() && all_gone; ++other)
    all_gone = !peers_.is_other(other) || gone(other);
  for (const auto& work : works_.all()) {
    const int needed = source_of(*work);
    if (needed != peer && !(needed < 0 && all_gone)) continue;
    if (inbox_.safe(*work)) continue;
    std::string text = describe(*work) + ": ";
    text +=
        needed < 0 ? "all other ranks have left the group or died" : peers_.in_words(peer) + " " + fate(peer);
    text += ", noticed " + shm::format_seconds(checked_ - work->posted) +
            " after the call. Look at that rank's own output for the cause.";
    inbox_.forget(*work);
    works_.end(*work, std::make_exception_ptr(PeerLost(text)));
  }
  peers_.is_near(peer) ? outbox_.forget(peer) : remote_->forget(peer);
}

std::string Courier::fate(int peer) const {
  if (!peers_.is_near(peer)) return remote_->fate(peer);
  const bool left = group_.control(peer).state.load(std::memory_order_acquire) == shm::RankState::Left;
  return left ? "has left the group" : "is gone: its process exited or was killed";
}

void Courier::end_late(MessageWork& work, const std::string& what) {
  const int peer = source_of(work);
  std::string text = describe(work) + " " + what + "; ";
  if (peer < 0)
    text += "no rank has sent such a message";
  else
    text += peers_.in_words(peer) + " has not " + (work.request.sends ? "received" : "sent") + " all of it";
  group_.fail(
      shm::FailureKind::Timeout,
      text + ". The group is no longer usable; if that rank is merely slow, a longer timeout will do.");
  try {
    group_.throw_failure();
  } catch (...) {
    end_all(std::current_exception());
  }
}

void Courier::end_all(std::exception_ptr error) {
  for (const auto& work : works_.all()) works_.end(*work, error);
  inbox_.forget_all();
  outbox_.forget_all();
  if (remote_) remote_->forget_all();
}

std::string Courier::describe(const MessageWork& work) const {
  const MessageRequest& request = work.request;
  shm::Operation operation;
  operation.name = request.sends ? "send" : "recv";
  operation.bytes = request.bytes;
  const std::string peer =
      request.peer < 0 ? "any rank" : "rank " + std::to_string(peers_.number(request.peer));
  return group_.describe(operation) + (request.sends ? " to " : " from ") + peer + ", tag " +
         std::to_string(request.tag);
}

}  // namespace pycoll
