// Who the processes of a job are, so that one that died can be told from one that is late before there is a
// group to notice it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pycoll::torch_adapter {

struct Process {
  uint64_t pid_namespace = 0;  // pids mean something within one
  int64_t pid = 0;
  uint64_t started = 0;  // in ticks of the kernel: pids are used again

  static Process self();
  static std::optional<Process> parse(const std::string& text);
  std::string text() const;
  // Certainly: false where this process cannot see it.
  bool gone() const;
};

// The processes that groups of this process consist of, by torch's global rank. What a group taught is
// forgotten when the group is left: a rank may then come back as another process.
class KnownPeers {
 public:
  using Lesson = std::shared_ptr<const std::map<int, Process>>;  // held by the group

  static Lesson learn(const std::vector<int>& global_ranks,
                      const std::vector<std::optional<Process>>& processes);
  static std::optional<Process> of(int global_rank);
  static void forget_all();  // another world begins
};

}  // namespace pycoll::torch_adapter
