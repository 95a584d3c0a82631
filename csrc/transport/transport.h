// What executing a schedule needs from whatever connects ranks: an ordered byte stream from each rank to each
// other. Shared memory implements it inside a host, a network between hosts.
#pragma once
#include <cstddef>
#include <span>

#include "core/function_ref.h"

namespace pycoll {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Hands over as many of the bytes as `destination`'s stream has room for now, perhaps none; they may be
  // overwritten at once. Who was not rid of all offers the rest again, in the same order.
  virtual size_t send(int destination, std::span<const std::byte> bytes) = 0;
  // What has arrived from `source`; may be empty. `received` gives the first `bytes` of it back.
  virtual std::span<const std::byte> arrived(int source) = 0;
  virtual void received(int source, size_t bytes) = 0;
  // Both sides call these at the end of a message: the next one begins aligned for every dtype and vector.
  virtual void align_send(int destination) = 0;
  virtual void align_receive(int source) = 0;

  // Calls `progress` until it returns true, waiting in between until something may have changed. `peer`: a
  // rank whose bytes or space are awaited; it is asked again after each wait. Throws as the engine's waits
  // do.
  virtual void wait(FunctionRef<bool()> progress, FunctionRef<int()> peer) = 0;
  // Throws PeerLost where it is known that this peer, whom something is awaited from besides, is lost.
  virtual void look_after(int /*peer*/) {}
};

}  // namespace pycoll
