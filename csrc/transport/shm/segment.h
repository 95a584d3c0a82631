// A group's shared memory: one anonymous file, passed from rank 0 to the others over a Unix socket. It has no
// name anywhere, so nothing stays behind after a kill, two jobs never meet, and the size of /dev/shm does not
// matter.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/file_descriptor.h"
#include "transport/shm/layout.h"

namespace pycoll::shm {

class Segment {
 public:
  static std::shared_ptr<Segment> create(int ranks);
  Segment(FileDescriptor file, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Layout& layout() const { return layout_; }
  int file() const { return file_.get(); }
  std::byte* base() const { return base_; }
  GroupControl& group() const { return *reinterpret_cast<GroupControl*>(base_); }
  std::byte* area(int rank) const { return base_ + layout_.rank_at(rank); }
  RankControl& control(int rank) const { return *reinterpret_cast<RankControl*>(area(rank)); }

  // Maps a range of the file outside the fixed part; mapped once however often it is asked for, until
  // unmapped. A range may grow: the greatest length asked for at a base counts.
  std::byte* map_heap(uint64_t offset, size_t length);
  void unmap_heap(uint64_t offset);
  void release_pages(uint64_t offset, size_t length);  // gives the memory back; the content is lost

 private:
  struct Mapping {
    std::byte* address;
    size_t length;
  };
  FileDescriptor file_;
  Layout layout_;
  std::byte* base_ = nullptr;
  std::mutex heap_mutex_;
  std::map<uint64_t, Mapping> heap_;
};

// The name of an abstract socket that nobody can guess, and a listener on it.
class SegmentServer {
 public:
  explicit SegmentServer(std::shared_ptr<Segment> segment);
  const std::string& name() const { return name_; }
  // Hands the segment to each rank of 1..ranks-1 that is not `served` yet, until `deadline`. Only processes
  // of this user are served. Throws Timeout naming the ranks that did not come.
  void serve(std::vector<bool> served, SteadyClock::time_point deadline, const std::string& group);

 private:
  std::shared_ptr<Segment> segment_;
  std::string name_;
  FileDescriptor listener_;
};

std::shared_ptr<Segment> fetch_segment(const std::string& name, int rank, int ranks,
                                       SteadyClock::time_point deadline, const std::string& group);

// Ranks that are threads of one process use one mapping (one address a byte, which race detectors need).
void remember_segment(const std::string& name, const std::shared_ptr<Segment>& segment);
std::shared_ptr<Segment> recall_segment(const std::string& name);

}  // namespace pycoll::shm
