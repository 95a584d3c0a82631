#include "torch/peers.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <sstream>

namespace pycoll::torch_adapter {
namespace {

struct Life {
  char state;  // as /proc/PID/stat has it
  uint64_t started;
};

// Nothing where there is no such process.
std::optional<Life> life_of(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_ends = text.rfind(')');  // the name before may hold anything
  if (name_ends == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_ends + 1));
  Life life{};
  fields >> life.state;  // field 3
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> life.started;
  return fields ? std::optional(life) : std::nullopt;
}

// Its number alone would not do: the first one of every machine has the same.
uint64_t own_pid_namespace() {
  struct stat info{};
  if (::stat("/proc/self/ns/pid", &info) != 0) return 0;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return info.st_ino ^ std::hash<std::string>{}(boot);
}

std::mutex lessons_mutex;
// Never destroyed: groups may outlive static destructors.
std::vector<std::weak_ptr<const std::map<int, Process>>>& lessons() {
  static auto* all = new std::vector<std::weak_ptr<const std::map<int, Process>>>;
  return *all;
}

}  // namespace

Process Process::self() {
  const auto life = life_of(::getpid());
  return {own_pid_namespace(), ::getpid(), life ? life->started : 0};
}

std::optional<Process> Process::parse(const std::string& text) {
  std::istringstream words(text);
  Process process;
  words >> process.pid_namespace >> process.pid >> process.started;
  return words && process.started != 0 ? std::optional(process) : std::nullopt;
}

std::string Process::text() const {
  return std::to_string(pid_namespace) + " " + std::to_string(pid) + " " + std::to_string(started);
}

bool Process::gone() const {
  if (pid_namespace == 0 || pid_namespace != own_pid_namespace()) return false;
  const auto life = life_of(pid);
  return !life || life->started != started || life->state == 'Z' || life->state == 'X';
}

KnownPeers::Lesson KnownPeers::learn(const std::vector<int>& global_ranks,
                                     const std::vector<std::optional<Process>>& processes) {
  auto lesson = std::make_shared<std::map<int, Process>>();
  for (size_t i = 0; i < global_ranks.size() && i < processes.size(); ++i)
    if (processes[i]) (*lesson)[global_ranks[i]] = *processes[i];
  const std::lock_guard lock(lessons_mutex);
  std::erase_if(lessons(), [](const auto& old) { return old.expired(); });
  lessons().push_back(lesson);
  return lesson;
}

void KnownPeers::forget_all() {
  const std::lock_guard lock(lessons_mutex);
  lessons().clear();
}

std::optional<Process> KnownPeers::of(int global_rank) {
  const std::lock_guard lock(lessons_mutex);
  for (auto lesson = lessons().rbegin(); lesson != lessons().rend(); ++lesson)  // the newest first
    if (const auto known = lesson->lock())
      if (const auto found = known->find(global_rank); found != known->end()) return found->second;
  return std::nullopt;
}

}  // namespace pycoll::torch_adapter
