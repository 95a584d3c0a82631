// How a collective begins across hosts: what arrivals.h is on one host. Every rank learns of every other what
// it calls, when it arrived and, where that is little, what it gives: then nothing more need be sent.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "engine/arrivals.h"
#include "engine/hosts/exchange.h"
#include "engine/roles.h"

namespace pycoll {

class HostMeeting {
 public:
  HostMeeting(shm::Group& group, Arrivals& arrivals, HostLinks& links, HostExchange& exchange);

  // Whether all that ranks give in such a call travels with the meeting.
  bool carries(const CollectiveCall& call) const;
  // Before the announcement of a call that it carries: puts down what this rank gives.
  void prepare(const CollectiveCall& call, uint64_t sequence);
  // After it. Throws Mismatch, on all ranks of all hosts alike, unless all called the same.
  Arrivals::Met meet(const CollectiveCall& call, shm::Operation& operation, std::span<uint64_t> log,
                     double seconds_per_tick);
  // Of a call that the meeting carried: writes the output.
  void finish(const CollectiveCall& call);

 private:
  struct Block;
  Stage whole(const CollectiveCall& call, const Role& role) const;
  size_t given_bytes(const CollectiveCall& call) const;
  void write_block(const CollectiveCall& call, const Arrivals::Met& local, std::span<const uint64_t> ticks,
                   uint64_t sequence, double seconds_per_tick);
  // Leaders exchange what is in block_; all ranks of the host get all blocks, by host.
  void gather(uint64_t id, shm::Operation& operation);
  [[noreturn]] void tell_apart(shm::Operation& operation);
  std::span<const std::byte> block_of(int host) const;

  shm::Group& group_;
  Arrivals& arrivals_;
  HostLinks& links_;
  HostExchange& exchange_;
  Reader reader_;
  const std::byte* gathered_ = nullptr;  // where the last exchange's blocks are
  uint64_t carried_ = 0;                 // sequence number of the last call that it carried
  std::vector<std::byte> block_;         // a leader's own
  std::vector<size_t> begins_;           // by host, in what was gathered
  std::vector<uint64_t> local_ticks_;
};

}  // namespace pycoll
