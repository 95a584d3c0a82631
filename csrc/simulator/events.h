// What happens next. Events of one moment come in no particular order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace pycoll {

enum class EventKind : uint32_t {
  Begin,   // of a pair: its transfer's overhead is over, its bytes flow
  Sent,    // of a pair: its transfer's last byte has left
  Arrive,  // of a step: its last byte is there
  Added,   // of a step
  Come,    // of a rank
};

struct Event {
  double time;
  int32_t id;
  EventKind kind : 3;
  uint32_t stamp : 29;  // of Sent: void where the pair has another by now
};

class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  const Event& next() const { return heap_.front(); }

  void push(double time, EventKind kind, int32_t id, uint32_t stamp = 0) {
    heap_.emplace_back(time, id, kind, stamp & kStampMask);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

  static constexpr uint32_t kStampMask = (1u << 29) - 1;

 private:
  static bool later(const Event& a, const Event& b) { return a.time > b.time; }

  std::vector<Event> heap_;
};

}  // namespace pycoll
