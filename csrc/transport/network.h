// What connects the ranks of different hosts: from each rank to each other an ordered stream of bytes, and
// small messages beside it. TCP sockets implement it, and UCX where it can reach better wires.
//
// A network belongs to one group. It is used by one thread at a time (the caller sees to that), never waits,
// and connects two ranks when one first has something for the other: a group of 1,024 ranks that runs a ring
// has two connections a rank.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/function_ref.h"

namespace pycoll {

struct NetworkOptions {
  int rank = 0;
  int ranks = 1;
  std::string group;  // named in errors
  std::string
      interface;        // pins the network interface (PYCOLL_IFNAME): a name, or a prefix of names; "": found
  std::string towards;  // a host name or address that all ranks can reach, MASTER_ADDR; "": unknown
  int lanes = 1;        // connections a pair of ranks and direction, PYCOLL_LANES
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(30);
  // After this long without a sign of life a peer counts as lost: a pulled cable, a silent partition.
  std::chrono::nanoseconds silence = std::chrono::seconds(4);
};

class Network {
 public:
  using OnMessage = FunctionRef<void(int source, std::span<const std::byte> message)>;

  virtual ~Network() = default;

  virtual std::string_view name() const = 0;    // "tcp", "ucx"
  virtual std::string description() const = 0;  // for people: version, wires, interface, lanes

  // Where the other ranks reach this one, for the bootstrap to carry: opaque text of at most a few hundred
  // bytes.
  virtual std::string address() const = 0;
  // By rank; before anything else. `hosts`: names for errors; `key`: a number that all ranks of the group,
  // and nobody else, know. A connection that does not bring it is turned away.
  virtual void meet(std::vector<std::string> addresses, std::vector<std::string> hosts, uint64_t key) = 0;

  // The stream to `destination`. Takes as many of the bytes as go without waiting, perhaps none; what was
  // taken may be overwritten at once. Who was not rid of all offers the rest again, in the same order. What
  // one call offers arrives undivided by 64-byte alignment: see arrived(). To a peer that is lost or has left
  // nothing goes: ask lost() and left() while waiting.
  virtual size_t send(int destination, std::span<const std::byte> bytes) = 0;
  // What has come from `source` and lies in one piece; may be empty. The bytes of one send() begin aligned to
  // 64 bytes, and if all calls offer whole elements then whole elements never lie apart. `received` gives the
  // first `bytes` of it back. A receiver that takes nothing back stops the sender: memory is bounded (some
  // MiB a peer that sends, whatever the message).
  virtual std::span<const std::byte> arrived(int source) = 0;
  virtual void received(int source, size_t bytes) = 0;

  // A message of at most 1 MiB, queued until it goes; those between two ranks arrive in order, but not in
  // order with the stream. They are for what is small and must not wait behind bulk data: they also come
  // while the receiver takes nothing of the stream. To a peer that is lost or has left they are dropped.
  virtual void post(int destination, std::span<const std::byte> message) = 0;

  // Moves what can move, accepts and makes connections, and hands messages that came to `on_message` (which
  // may post(), not poll(), nor throw). True: something happened.
  virtual bool poll(OnMessage on_message) = 0;
  // To sleep until poll() has something to do: arm(), and unless it says false (there is something already)
  // poll(2) for this descriptor to become readable.
  virtual int descriptor() const = 0;
  virtual bool arm() = 0;
  // Everything sent and posted so far is with the kernel or the wire: the process may go without losing it.
  virtual bool flushed() const = 0;

  // From now on the death of that peer is noticed without anything being sent: connects to it if need be.
  virtual void watch(int peer) = 0;
  // How the peer was lost ("its connection was reset", "no sign of life for 4 s", "cannot be reached: tried
  // ...
  // "), once that is known; it stays so.
  virtual const std::string* lost(int peer) const = 0;
  // The peer has left the group in peace, and all it had sent has come: what arrived() shows can still be
  // received, and nothing will follow.
  virtual bool left(int peer) const = 0;
  // Tells those this rank is connected with that it leaves. Then poll() until flushed(), and destroy. From
  // now on nothing more is sent, and nobody is lost.
  virtual void leave() = 0;

  virtual size_t memory_bytes() const = 0;  // buffers held
};

// The one that is fit for this machine, or that PYCOLL_NETWORK names.
std::unique_ptr<Network> open_network(const NetworkOptions& options);
// Listens, on the interface found or pinned. Throws InvalidArgument (the interface pinned does not exist),
// Error (no interface is fit; lists those tried and why not).
std::unique_ptr<Network> open_tcp_network(const NetworkOptions& options);
// Throws Unsupported where no fit libucp is found; says what was tried.
std::unique_ptr<Network> open_ucx_network(const NetworkOptions& options);

}  // namespace pycoll
