// Passing the segment's descriptor from rank 0 to the other ranks over an abstract Unix socket.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "core/error.h"
#include "transport/shm/segment.h"
#include "transport/shm/unix_name.h"

namespace pycoll::shm {
namespace {

FileDescriptor new_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error(std::string("cannot make a Unix socket: ") + std::strerror(errno));
  return fd;
}

bool wait_for(int fd, short events, SteadyClock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    if (left <= 0) return false;
    pollfd request{fd, events, 0};
    const int ready = ::poll(&request, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

void send_descriptor(int socket, int file) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char buffer[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer;
  message.msg_controllen = sizeof buffer;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof file);
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0)
    throw PeerLost(std::string("a rank went away while it was being given the shared segment: ") +
                   std::strerror(errno));
}

FileDescriptor receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char buffer[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer;
  message.msg_controllen = sizeof buffer;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return FileDescriptor();
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return FileDescriptor();
  int file = -1;
  std::memcpy(&file, CMSG_DATA(header), sizeof file);
  return FileDescriptor(file);
}

}  // namespace

SegmentServer::SegmentServer(std::shared_ptr<Segment> segment)
    : segment_(std::move(segment)), name_(random_name()), listener_(new_socket()) {
  const UnixAddress address(name_);
  if (::bind(listener_.get(), address.get(), address.length) != 0 || ::listen(listener_.get(), 1024) != 0)
    throw Error(std::string("cannot listen on a Unix socket: ") + std::strerror(errno));
  remember_segment(name_, segment_);
}

void SegmentServer::serve(std::vector<bool> served, SteadyClock::time_point deadline,
                          const std::string& group) {
  while (std::find(served.begin(), served.end(), false) != served.end()) {
    if (!wait_for(listener_.get(), POLLIN, deadline)) {
      std::string missing;
      for (size_t rank = 0; rank < served.size(); ++rank)
        if (!served[rank]) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      throw Timeout("group '" + group + "': timed out while connecting; rank 0 never heard from rank(s) " +
                    missing + ". Check that they are running, or give a longer timeout.");
    }
    const FileDescriptor peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer || !same_user(peer.get())) continue;
    int32_t rank = -1;
    if (!wait_for(peer.get(), POLLIN, std::min(deadline, SteadyClock::now() + std::chrono::seconds(5))))
      continue;
    if (::recv(peer.get(), &rank, sizeof rank, MSG_DONTWAIT) != sizeof rank) continue;
    if (rank < 1 || rank >= static_cast<int32_t>(served.size())) continue;
    send_descriptor(peer.get(), segment_->file());
    served[static_cast<size_t>(rank)] = true;
  }
}

std::shared_ptr<Segment> fetch_segment(const std::string& name, int rank, int ranks,
                                       SteadyClock::time_point deadline, const std::string& group) {
  const UnixAddress address(name);
  const FileDescriptor socket = new_socket();
  while (::connect(socket.get(), address.get(), address.length) != 0) {
    // EAGAIN: the listener's queue is full. Anything else: nobody listens any more.
    if (errno != EAGAIN && errno != EINTR)
      throw PeerLost("group '" + group + "': rank 0 went away while rank " + std::to_string(rank) +
                     " was connecting (" + std::strerror(errno) + ")");
    if (SteadyClock::now() > deadline)
      throw Timeout("group '" + group + "': rank " + std::to_string(rank) +
                    " timed out while connecting to rank 0");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int32_t hello = rank;
  if (::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
    throw PeerLost("group '" + group + "': rank 0 went away while rank " + std::to_string(rank) +
                   " was connecting");
  if (!wait_for(socket.get(), POLLIN, deadline))
    throw Timeout("group '" + group + "': rank " + std::to_string(rank) +
                  " timed out waiting for rank 0 to hand over the shared segment");
  FileDescriptor file = receive_descriptor(socket.get());
  if (!file)
    throw PeerLost("group '" + group +
                   "': rank 0 closed the connection before it handed over the shared segment to rank " +
                   std::to_string(rank) + " (it died, or runs as another user)");
  return std::make_shared<Segment>(std::move(file), ranks);
}

}  // namespace pycoll::shm
