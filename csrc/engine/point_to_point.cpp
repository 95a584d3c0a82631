#include "engine/point_to_point.h"

#include <utility>

#include "engine/courier.h"

namespace pycoll {

PointToPoint::PointToPoint(shm::Group& group, Heap& heap, std::optional<Placement> placement,
                           std::unique_ptr<Network> network)
    : heap_(heap), courier_(std::make_shared<Courier>(group, std::move(placement), std::move(network))) {}

PointToPoint::~PointToPoint() = default;

std::shared_ptr<Work> PointToPoint::send(const void* data, size_t bytes, int destination, uint64_t tag,
                                         Nanoseconds timeout) {
  // Sends only read: one type of request serves both directions.
  auto* const source = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  return courier_->post(
      {.sends = true, .data = source, .bytes = bytes, .peer = destination, .tag = tag, .timeout = timeout},
      heap_.locate(data, bytes));
}

std::shared_ptr<Work> PointToPoint::recv(void* data, size_t bytes, int source, uint64_t tag,
                                         Nanoseconds timeout, int* source_out) {
  return courier_->post({.sends = false,
                         .data = static_cast<std::byte*>(data),
                         .bytes = bytes,
                         .peer = source,
                         .tag = tag,
                         .source_out = source_out,
                         .timeout = timeout});
}

void PointToPoint::stop(std::exception_ptr error) {
  courier_->stop(std::move(error));
}

size_t PointToPoint::shared_bytes() const {
  return courier_->shared_bytes();
}

size_t PointToPoint::private_bytes() const {
  return courier_->private_bytes();
}

}  // namespace pycoll
