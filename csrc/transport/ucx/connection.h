// One peer of a network: its endpoints, the two streams with it, and what is under way to it.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "transport/ucx/context.h"
#include "transport/ucx/stream_ring.h"

namespace pycoll::ucx {

enum class Kind : uint32_t {
  Stream,   // bytes of the stream that belong at `position`
  Credit,   // the receiver has taken the stream up to `position`
  Message,  // number `position` of those to this peer
  Hello,    // nothing but the connection is wanted
  Leave,    // the sender leaves; its stream ends at `position`
  Goodbye,  // a Leave has been seen
};

// In front of everything that is sent.
struct Header {
  uint64_t key;
  uint64_t position;
  int32_t source;
  Kind kind;
};

class UcxNetwork;
struct Connection;

// Something on its way. It stays where it is until UCX has done with it.
struct Operation {
  Connection* connection = nullptr;
  Header header{};
  std::vector<std::byte> payload;    // of a message
  SendRing::Piece* piece = nullptr;  // of the stream
  bool done = false;
};

struct OutgoingStream {
  OutgoingStream(Context& context, size_t size)
      : ring(size), registered(context, ring.memory().data(), size) {}
  SendRing ring;
  RegisteredMemory registered;
  uint64_t pieces = 0;  // sent so far: they take turns on the lanes
};

struct IncomingStream {
  IncomingStream(Context& context, size_t size)
      : ring(size), registered(context, ring.memory().data(), size) {}
  ReceiveRing ring;
  RegisteredMemory registered;
  uint64_t credited = 0;  // what the sender was told is free again
};

struct Connection {
  Connection(UcxNetwork& its_network, int its_peer) : network(&its_network), peer(its_peer) {}

  UcxNetwork* network;
  int peer;
  // For messages and for the stream, each with TCP connections of its own: a message does not wait behind
  // what the kernel holds of the stream.
  ucp_ep_h messages = nullptr;
  std::vector<ucp_ep_h> lanes;
  std::optional<OutgoingStream> outgoing;
  std::optional<IncomingStream> incoming;
  std::deque<Operation> operations;  // references stay valid while only its ends change

  uint64_t messages_sent = 0;
  uint64_t messages_received = 0;
  std::map<uint64_t, std::vector<std::byte>> early;  // messages that overtook others

  SteadyClock::time_point heard = {};   // when something last came from the peer
  SteadyClock::time_point begun = {};   // connecting to it
  std::optional<ucs_status_t> failure;  // told by UCX, not yet judged
  std::string lost;                     // how; "": not lost
  std::optional<uint64_t> leaves_at;    // the peer's stream ends there
  bool farewell_answered = false;
  bool closed = false;  // nothing can be sent any more
};

}  // namespace pycoll::ucx
