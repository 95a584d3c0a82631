// What happens next. Events of one moment come in no particular order.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace pycoll {

constexpr double kNeverHappens = std::numeric_limits<double>::infinity();

enum class EventKind : uint32_t {
  Begin,   // of a pair: its transfer's overhead is over, its bytes flow
  Arrive,  // of a step: its last byte is there
  Added,   // of a step
  Come,    // of a rank
};

struct Event {
  double time;
  int32_t id;
  EventKind kind;
};

// Events that are certain once they are known.
class EventQueue {
 public:
  double next_time() const { return heap_.empty() ? kNeverHappens : heap_.front().time; }

  void push(double time, EventKind kind, int32_t id) {
    heap_.push_back({time, id, kind});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) { return a.time > b.time; }

  std::vector<Event> heap_;
};

// When each pair's transfer will have left, as things stand: a heap whose entries can move.
class EndQueue {
 public:
  explicit EndQueue(size_t pairs) : place_(pairs, kAbsent) {}

  double next_time() const { return heap_.empty() ? kNeverHappens : heap_.front().time; }

  void set(int32_t pair, double time) {
    size_t place = place_[static_cast<size_t>(pair)];
    if (place == kAbsent) {
      place = heap_.size();
      heap_.push_back({time, pair});
    }
    heap_[place] = {time, pair};
    settle(place);
  }

  int32_t pop() {
    const int32_t pair = heap_.front().pair;
    place_[static_cast<size_t>(pair)] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) {
      heap_.front() = last;
      settle(0);
    }
    return pair;
  }

 private:
  struct Entry {
    double time;
    int32_t pair;
  };
  static constexpr size_t kAbsent = std::numeric_limits<size_t>::max();

  // Moves an entry to where it belongs.
  void settle(size_t place) {
    const Entry entry = heap_[place];
    while (place > 0 && heap_[(place - 1) / 2].time > entry.time) {
      put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    for (size_t child; (child = 2 * place + 1) < heap_.size(); place = child) {
      if (child + 1 < heap_.size() && heap_[child + 1].time < heap_[child].time) ++child;
      if (heap_[child].time >= entry.time) break;
      put(place, heap_[child]);
    }
    put(place, entry);
  }

  void put(size_t place, const Entry& entry) {
    heap_[place] = entry;
    place_[static_cast<size_t>(entry.pair)] = place;
  }

  std::vector<Entry> heap_;
  std::vector<size_t> place_;  // by pair
};

}  // namespace pycoll
