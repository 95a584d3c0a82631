// Descriptors of memory from rank to rank: each has a datagram socket that its peers send to.
#pragma once
#include <chrono>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/file_descriptor.h"

namespace pycoll::cuda {

class Mailbox {
 public:
  static constexpr size_t kMostDescriptors = 64;  // of one rank in one exchange
  static constexpr size_t kNameBytes = 48;        // more than a name has

  Mailbox();
  // What peers send to; an abstract Unix socket's.
  const std::string& name() const { return name_; }

  // Collective over the names' owners, in the order of ranks: this rank's descriptors go to all others, and
  // by rank come theirs, of which rank r has counts[r]. The caller's own place stays empty. `tag` is the same
  // on all ranks and says what is exchanged, so that nothing is taken for what an exchange that failed left.
  // Throws Error where a peer cannot be reached, Timeout where one sends nothing in time; both name the rank.
  std::vector<std::vector<FileDescriptor>> exchange(
      uint64_t tag, int rank, std::span<const std::string> names, std::span<const FileDescriptor> own,
      std::span<const size_t> counts, std::chrono::milliseconds limit = std::chrono::seconds(30));

 private:
  using Key = std::pair<uint64_t, int32_t>;  // tag, rank
  bool receive_one();

  std::string name_;
  FileDescriptor socket_;
  std::map<Key, std::vector<FileDescriptor>> received_;  // also of exchanges that peers begin before us
};

}  // namespace pycoll::cuda
