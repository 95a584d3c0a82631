#include "cuda/mailbox.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/clock.h"
#include "core/error.h"
#include "transport/shm/unix_name.h"

namespace pycoll::cuda {
namespace {

// Sent beside the descriptors.
struct Letter {
  uint64_t tag;
  int64_t rank;
};

struct Message {
  Letter letter{};
  iovec data{&letter, sizeof letter};
  alignas(cmsghdr) char control[CMSG_SPACE(Mailbox::kMostDescriptors * sizeof(int)) +
                                CMSG_SPACE(sizeof(ucred))] = {};
  msghdr header{};
  Message() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

}  // namespace

Mailbox::Mailbox()
    : name_(shm::random_name()), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!socket_) throw Error(std::string("cannot make a Unix socket: ") + std::strerror(errno));
  const shm::UnixAddress address(name_);
  const int on = 1;
  if (::bind(socket_.get(), address.get(), address.length) != 0 ||
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    throw Error(std::string("cannot bind a Unix socket: ") + std::strerror(errno));
}

// Whether there was something to be read.
bool Mailbox::receive_one() {
  Message message;
  const ssize_t got = ::recvmsg(socket_.get(), &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0) throw Error(std::string("cannot receive a descriptor: ") + std::strerror(errno));
  std::vector<FileDescriptor> descriptors;
  bool same_user = false;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message.header); part != nullptr;
       part = CMSG_NXTHDR(&message.header, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_RIGHTS) {
      for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(part) + at, sizeof descriptor);
        descriptors.emplace_back(descriptor);
      }
    } else if (part->cmsg_type == SCM_CREDENTIALS) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
      same_user = sender.uid == ::geteuid();
    }
  }
  // Anybody on the host may send to the name; what is no peer's is dropped.
  if (same_user && got == sizeof(Letter))
    received_[{message.letter.tag, static_cast<int32_t>(message.letter.rank)}] = std::move(descriptors);
  return true;
}

std::vector<std::vector<FileDescriptor>> Mailbox::exchange(uint64_t tag, int rank,
                                                           std::span<const std::string> names,
                                                           std::span<const FileDescriptor> own,
                                                           std::span<const size_t> counts,
                                                           std::chrono::milliseconds limit) {
  if (own.size() > kMostDescriptors)
    throw InvalidArgument("one exchange takes " + std::to_string(kMostDescriptors) +
                          " descriptors of a rank, not " + std::to_string(own.size()));
  const auto deadline = SteadyClock::now() + limit;
  std::vector<int> to, from;
  for (int peer = 0; peer < static_cast<int>(names.size()); ++peer) {
    if (peer == rank) continue;
    if (!own.empty()) to.push_back(peer);
    if (counts[static_cast<size_t>(peer)] > 0) from.push_back(peer);
  }

  Message message;
  message.letter = {.tag = tag, .rank = rank};
  message.header.msg_controllen = own.empty() ? 0 : CMSG_SPACE(own.size() * sizeof(int));
  if (cmsghdr* const part = CMSG_FIRSTHDR(&message.header); part != nullptr) {
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(own.size() * sizeof(int));
    for (size_t i = 0; i < own.size(); ++i) {
      const int descriptor = own[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof(int), &descriptor, sizeof descriptor);
    }
  }
  // A peer's socket takes few datagrams at once: all send and receive by turns, and nobody blocks.
  while (!to.empty() || !from.empty()) {
    bool moved = false;
    std::erase_if(to, [&](int peer) {
      const shm::UnixAddress address(names[static_cast<size_t>(peer)]);
      message.header.msg_name = const_cast<sockaddr*>(address.get());
      message.header.msg_namelen = address.length;
      if (::sendmsg(socket_.get(), &message.header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return moved = true;
      if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ETOOMANYREFS)
        throw Error("rank " + std::to_string(rank) + " cannot hand its memory to rank " +
                    std::to_string(peer) + ": " + std::strerror(errno) +
                    " (address ranges go between processes of one host and network namespace; "
                    "memory=\"ipc\" does without)");
      return false;
    });
    while (receive_one()) moved = true;
    std::erase_if(from, [&](int peer) { return received_.contains({tag, peer}); });
    if (moved || (to.empty() && from.empty())) continue;
    if (SteadyClock::now() > deadline)
      throw Timeout("rank " + std::to_string(rank) + " timed out while memory was handed over: rank " +
                    std::to_string(from.empty() ? to.front() : from.front()) +
                    (from.empty() ? " takes nothing" : " sent nothing"));
    pollfd request{socket_.get(), POLLIN, 0};
    ::poll(&request, 1, to.empty() ? 100 : 1);
  }

  std::vector<std::vector<FileDescriptor>> result(names.size());
  for (int peer = 0; peer < static_cast<int>(names.size()); ++peer) {
    const size_t expected = peer == rank ? 0 : counts[static_cast<size_t>(peer)];
    if (expected == 0) continue;
    const auto found = received_.find({tag, peer});
    if (found->second.size() != expected)
      throw Error("rank " + std::to_string(peer) + " handed over " + std::to_string(found->second.size()) +
                  " descriptors to rank " + std::to_string(rank) + ", not " + std::to_string(expected) +
                  " (a limit on open files may have been reached)");
    result[static_cast<size_t>(peer)] = std::move(found->second);
    received_.erase(found);
  }
  return result;
}

}  // namespace pycoll::cuda
