// Memory by address ranges, against a driver whose memory is the host's: a piece of memory is a memfd, so its
// descriptors go from rank to rank as those of GPUs do, and what one rank writes another reads.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "cuda/mailbox.h"
#include "cuda/mapping.h"
#include "cuda/pool.h"
#include "transport/shm/unix_name.h"

namespace {

using namespace pycoll;
using namespace pycoll::cuda;
using namespace std::chrono_literals;
using test::check;
using test::check_throws;

class HostDriver final : public Driver {
 public:
  explicit HostDriver(uint32_t offered) : offered_(offered) {}

  uint32_t offers(int) override { return offered_; }
  size_t granularity(int, MemoryKind) override { return 8192; }
  Memory create(int, size_t bytes, MemoryKind) override {
    if (bytes % 8192 != 0) throw Error("not of the granularity");
    FileDescriptor file(::memfd_create("test", MFD_CLOEXEC));
    if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) throw Error("out of memory");
    return keep(std::move(file));
  }
  void release(Memory memory) noexcept override {
    const std::scoped_lock lock(mutex_);
    memory_.erase(memory);
  }
  FileDescriptor export_descriptor(Memory memory) override {
    const std::scoped_lock lock(mutex_);
    return FileDescriptor(::dup(memory_.at(memory).get()));
  }
  FabricHandle export_fabric(Memory) override { throw Unsupported("no fabric"); }
  Memory import_descriptor(int descriptor) override { return keep(FileDescriptor(::dup(descriptor))); }
  Memory import_fabric(const FabricHandle&) override { throw Unsupported("no fabric"); }
  char* map(Memory memory, size_t bytes, size_t, int) override {
    const std::scoped_lock lock(mutex_);
    if (refuses_to_map) throw Error("could not map");
    void* const data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.at(memory).get(), 0);
    if (data == MAP_FAILED) throw Error("could not map");
    ++mapped;
    return static_cast<char*>(data);
  }
  void allow(char*, size_t, int) override {}
  void unmap(char* address, size_t bytes) noexcept override {
    const std::scoped_lock lock(mutex_);
    ::munmap(address, bytes);
    --mapped;
  }
  size_t multicast_granularity(int, size_t, MemoryKind) override { return 65536; }
  Memory create_multicast(int, size_t, MemoryKind) override { throw Unsupported("no multicast"); }
  void add_device(Memory, int) override {}
  void bind(Memory, Memory, size_t) override {}
  void unbind(Memory, int, size_t) noexcept override {}
  char* allocate(int, size_t bytes) override {
    ++allocated;
    return static_cast<char*>(std::malloc(bytes));
  }
  void free(int, char* memory) noexcept override {
    --allocated;
    std::free(memory);
  }
  void synchronize(int device) noexcept override {
    if (waits) waits(device);
  }

  size_t pieces() {
    const std::scoped_lock lock(mutex_);
    return memory_.size();
  }
  int mapped = 0, allocated = 0;
  bool refuses_to_map = false;
  std::function<void(int)> waits;

 private:
  Memory keep(FileDescriptor file) {
    const std::scoped_lock lock(mutex_);
    memory_[++made_] = std::move(file);
    return made_;
  }
  uint32_t offered_;
  std::mutex mutex_;
  std::map<Memory, FileDescriptor> memory_;
  Memory made_ = 0;
};

void ranges() {
  HostDriver driver(kOffersDescriptors);
  {
    const Mapping range = Mapping::create(driver, 0, 100, MemoryKind::Descriptor);
    check(range.bytes() == 8192, "of the granularity");
    const Mapping coarser = Mapping::create(driver, 0, 8193, MemoryKind::Descriptor, 65536);
    check(coarser.bytes() == 65536, "of a multicast object's granularity where that is coarser");
    check(driver.pieces() == 2 && driver.mapped == 2, "both are there");
    driver.refuses_to_map = true;
    check_throws<Error>([&] { Mapping::create(driver, 0, 1, MemoryKind::Descriptor); }, "could not map");
    check(driver.pieces() == 2, "what could not be mapped is released");
  }
  check(driver.pieces() == 0 && driver.mapped == 0, "nothing is left");
}

