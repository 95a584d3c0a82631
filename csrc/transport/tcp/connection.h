// One socket and what the network knows of it.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/in_flight.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/private_descriptor.h"

namespace pycoll::tcp {

struct Connection {
  PrivateDescriptor socket;
  std::string link;  // for people: "eth0 10.0.0.1 to 10.0.0.2"
  int peer = -1;     // -1: somebody connected and has not said who it is
  Role role = Role::Messages;
  int lane = 0;
  bool outgoing = false;
  bool connecting = false;
  bool closed = false;  // waits for the end of poll() to be destroyed

  // What the descriptor last said; it says so once.
  bool readable = false;
  bool writable = false;
  bool hung_up = false;  // the other end will send no more, or there was an error
  int failure = 0;       // of a write, outside poll()
  bool queued = false;   // among those that poll() looks at next
  bool stalled = false;  // the next frame has no room yet

  Outbox outbox;
  InFlightLimit in_flight;  // of a stream that goes out
  bool finishing = false;   // ends its direction when the outbox is empty
  bool wrote = false;       // since the last tick
  std::optional<SteadyClock::time_point> unanswered_since;

  // While connecting, or until the hello has come.
  SteadyClock::time_point deadline;
  size_t next_endpoint = 0;
  std::string tried;

  // What is being read: first the hello, then frame after frame.
  union {
    Hello hello;
    FrameHeader header;
  };
  size_t head_came = 0;
  std::vector<std::byte> partial;  // of a message

  Connection() : hello{} {}
};

}  // namespace pycoll::tcp
