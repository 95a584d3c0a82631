#include "engine/bootstrap.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>

namespace pycoll {
namespace {

constexpr uint32_t kProtocol =
    3;  // of the shared segment and of networks; ranks of different builds must not meet
constexpr size_t kName = 64;

struct Introduction {
  uint32_t protocol = kProtocol;
  uint32_t layout = sizeof(shm::RankControl) ^ sizeof(shm::GroupControl) << 16;
  int32_t rank = 0;
  int32_t ranks = 0;
  uint32_t user = 0;
  int32_t pid = 0;
  uint64_t network_namespace = 0;  // containers of one machine share the boot id, not this
  char boot_id[40] = {};           // machines that are all called localhost share the name, not this
  char host[kName] = {};
  char pretended_host[kName] = {};  // CommunicatorOptions::host
  char socket[kName] = {};          // rank 0's
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

Introduction introduce(int rank, int ranks, const CommunicatorOptions& options) {
  Introduction mine;
  mine.rank = rank;
  mine.ranks = ranks;
  std::strncpy(mine.pretended_host, options.host.c_str(), kName - 1);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(mine.boot_id, sizeof mine.boot_id - 1);
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
  }
  return all;
}

Placement place(const std::vector<Introduction>& all) {
  std::vector<std::string> keys, names;
  for (const Introduction& one : all) {
    keys.push_back(std::string(one.host) + "/" + std::to_string(one.network_namespace) + "/" + one.boot_id +
                   "/" + one.pretended_host);
    names.emplace_back(one.pretended_host[0] != 0 ? one.pretended_host : one.host);
  }
  return Placement::from(keys, names);
}

void require_one_user(const std::vector<Introduction>& all, const Host& host, const std::string& group) {
  const auto user = [&](int rank) { return all[static_cast<size_t>(rank)].user; };
  for (const int rank : host.ranks)
    if (user(rank) != user(host.ranks[0]))
      throw InvalidArgument("group '" + group + "': rank " + std::to_string(rank) +
                            " runs as another user than rank " + std::to_string(host.ranks[0]) +
                            " on the same host '" + host.name + "'");
}

// Ranks pinned to one core each have as many processors as the union of their masks.
int processors_of(const std::vector<Introduction>& all, const Host& host) {
  cpu_set_t together;
  CPU_ZERO(&together);
  double quota = 0;
  for (const int rank : host.ranks) {
    const Introduction& one = all[static_cast<size_t>(rank)];
    CPU_OR(&together, &together, &one.processors);
    if (one.quota > 0) quota = std::max(quota, one.quota);
  }
  const int processors = std::max(1, CPU_COUNT(&together));
  return quota > 0 ? std::min(processors, std::max(1, static_cast<int>(quota))) : processors;
}

// What a rank tells once it is known that there are several hosts: fields apart by zero bytes. A rank that
// cannot come says why in `error`.
struct Invitation {
  std::string error;
  std::string socket;    // a leader's: where its host's ranks get their segment
  std::string network;   // address in it
  std::string messages;  // likewise
  std::string key;       // rank 0's

