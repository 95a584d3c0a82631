#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "core/error.h"

namespace pycoll::shm {
namespace {

std::string system_error(const std::string& what) {
  return what + ": " + std::strerror(errno);
}

}  // namespace

std::shared_ptr<Segment> Segment::create(int ranks) {
  FileDescriptor file(static_cast<int>(::syscall(SYS_memfd_create, "pycoll", 1U /* MFD_CLOEXEC */)));
  if (!file) throw Error(system_error("memfd_create failed; pycoll needs Linux 3.17 or newer"));
  // Sparse: the heaps reach to (ranks + 1) << 40, pages exist once they are touched.
  const off_t size = static_cast<off_t>(ranks + 1) << kHeapShift;
  if (::ftruncate(file.get(), size) != 0) throw Error(system_error("cannot size the shared segment"));
  auto segment = std::make_shared<Segment>(std::move(file), ranks);
  new (segment->base()) GroupControl{};
  for (int rank = 0; rank < ranks; ++rank) new (segment->area(rank)) RankControl{};
  return segment;
}

Segment::Segment(FileDescriptor file, int ranks) : file_(std::move(file)), layout_(ranks) {
  void* address = ::mmap(nullptr, layout_.total(), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (address == MAP_FAILED) throw Error(system_error("cannot map the group's shared segment"));
  base_ = static_cast<std::byte*>(address);
}

Segment::~Segment() {
  for (const auto& [offset, mapping] : heap_) ::munmap(mapping.address, mapping.length);
  if (base_ != nullptr) ::munmap(base_, layout_.total());
}

std::byte* Segment::map_heap(uint64_t offset, size_t length) {
  const std::lock_guard lock(heap_mutex_);
  const auto found = heap_.find(offset);
  if (found != heap_.end() && found->second.length >= length) return found->second.address;
  void* address =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), static_cast<off_t>(offset));
  if (address == MAP_FAILED)
    throw Error(system_error("cannot map a shared buffer of " + std::to_string(length) + " bytes"));
  if (found != heap_.end()) ::munmap(found->second.address, found->second.length);
  heap_[offset] = {static_cast<std::byte*>(address), length};
  return static_cast<std::byte*>(address);
}

void Segment::unmap_heap(uint64_t offset) {
  const std::lock_guard lock(heap_mutex_);
  const auto found = heap_.find(offset);
  if (found == heap_.end()) return;
  ::munmap(found->second.address, found->second.length);
  heap_.erase(found);
}

void Segment::release_pages(uint64_t offset, size_t length) {
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(length));
}

namespace {
std::mutex registry_mutex;
std::map<std::string, std::weak_ptr<Segment>>& registry() {
  static auto* segments = new std::map<std::string, std::weak_ptr<Segment>>;  // outlives all threads
  return *segments;
}
}  // namespace

void remember_segment(const std::string& name, const std::shared_ptr<Segment>& segment) {
  const std::lock_guard lock(registry_mutex);
  std::erase_if(registry(), [](const auto& entry) { return entry.second.expired(); });
  registry()[name] = segment;
}

std::shared_ptr<Segment> recall_segment(const std::string& name) {
  const std::lock_guard lock(registry_mutex);
  const auto found = registry().find(name);
  return found == registry().end() ? nullptr : found->second.lock();
}

}  // namespace pycoll::shm