// Every rank writes into its own memory, hands it over and reads all others'.
void memory_from_rank_to_rank() {
  constexpr int kRanks = 12;
  HostDriver driver(kOffersDescriptors);
  std::vector<Mailbox> mailboxes(kRanks);
  std::vector<std::string> names;
  for (const Mailbox& mailbox : mailboxes) names.push_back(mailbox.name());
  check(names[0].size() < Mailbox::kNameBytes, "a name fits into a handle");
  std::vector<int> wrong(kRanks, 0);
  {
    std::vector<Mapping> own;
    for (int rank = 0; rank < kRanks; ++rank)
      own.push_back(Mapping::create(driver, rank, 1, MemoryKind::Descriptor));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        const Mapping& mine = own[static_cast<size_t>(rank)];
        mine.data()[100] = static_cast<char>(rank);
        // Several exchanges without a pause between them. Ranks of an odd number have nothing in every
        // second.
        for (uint64_t turn = 0; turn < 6; ++turn) {
          std::vector<FileDescriptor> handed;
          std::vector<size_t> counts;
          for (int peer = 0; peer < kRanks; ++peer) counts.push_back(peer % 2 == 1 && turn % 2 == 1 ? 0 : 3);
          for (size_t i = 0; i < counts[static_cast<size_t>(rank)]; ++i)
            handed.push_back(driver.export_descriptor(mine.memory()));
          const auto received =
              mailboxes[static_cast<size_t>(rank)].exchange(turn, rank, names, handed, counts);
          for (int peer = 0; peer < kRanks; ++peer) {
            const auto& from = received[static_cast<size_t>(peer)];
            const size_t expected = peer == rank ? 0 : counts[static_cast<size_t>(peer)];
            if (from.size() != expected) ++wrong[static_cast<size_t>(rank)];
            for (const FileDescriptor& descriptor : from) {
              const Mapping theirs(driver, driver.import_descriptor(descriptor.get()), 8192, 0, rank);
              if (theirs.data()[100] != static_cast<char>(peer)) ++wrong[static_cast<size_t>(rank)];
            }
          }
        }
      });
    for (auto& thread : threads) thread.join();
  }
  for (const int count : wrong) check(count == 0, "every rank reads what every other wrote");
  check(driver.pieces() == 0 && driver.mapped == 0, "nothing is left");
}

void what_exchanges_refuse() {
  std::vector<Mailbox> mailboxes(2);
  const std::vector<std::string> names{mailboxes[0].name(), mailboxes[1].name()};
  const std::vector<size_t> both{1, 1}, none{0, 0};
  std::vector<FileDescriptor> one;
  one.emplace_back(::memfd_create("test", MFD_CLOEXEC));
  check_throws<Timeout>([&] { mailboxes[0].exchange(1, 0, names, one, both, 50ms); }, "rank 1 sent nothing");
  // What the other sends for another exchange is not taken for this one's.
  mailboxes[1].exchange(7, 1, names, one, none, 50ms);
  check_throws<Timeout>([&] { mailboxes[0].exchange(2, 0, names, one, both, 50ms); }, "rank 1 sent nothing");
  const auto kept = mailboxes[0].exchange(7, 0, names, {}, std::vector<size_t>{0, 1}, 50ms);
  check(kept[1].size() == 1, "but kept for its own");
  // One descriptor where two were announced.
  mailboxes[1].exchange(8, 1, names, one, none, 50ms);
  check_throws<Error>([&] { mailboxes[0].exchange(8, 0, names, {}, std::vector<size_t>{0, 2}, 50ms); },
                      "rank 1 handed over 1 descriptors to rank 0, not 2");
  const std::vector<std::string> gone{names[0], "pycoll-test-nobody"};
  check_throws<Error>([&] { mailboxes[0].exchange(9, 0, gone, one, both, 50ms); },
                      "rank 0 cannot hand its memory to rank 1");
  const std::vector<FileDescriptor> many(Mailbox::kMostDescriptors + 1);
  check_throws<InvalidArgument>([&] { mailboxes[0].exchange(10, 0, names, many, both, 50ms); }, "64");
}

