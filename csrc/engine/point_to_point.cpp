#include "engine/point_to_point.h"

namespace pycoll {

struct PointToPoint::State {};

PointToPoint::PointToPoint(shm::Group&, Heap&) {}
PointToPoint::~PointToPoint() = default;

std::shared_ptr<Work> PointToPoint::send(const void*, size_t, int, uint64_t, Nanoseconds) {
  throw Unsupported("send is not supported yet");
}

std::shared_ptr<Work> PointToPoint::recv(void*, size_t, int, uint64_t, Nanoseconds, int*) {
  throw Unsupported("recv is not supported yet");
}

void PointToPoint::stop(std::exception_ptr) {}

}  // namespace pycoll
