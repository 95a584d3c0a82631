// One rank's connections to the ranks of other hosts: what comes over them, attended to whenever the rank
// waits.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/placement.h"
#include "transport/network.h"
#include "transport/shm/bell.h"
#include "transport/shm/group.h"

namespace pycoll {

// The first byte of every message of a group's network.
enum class NoteKind : uint8_t { Exchange, Failure, Question, Answer };
inline constexpr size_t kNoteKinds = 4;

class HostLinks final : public shm::Outside {
 public:
  using Handler = std::function<void(int source, std::span<const std::byte> note)>;

  HostLinks(shm::Group& group, const Placement& placement, int rank, std::unique_ptr<Network> network);

  const Placement& placement() const { return placement_; }
  int rank() const { return rank_; }
  const Network& network() const { return *network_; }

  // What to do with notes of that kind; called while links are attended to, and may post.
  void handle(NoteKind kind, Handler handler) { handlers_[static_cast<size_t>(kind)] = std::move(handler); }
  void post(int destination, std::span<const std::byte> note);
  // Streams, as network.h has them.
  size_t send(int destination, std::span<const std::byte> bytes);
  std::span<const std::byte> arrived(int source);
  void received(int source, size_t bytes);

  void look() override;
  void sleep(std::chrono::microseconds at_most) override;
  void check(const shm::Operation& operation, int rank) override;
  std::string blame(int rank) override;
  void spread() override;

  void leave();  // tells those who are connected, and gives that a moment to go

 private:
  std::string in_words(int rank) const;  // "rank 3 on host 'h1'"
  void heed_failure(std::span<const std::byte> note);
  void answer(int source, std::span<const std::byte> note);
  std::optional<int> ask(int rank);
  void flush(std::chrono::milliseconds at_most);
  void post_locked(int destination, std::span<const std::byte> note) { network_->post(destination, note); }

  shm::Group& group_;
  const Placement& placement_;
  int rank_;
  shm::Bell bell_;
  std::recursive_mutex mutex_;  // of the network; handlers post
  std::unique_ptr<Network> network_;
  std::array<Handler, kNoteKinds> handlers_;
  std::atomic<bool> spread_{false};
  uint32_t question_ = 0;
  std::optional<int> answer_;
};

}  // namespace pycoll