// Anybody may write to the name.
void strangers_are_not_heard() {
  std::vector<Mailbox> mailboxes(2);
  const std::vector<std::string> names{mailboxes[0].name(), mailboxes[1].name()};
  const FileDescriptor stranger(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const shm::UnixAddress address(names[0]);
  for (const char* text : {"", "x", "something of another length than a letter's"})
    ::sendto(stranger.get(), text, std::char_traits<char>::length(text), MSG_DONTWAIT, address.get(),
             address.length);
  std::vector<FileDescriptor> one;
  one.emplace_back(::memfd_create("test", MFD_CLOEXEC));
  mailboxes[1].exchange(1, 1, names, one, std::vector<size_t>{0, 0}, 50ms);
  const auto received = mailboxes[0].exchange(1, 0, names, {}, std::vector<size_t>{0, 1}, 5s);
  check(received[1].size() == 1, "the peer's letter comes through");
}

void segments() {
  for (const bool ranges : {false, true}) {
    HostDriver driver(ranges ? kOffersDescriptors : 0u);
    {
      SegmentPool pool(driver);
      char* const a = pool.allocate(16384, 0);
      char* const b = pool.allocate(8192, 0);
      char* const other = pool.allocate(8192, 1);
      const auto found = pool.find(a + 100, 16384 - 100);
      check(found && found->base == a && found->bytes == 16384 && found->device == 0, "by an address in it");
      check(found->kind == (ranges ? MemoryKind::Descriptor : MemoryKind::Ipc), "of what the device offers");
      check(!pool.find(a + 100, 16384 - 99), "all of the buffer must lie in it");
      check(!pool.find(&pool, 1), "and memory from elsewhere does not");
      const auto all = pool.segments(0);
      check(all.size() == 2 && all[0].base == a && all[1].base == b, "a device's, in order");

      const uint64_t serial = all[1].serial;
      pool.free(other);
      check(!pool.find(other, 1), "what is freed is not found");
      {
        const SegmentPool::Lease lease(pool);
        pool.free(b);
        check(!pool.find(b, 1), "nor while a group lasts");
        check(pool.allocate(8192, 1) != b, "another device gets its own");
        check(pool.allocate(8000, 0) == b, "but it is there for the next of its size");
        check(pool.find(b, 1)->serial == serial, "under its old number: peers have it mapped");
        pool.free(b);
        check(pool.allocate(32, 0) != b, "a small one does not get a large one");
      }
      check(driver.mapped + driver.allocated == 3, "after the last group what is unused is given back");
      check_throws<InvalidArgument>([&] { pool.free(b); }, "has none that begins there");
      driver.refuses_to_map = true;
      if (ranges) check_throws<Error>([&] { pool.allocate(1 << 20, 0); }, "could not map");
    }
    check(driver.mapped == 0 && driver.allocated == 0 && driver.pieces() == 0, "nothing is left");
  }
}

// What runs on the device may use a segment until its allocator has let go of it, and what gets it next must
// not meet that. Until then it stays as it is, and other ranks of the process can look for their buffers.
void freeing_waits_for_the_device() {
  for (const bool ranges : {false, true})
    for (const bool in_a_group : {false, true}) {
      HostDriver driver(ranges ? kOffersDescriptors : 0u);
      SegmentPool pool(driver);
      SegmentPool::Lease lease;
      if (in_a_group) lease = SegmentPool::Lease(pool);
      char* const other = pool.allocate(8192, 0);
      char* const memory = pool.allocate(8192, 3);
      std::vector<int> waited;
      driver.waits = [&](int device) {
        waited.push_back(device);
        check(driver.mapped + driver.allocated == 2 && pool.find(memory, 8192), "it is still there");
        check(pool.find(other, 8192).has_value(), "and so are others");
      };
      pool.free(memory);
      check(waited == std::vector<int>{3}, "its device has ended what it ran");
      check(!pool.find(memory, 1), "then it is free");
    }
}

}  // namespace

int main() {
  test::run("ranges", ranges);
  test::run("memory from rank to rank", memory_from_rank_to_rank);
  test::run("what exchanges refuse", what_exchanges_refuse);
  test::run("strangers are not heard", strangers_are_not_heard);
  test::run("segments", segments);
  test::run("freeing waits for the device", freeing_waits_for_the_device);
  return test::result();
}
