// Byte streams to all ranks of a group: through shared memory to those of this host, over the network to
// others.
#pragma once
#include "engine/hosts/links.h"
#include "transport/shm/channels.h"
#include "transport/transport.h"

namespace pycoll {

class MixedTransport final : public Transport {
 public:
  MixedTransport(shm::Group& group, shm::Channels& channels, HostLinks& links)
      : group_(group), channels_(channels), links_(links) {}

  void begin(shm::Operation& operation) {
    operation_ = &operation;
    channels_.begin(operation);
  }

  int rank() const override { return links_.rank(); }
  int ranks() const override { return links_.placement().ranks(); }
  size_t send(int destination, std::span<const std::byte> bytes) override {
    return near(destination) ? channels_.send(local(destination), bytes) : links_.send(destination, bytes);
  }
  std::span<const std::byte> arrived(int source) override {
    return near(source) ? channels_.arrived(local(source)) : links_.arrived(source);
  }
  void received(int source, size_t bytes) override {
    near(source) ? channels_.received(local(source), bytes) : links_.received(source, bytes);
  }
  // Networks align every send by themselves.
  void align_send(int destination) override {
    if (near(destination)) channels_.align_send(local(destination));
  }
  void align_receive(int source) override {
    if (near(source)) channels_.align_receive(local(source));
  }
  void wait(FunctionRef<bool()> progress, FunctionRef<int()> peer) override {
    const int awaited = peer();
    if (near(awaited))
      channels_.wait(progress, [&] { return local(awaited); });
    else
      group_.wait_elsewhere(*operation_, awaited, [&] { return progress(); });
  }

  void look_after(int peer) override {
    if (near(peer)) return;  // others hear of its death, and tell
    links_.look_after(*operation_, peer);
    group_.throw_if_failed();
  }

 private:
  bool near(int rank) const { return links_.placement().together(rank, links_.rank()); }
  int local(int rank) const { return links_.placement().local(rank); }

  shm::Group& group_;
  shm::Channels& channels_;
  HostLinks& links_;
  shm::Operation* operation_ = nullptr;
};

}  // namespace pycoll
