// One rank's memory for messages (messages.h), as its peers and it have mapped it.
#pragma once
#include <cuda_runtime.h>

#include <span>
#include <string>

#include "cuda/group.h"
#include "cuda/messages.h"

namespace pycoll::cuda {

class Channels {
 public:
  explicit Channels(const Group& group);
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;
  ~Channels();

  Handle handle() const;
  void connect(std::span<const Handle> handles);
  // Puts messages on a stream. Those of one channel must follow each other on streams.
  void run(std::span<const Message> messages, cudaStream_t stream);
  // What was wrong with a message; empty where nothing was.
  std::string complaint() const;

 private:
  const Group& group_;
  const int rank_, device_;
  MessageLayout layout_;
  PeerMemory peers_;
  DeviceMemory memory_;
  DeviceMemory heaps_;  // by rank
  MessageReport* reports_ = nullptr;
};

}  // namespace pycoll::cuda
