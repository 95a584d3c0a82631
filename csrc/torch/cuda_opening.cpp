// How ranks open their GPUs together.
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "torch/cuda_group.h"

namespace pycoll::torch_adapter {
namespace {

// What ranks tell each other while the group is opened.
struct OpeningRecord {
  enum Status : int32_t { Well, Invalid, NotSupported, Failed };
  int32_t status;
  int32_t bytes;
  char text[16376];
};

OpeningRecord::Status status_of(const Error& error) {
  if (dynamic_cast<const InvalidArgument*>(&error)) return OpeningRecord::Invalid;
  if (dynamic_cast<const Unsupported*>(&error)) return OpeningRecord::NotSupported;
  return OpeningRecord::Failed;
}

[[noreturn]] void throw_as(int32_t status, const std::string& text) {
  if (status == OpeningRecord::Invalid) throw InvalidArgument(text);
  if (status == OpeningRecord::NotSupported) throw Unsupported(text);
  throw Error(text);
}

std::string boot_of_this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return boot;
}

}  // namespace

// Runs a step on every rank and gathers what it returns.
std::vector<std::string> CudaGroup::together(const std::function<std::string()>& step) {
  OpeningRecord mine{};
  std::string text;
  try {
    text = step();
    if (text.size() > sizeof(mine.text)) throw Error("a handle of the CUDA part is too long");
  } catch (const Error& error) {
    mine.status = status_of(error);
    text = std::string(error.what()).substr(0, sizeof(mine.text));
  }
  mine.bytes = int32_t(text.size());
  std::memcpy(mine.text, text.data(), text.size());
  std::vector<OpeningRecord> all(size_t(communicator_->ranks()));
  CollectiveCall call;
  call.kind = CollectiveKind::AllGather;
  call.dtype = DType::UInt8;
  call.count = sizeof(OpeningRecord);
  call.input = &mine;
  call.output = all.data();
  communicator_->run(call);
  std::vector<std::string> texts;
  for (const OpeningRecord& record : all) texts.emplace_back(record.text, size_t(record.bytes));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].status != OpeningRecord::Well)
      throw_as(all[r].status, "group '" + communicator_->options().group +
                                  "' cannot be used with CUDA tensors: rank " + std::to_string(r) + ": " +
                                  texts[r]);
  return texts;
}

void CudaGroup::open(const Accelerator& accelerator) {
  const auto places = together([&] {
    library_ = std::make_shared<CudaLibrary>(accelerator.library());
    stream_ = std::make_unique<CudaStream>(guard_, device_, false, native_handle_);
    if (captures(accelerator.stream_handle(current_stream())))
      throw InvalidArgument(
          "the group's first call on CUDA tensors comes while a graph is captured, where no memory can be "
          "had; call it once before, or give init_process_group a device_id");
    return boot_of_this_host();
  });
  for (size_t r = 0; r < places.size(); ++r)
    if (places[r] != places[0])
      throw Unsupported("group '" + communicator_->options().group +
                        "' cannot be used with CUDA tensors: rank " + std::to_string(r) +
                        " is on another host than rank 0. Give CUDA tensors of several hosts to NCCL: "
                        "init_process_group(\"cpu:pycoll,cuda:nccl\")");
  const auto handles = together([&] {
    pycoll_cuda_options options{};
    options.rank = communicator_->rank();
    options.ranks = communicator_->ranks();
    options.device = device_.index();
    library_->check(library_->open(&options, &group_));
    std::string handle(library_->handle_bytes(), '\0');
    library_->check(library_->handle(group_, handle.data()));
    return handle;
  });
  together([&] {
    std::string all;
    for (const std::string& handle : handles) all += handle;
    library_->check(library_->connect(group_, all.data()));
    // What graphs are captured with most: a schedule's first use takes memory, which a capture forbids.
    for (CollectiveKind kind :
         {CollectiveKind::AllReduce, CollectiveKind::ReduceScatter, CollectiveKind::AllGather})
      plan(kind, 0);
    return std::string();
  });
  open_messages();
  const auto devices = together([&] { return accelerator.place(device_.index()); });
  // Rank 0's is the table of all; schedules take memory, which a capture forbids.
  ways_ = parse_ways(
      together([&] { return communicator_->rank() == 0 ? accelerator.ways(devices) : std::string(); })[0]);
  together([&] {
    for (const CudaWay& row : ways_)
      if (row.ways[0] != "one_shot" && row.ways[0] != "two_shot") plan_of_way(row.ways[0]);
    return std::string();
  });
}

void CudaGroup::share_pool() {
  const c10::DeviceGuard there(device_);
  const auto step = [&](const auto& body) {
    return together([&] {
      const std::lock_guard lock(mutex_);
      require_open();
      return body();
    });
  };
  for (int32_t more = 1; more != 0;) {
    const auto batches = step([&] {
      std::string batch(library_->pool_batch_bytes(), '\0');
      library_->check(library_->pool_offer(group_, batch.data()));
      return batch;
    });
    step([&] {
      std::string all;
      for (const std::string& batch : batches) all += batch;
      library_->check(library_->pool_connect(group_, all.data(), &more));
      return std::string();
    });
    step([&] {
      library_->check(library_->pool_use(group_));
      return std::string();
    });
  }
}

// Without messages the group still has its collectives.
void CudaGroup::open_messages() {
  // A handle, or why there is none, behind a mark.
  const auto tell = [&](const auto& step) {
    return together([&] {
      try {
        return "+" + step();
      } catch (const Error& error) {
        return "-" + std::string(error.what());
      }
    });
  };
  const auto all_fine = [&](const std::vector<std::string>& told) {
    for (size_t r = 0; r < told.size() && why_no_messages_.empty(); ++r)
      if (told[r][0] != '+') why_no_messages_ = "rank " + std::to_string(r) + ": " + told[r].substr(1);
    return why_no_messages_.empty();
  };
  const auto handles = tell([&] {
    std::string handle(library_->handle_bytes(), '\0');
    library_->check(library_->messages_open(group_, handle.data()));
    return handle;
  });
  if (!all_fine(handles)) return;
  all_fine(tell([&] {
    std::string all;
    for (const std::string& handle : handles) all += handle.substr(1);
    library_->check(library_->messages_connect(group_, all.data()));
    return std::string();
  }));
}

}  // namespace pycoll::torch_adapter
