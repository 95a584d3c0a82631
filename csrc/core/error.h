// Typed errors. The Python side has a class for each kind; a sentence says what happened, to whom, what to
// do.
#pragma once
#include <stdexcept>
#include <string>

namespace pycoll {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A caller's argument is wrong. Nothing was sent; the group is as it was.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Ranks called different collectives at the same step. No data was delivered; the group is usable.
class Mismatch : public Error {
 public:
  using Error::Error;
};

// A rank of the group exited or was killed. The group is no longer usable.
class PeerLost : public Error {
 public:
  using Error::Error;
};

// A deadline passed. The group is no longer usable.
class Timeout : public Error {
 public:
  using Error::Error;
};

// The group was aborted, by this rank or by another one.
class Aborted : public Error {
 public:
  using Error::Error;
};

// What was asked for is meaningful but not to be had (a dtype for an op, a collective of an algorithm).
class Unsupported : public Error {
 public:
  using Error::Error;
};

// A schedule is malformed or does not do what its collective promises.
class ScheduleError : public Error {
 public:
  using Error::Error;
};

class TopologyError : public Error {
 public:
  using Error::Error;
};

}  // namespace pycoll
