// What this process called last, for whoever asks why it hangs: torch's flight recorder, whose own code is
// not open to backends outside torch. Off, and then free, unless TORCH_FR_BUFFER_SIZE says how many calls to
// keep.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pycoll::torch_adapter {

// What entries say of their group.
struct FlightGroup {
  int64_t id = 0;                 // of this process
  std::string name, description;  // of groups that had one name after another, the second is "name #2"
  std::vector<int> global_ranks;  // by rank of the group
  int rank = 0;
  // Numbers of collectives.
  uint64_t last_called = 0, last_completed = 0;
};

class FlightRecorder {
 public:
  struct Shape {
    at::ScalarType dtype;
    c10::DimVector sizes;
  };
  struct Entry {
    uint64_t id = 0;  // counts all calls of the process
    std::shared_ptr<FlightGroup> group;
    std::string name;                      // "pycoll:all_reduce"
    uint64_t collective = 0, message = 0;  // collectives and messages of the group so far, with this one
    bool is_message = false;
    int peer = -1;  // of a message: rank of the group; -1 while a receive from any rank has not heard one
    int tag = 0;
    std::vector<Shape> inputs, outputs;
    std::chrono::milliseconds timeout{0};
    int64_t created = 0, completed = 0;  // nanoseconds since 1970; 0: not
    bool retired = false;                // over, well or not
    std::string error;                   // why it is over and not completed
    std::thread::id thread;
    std::shared_ptr<torch::CapturedTraceback> frames;
  };

  static FlightRecorder* get();  // null: off

  std::shared_ptr<FlightGroup> add_group(std::string name, std::vector<int> global_ranks, int rank);
  // Completes the entry, and gives its id. `description`: the group's, which torch tells after its making.
  uint64_t begin(Entry entry, const std::string& description, at::TensorList inputs, at::TensorList outputs);
  void end(uint64_t id, const std::string* error, int heard);

  struct Record {
    std::vector<Entry> entries;             // oldest first
    std::map<int64_t, FlightGroup> groups;  // by id, of which there are entries
  };
  Record record() const;

 private:
  explicit FlightRecorder(size_t capacity) : ring_(capacity) {}

  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t next_ = 0;
  int64_t next_group_ = 0;
  std::map<std::string, int> groups_of_name_;
};

// One call's entry, until it is over; of nothing where the recorder is off.
class FlightEntry {
 public:
  FlightEntry() = default;
  explicit FlightEntry(uint64_t id) : id_(id), open_(true) {}
  FlightEntry(FlightEntry&& other) noexcept : id_(other.id_), open_(std::exchange(other.open_, false)) {}
  FlightEntry& operator=(FlightEntry&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(open_, other.open_);
    return *this;
  }
  ~FlightEntry() {
    if (open_) failed("given up");
  }

  bool open() const { return open_; }
  void done(int heard = -1) {  // `heard`: whom a receive from any rank heard
    if (std::exchange(open_, false)) FlightRecorder::get()->end(id_, nullptr, heard);
  }
  void failed(const std::string& why) {
    if (std::exchange(open_, false)) FlightRecorder::get()->end(id_, &why, -1);
  }

 private:
  uint64_t id_ = 0;
  bool open_ = false;
};

}  // namespace pycoll::torch_adapter
