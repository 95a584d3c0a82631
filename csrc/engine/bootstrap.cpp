#include "engine/bootstrap.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>

namespace pycoll {
namespace {

constexpr uint32_t kProtocol = 2;  // of the shared segment; ranks of different builds must not meet in one
constexpr size_t kName = 64;

struct Introduction {
  uint32_t protocol = kProtocol;
  uint32_t layout = sizeof(shm::RankControl) ^ sizeof(shm::GroupControl) << 16;
  int32_t rank = 0;
  int32_t ranks = 0;
  uint32_t user = 0;
  int32_t pid = 0;
  uint64_t network_namespace = 0;  // containers of one host share the boot id, not this
  char host[kName] = {};
  char socket[kName] = {};  // rank 0's
  cpu_set_t processors{};
  double quota = 0;  // processors that the control group grants; 0: no limit
};
static_assert(std::is_trivially_copyable_v<Introduction>);

// cgroup v2's cpu.max, "max 100000" or "<quota> <period>", of this process's group or the nearest parent with
// a limit.
double processor_quota() {
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  std::string path;
  while (std::getline(self, line))
    if (line.starts_with("0::")) path = line.substr(3);
  double least = 0;
  for (;; path.erase(path.find_last_of('/'))) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max" && period > 0) {
      const double processors = std::strtod(quota.c_str(), nullptr) / period;
      if (processors > 0 && (least == 0 || processors < least)) least = processors;
    }
    if (path.find_last_of('/') == std::string::npos) return least;
  }
}

Introduction introduce(int rank, int ranks) {
  Introduction mine;
  mine.rank = rank;
  mine.ranks = ranks;
  mine.user = ::geteuid();
  mine.pid = ::getpid();
  struct stat info{};
  if (::stat("/proc/self/ns/net", &info) == 0) mine.network_namespace = info.st_ino;
  ::gethostname(mine.host, kName - 1);
  CPU_ZERO(&mine.processors);
  ::sched_getaffinity(0, sizeof mine.processors, &mine.processors);
  mine.quota = processor_quota();
  return mine;
}

std::vector<Introduction> read_introductions(const std::vector<std::string>& messages, int ranks,
                                             const std::string& group) {
  if (messages.size() != static_cast<size_t>(ranks))
    throw InvalidArgument("group '" + group + "': the bootstrap's all_gather gave " +
                          std::to_string(messages.size()) + " messages for " + std::to_string(ranks) +
                          " ranks");
  std::vector<Introduction> all(messages.size());
  for (size_t r = 0; r < messages.size(); ++r) {
    if (messages[r].size() == sizeof(Introduction))
      std::memcpy(&all[r], messages[r].data(), sizeof(Introduction));
    if (messages[r].size() != sizeof(Introduction) || all[r].protocol != kProtocol ||
        all[r].layout != all[0].layout)
      throw InvalidArgument("group '" + group + "': rank " + std::to_string(r) +
                            " runs another version of pycoll than rank 0; install the same one everywhere");
    if (all[r].rank != static_cast<int>(r) || all[r].ranks != ranks)
      throw InvalidArgument("group '" + group + "': a process that says it is rank " +
                            std::to_string(all[r].rank) + " of " + std::to_string(all[r].ranks) +
                            " came in the place of rank " + std::to_string(r) + " of " +
                            std::to_string(ranks) + "; check RANK and WORLD_SIZE");
    if (all[r].network_namespace != all[0].network_namespace || std::strcmp(all[r].host, all[0].host) != 0)
      throw Unsupported("group '" + group + "': rank " + std::to_string(r) + " runs on host '" + all[r].host +
                        "', rank 0 on '" + all[0].host +
                        "' (or in another container); groups across hosts are not supported yet");
    if (all[r].user != all[0].user)
      throw InvalidArgument("group '" + group + "': rank " + std::to_string(r) +
                            " runs as another user than rank 0");
  }
  return all;
}

// Ranks pinned to one core each have as many processors as the union of their masks.
int processors_of(const std::vector<Introduction>& all) {
  cpu_set_t together;
  CPU_ZERO(&together);
  double quota = 0;
  for (const Introduction& one : all) {
    CPU_OR(&together, &together, &one.processors);
    if (one.quota > 0) quota = std::max(quota, one.quota);
  }
  const int processors = std::max(1, CPU_COUNT(&together));
  return quota > 0 ? std::min(processors, std::max(1, static_cast<int>(quota))) : processors;
}

}  // namespace

Bootstrapped join_group(int rank, int ranks, const AllGatherBytes& all_gather,
                        const CommunicatorOptions& options) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw InvalidArgument("group '" + options.group + "': rank " + std::to_string(rank) + " of " +
                          std::to_string(ranks) + " ranks is impossible");
  const auto deadline = SteadyClock::now() + options.timeout;
  Introduction mine = introduce(rank, ranks);
  std::shared_ptr<shm::Segment> segment;
  std::optional<shm::SegmentServer> server;
  if (rank == 0) {
    segment = shm::Segment::create(ranks);
    server.emplace(segment);
    std::strncpy(mine.socket, server->name().c_str(), kName - 1);
  }
  const std::vector<std::string> messages =
      all_gather(std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
  const std::vector<Introduction> all = read_introductions(messages, ranks, options.group);
  if (rank == 0) {
    std::vector<bool> served;
    for (const Introduction& one : all)
      served.push_back(one.pid == mine.pid);  // threads of this process take the mapping
    server->serve(served, deadline, options.group);
  } else if (all[0].pid == mine.pid) {
    segment = shm::recall_segment(all[0].socket);
    if (!segment)
      throw Error("group '" + options.group +
                  "': rank 0 is a thread of this process, but its segment is gone");
  } else {
    segment = shm::fetch_segment(all[0].socket, rank, ranks, deadline, options.group);
  }
  return {std::move(segment), shm::Patience::for_ranks(ranks, processors_of(all))};
}

std::string confirm_group(int rank, const AllGatherBytes& all_gather, const CommunicatorOptions& options,
                          const std::string& error) {
  const std::string joined = "joined\n" + options.rules + "\n";
  const std::vector<std::string> states =
      all_gather(error.empty() ? joined + (rank == 0 ? options.decisions : "") : error);
  for (size_t r = 0; r < states.size(); ++r)
    if (!states[r].starts_with("joined\n") && static_cast<int>(r) != rank)
      throw PeerLost("group '" + options.group + "': rank " + std::to_string(r) +
                     " could not join: " + states[r]);
  if (!error.empty()) return "";
  const auto rules_of = [&](size_t r) {
    const size_t begin = states[r].find('\n') + 1;
    return states[r].substr(begin, states[r].find('\n', begin) - begin);
  };
  for (size_t r = 1; r < states.size(); ++r)
    if (rules_of(r) != rules_of(0))
      throw InvalidArgument("group '" + options.group +
                            "': the ranks were given different rules: rank 0 has " + rules_of(0) + ", rank " +
                            std::to_string(r) + " has " + rules_of(r) + "; set the same on all ranks");
  return states[0].substr(states[0].find('\n', joined.find('\n') + 1) + 1);
}

}  // namespace pycoll