  std::string to_text() const {
    std::string text;
    for (const std::string* field : {&error, &socket, &network, &messages, &key}) text += *field + '\0';
    return text;
  }
  static Invitation from_text(const std::string& text) {
    Invitation invitation;
    size_t begin = 0;
    for (std::string* field : {&invitation.error, &invitation.socket, &invitation.network,
                               &invitation.messages, &invitation.key}) {
      const size_t end = std::min(text.find('\0', begin), text.size());
      *field = text.substr(begin, end - begin);
      begin = std::min(end + 1, text.size());
    }
    return invitation;
  }
};

uint64_t random_key() {
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

class Joining {
 public:
  Joining(int rank, int ranks, const AllGatherBytes& all_gather, const CommunicatorOptions& options)
      : rank_(rank),
        ranks_(ranks),
        all_gather_(all_gather),
        options_(options),
        deadline_(SteadyClock::now() + options.timeout) {}

  Bootstrapped run() {
    Introduction mine = introduce(rank_, ranks_, options_);
    // Most groups are on one host: then all is said with the first message.
    if (rank_ == 0) serve(ranks_);
    if (server_) std::strncpy(mine.socket, server_->name().c_str(), kName - 1);
    const std::vector<std::string> messages =
        all_gather_(std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
    all_ = read_introductions(messages, ranks_, options_.group);
    Bootstrapped result;
    result.placement = place(all_);
    const Host& host = result.placement.host(rank_);
    result.patience =
        shm::Patience::for_ranks(static_cast<int>(host.ranks.size()), processors_of(all_, host));
    if (result.placement.one_host()) {
      require_one_user(all_, host, options_.group);
      result.segment = share(host, all_[0].socket);
      return result;
    }
    // Processes of other hosts may run on the same processors (containers), and networks wake whom they
    // serve.
    result.patience = {.spins = std::min(result.patience.spins, 50), .yields = 0};
    join_hosts(result);
    return result;
  }

 private:
  void serve(int ranks) {
    segment_ = shm::Segment::create(ranks);
    server_.emplace(segment_);
  }

  // This host's segment: its leader serves it to the others.
  std::shared_ptr<shm::Segment> share(const Host& host, const std::string& socket) {
    const auto pid = [&](int rank) { return all_[static_cast<size_t>(rank)].pid; };
    const int leader = host.ranks[0];
    if (rank_ == leader) {
      std::vector<bool> served;
      for (const int rank : host.ranks)
        served.push_back(pid(rank) == pid(leader));  // threads of this process take the mapping
      server_->serve(served, deadline_, options_.group);
      return segment_;
    }
    if (pid(rank_) == pid(leader)) {
      if (auto segment = shm::recall_segment(socket)) return segment;
      throw Error("group '" + options_.group + "': rank " + std::to_string(leader) +
                  " is a thread of this process, but its segment is gone");
    }
    const auto local = std::find(host.ranks.begin(), host.ranks.end(), rank_) - host.ranks.begin();
    return shm::fetch_segment(socket, static_cast<int>(local), static_cast<int>(host.ranks.size()), deadline_,
                              options_.group);
  }

  void join_hosts(Bootstrapped& result) {
    const Host& host = result.placement.host(rank_);
    Invitation mine;
    std::exception_ptr failure;
    try {
      require_one_user(all_, host, options_.group);
      NetworkOptions network = options_.network;
      network.rank = rank_;
      network.ranks = ranks_;
      network.group = options_.group;
      network.connect_timeout = std::min<Nanoseconds>(network.connect_timeout, options_.timeout);
      result.network = open_network(network);
      result.messages = open_network(network);
      mine.network = result.network->address();
      mine.messages = result.messages->address();
      server_.reset();
      if (rank_ == host.ranks[0]) {
        serve(static_cast<int>(host.ranks.size()));
        mine.socket = server_->name();
      }
      if (rank_ == 0) mine.key = std::to_string(random_key());
    } catch (const std::exception& error) {
      failure = std::current_exception();
      mine.error = error.what();
    }
    std::vector<Invitation> all;
    for (const std::string& text : all_gather_(mine.to_text())) all.push_back(Invitation::from_text(text));
    if (failure) std::rethrow_exception(failure);
    std::vector<std::string> networks, messages, names;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].error.empty())
        throw PeerLost("group '" + options_.group + "': rank " + std::to_string(rank) + " on host '" +
                       result.placement.host(static_cast<int>(rank)).name +
                       "' could not join: " + all[rank].error);
      networks.push_back(all[rank].network);
      messages.push_back(all[rank].messages);
      names.push_back(result.placement.host(static_cast<int>(rank)).name);
    }
    const uint64_t key = std::stoull(all[0].key);
    result.network->meet(networks, names, key);
    result.messages->meet(messages, names, key + 1);
    result.segment = share(host, all[static_cast<size_t>(host.ranks[0])].socket);
  }

  int rank_;
  int ranks_;
  const AllGatherBytes& all_gather_;
  const CommunicatorOptions& options_;
  SteadyClock::time_point deadline_;
  std::vector<Introduction> all_;
  std::shared_ptr<shm::Segment> segment_;
  std::optional<shm::SegmentServer> server_;
};

}  // namespace

Bootstrapped join_group(int rank, int ranks, const AllGatherBytes& all_gather,
                        const CommunicatorOptions& options) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw InvalidArgument("group '" + options.group + "': rank " + std::to_string(rank) + " of " +
                          std::to_string(ranks) + " ranks is impossible");
  return Joining(rank, ranks, all_gather, options).run();
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
