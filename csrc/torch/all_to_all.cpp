#include <algorithm>
#include <cstring>
#include <numeric>

#include "torch/backend.h"

namespace pycoll::torch_adapter {
namespace {

constexpr TorchCall kAllToAll{c10d::OpType::ALLTOALL, "pycoll:all_to_all"};
constexpr TorchCall kAllToAllBase{c10d::OpType::ALLTOALL_BASE, "pycoll:all_to_all_single"};

// Messages of an all_to_all never meet a user's: torch's tags have 32 bits.
constexpr uint64_t kExchangeTag = uint64_t(1) << 63;

// Rows of dimension 0 for each rank; equal parts where the caller gave none.
std::vector<int64_t> rows_by_rank(const at::Tensor& tensor, std::vector<int64_t> splits, int ranks,
                                  const char* which) {
  require(tensor.dim() > 0, kAllToAllBase, c10::str("the ", which, " must have a dimension to split"));
  const int64_t rows = tensor.size(0);
  if (splits.empty()) {
    require(rows % ranks == 0, kAllToAllBase,
            c10::str("dimension 0 of the ", which, " (", rows, ") does not divide equally among ", ranks,
                     " ranks; give split sizes"));
    return std::vector<int64_t>(size_t(ranks), rows / ranks);
  }
  require(
      splits.size() == size_t(ranks), kAllToAllBase,
      c10::str("needs a split size of the ", which, " for each of ", ranks, " ranks, got ", splits.size()));
  for (int64_t split : splits)
    require(split >= 0, kAllToAllBase, c10::str("a split size of the ", which, " is negative: ", split));
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t(0));
  require(sum == rows, kAllToAllBase,
          c10::str("the split sizes of the ", which, " add up to ", sum, ", but its dimension 0 is ", rows));
  return splits;
}

// Whether a byte of some output, but for what a rank keeps in place, is one of an input as well.
template <class Messages>
bool overlap(const Messages& sends, const Messages& receives) {
  const auto meet = [](const auto& a, const auto& b) {
    return a.bytes > 0 && b.bytes > 0 && static_cast<char*>(a.data) < static_cast<char*>(b.data) + b.bytes &&
           static_cast<char*>(b.data) < static_cast<char*>(a.data) + a.bytes;
  };
  for (const auto& send : sends)
    for (const auto& receive : receives)
      if (meet(send, receive)) return true;
  return false;
}

template <class Messages>
bool disjoint(Messages messages) {
  std::sort(messages.begin(), messages.end(), [](const auto& a, const auto& b) { return a.data < b.data; });
  const char* end = nullptr;
  for (const auto& message : messages) {
    if (message.bytes == 0) continue;
    if (static_cast<const char*>(message.data) < end) return false;
    end = static_cast<const char*>(message.data) + message.bytes;
  }
  return true;
}

std::optional<Nanoseconds> time_left(const std::optional<SteadyClock::time_point>& deadline) {
  if (!deadline) return std::nullopt;
  return std::max(Nanoseconds(1), Nanoseconds(*deadline - SteadyClock::now()));
}

// Every rank judges every pair, so that all raise alike.
void require_agreement(const int64_t* table, int ranks) {
  const auto row = [&](int r) { return table + size_t(r) * (1 + 2 * size_t(ranks)); };
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      const int64_t sent = row(from)[1 + to], expected = row(to)[1 + ranks + from];
      if (sent == expected && row(from)[0] == row(to)[0]) continue;
      throw Mismatch(c10::str("all_to_all: rank ", from, " sent rank ", to, " ", sent, " bytes of ",
                              name_of(DType(row(from)[0])), ", but rank ", to, " expected ", expected,
                              " bytes of ", name_of(DType(row(to)[0])), ". No data was delivered."));
    }
  }
}

}  // namespace

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& opts) {
  return calling([&] {
    require_same_dtype(input, output, kAllToAllBase);
    const auto input_rows = rows_by_rank(input, input_splits, getSize(), "input");
    const auto output_rows = rows_by_rank(output, output_splits, getSize(), "output");
    Launch launch(kAllToAllBase, input, &enter_device_);
    const bool even = input_splits.empty() && output_splits.empty();  // alike on all ranks
    if (even) {
      require(input.numel() == output.numel(), kAllToAllBase,
              c10::str("input and output must have as many elements, got ", input.numel(), " and ",
                       output.numel()));
      CollectiveCall& call =
          launch.add(CollectiveKind::AllToAll, input, size_t(input.numel() / getSize()), opts.timeout);
      call.input = launch.read(input);
      call.output = launch.write(output);
      return start(launch, opts.asyncOp, output);
    }
    const auto cut = [](const at::Tensor& tensor, void* data, const std::vector<int64_t>& rows) {
      const size_t row = tensor.size(0) == 0 ? 0 : tensor.nbytes() / size_t(tensor.size(0));
      std::vector<Message> messages;
      auto* next = static_cast<char*>(data);
      for (int64_t n : rows) {
        messages.push_back({next, size_t(n) * row});
        next += size_t(n) * row;
      }
      return messages;
    };
    const auto sends = cut(input, const_cast<void*>(launch.read(input)), input_rows);
    const auto receives = cut(output, launch.write(output), output_rows);
    const DType dtype = dtype_of(input, kAllToAllBase, false);
    if (!launch.device().is_cpu())
      return exchange_on_device(std::move(launch), sends, receives, dtype, output, opts);
    return exchange(std::move(launch), sends, receives, dtype, output, opts);
  });
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return calling([&] {
    for (const Tensors* list : {&outputs, &inputs})
      require(list->size() == size_t(getSize()), kAllToAll,
              c10::str("a list must hold a tensor for each of ", getSize(), " ranks, got ", list->size()));
    Launch launch(kAllToAll, inputs, &enter_device_);
    std::vector<Message> sends, receives;
    for (const at::Tensor& input : inputs) {
      require_same_dtype(inputs[0], input, kAllToAll);
      sends.push_back({const_cast<void*>(launch.read(input)), input.nbytes()});
    }
    for (const at::Tensor& output : outputs) {
      require_same_dtype(inputs[0], output, kAllToAll);
      receives.push_back({launch.write(output), output.nbytes()});
    }
    const DType dtype = dtype_of(inputs[0], kAllToAll, false);
    if (!launch.device().is_cpu())
      return exchange_on_device(std::move(launch), sends, receives, dtype, outputs, opts);
    return exchange(std::move(launch), sends, receives, dtype, outputs, opts);
  });
}

// An all_to_all whose sizes only the two ranks concerned know: an all_gather of what each rank sends, which
// keeps the ranks in step and catches those that disagree, and then a message a pair of ranks.
Backend::WorkPtr Backend::exchange(Launch launch, std::vector<Message> sends,
                                   const std::vector<Message>& receives, DType dtype, at::TensorList results,
                                   const c10d::AllToAllOptions& opts) {
  const int rank = getRank(), ranks = getSize();
  require_one_device(launch);
  require(disjoint(receives), launch.what(), "outputs share memory with each other; give each its own");
  if (overlap(sends,
              receives)) {  // as when the output is the input: what is sent must not be overwritten before
    size_t total = 0;
    for (const Message& send : sends) total += send.bytes;
    at::Tensor copy = launch.scratch(int64_t(total), at::kByte);
    auto* next = static_cast<char*>(copy.mutable_data_ptr());
    for (Message& send : sends) {
      if (send.bytes > 0) std::memcpy(next, send.data, send.bytes);
      send.data = next;
      next += send.bytes;
    }
  }
  // A row of the table: dtype, bytes to each rank, bytes from each.
  const size_t columns = 1 + 2 * size_t(ranks);
  at::Tensor mine = launch.scratch(int64_t(columns), at::kLong);
  at::Tensor table = launch.scratch(int64_t(columns) * ranks, at::kLong);
  auto* row = mine.mutable_data_ptr<int64_t>();
  row[0] = int64_t(dtype);
  for (int r = 0; r < ranks; ++r) {
    row[1 + r] = int64_t(sends[size_t(r)].bytes);
    row[1 + ranks + r] = int64_t(receives[size_t(r)].bytes);
  }
  CollectiveCall& call = launch.add(CollectiveKind::AllGather, mine, columns, opts.timeout);
  call.input = row;
  call.output = table.mutable_data_ptr();
  const CollectiveCall sizes = call;
  // Nothing moves before all are known to agree.
  auto move = [communicator = communicator_.get(), count = exchanges_, table, rank, ranks,
               sends = std::move(sends), receives, timeout = sizes.timeout](const auto& deadline) {
    require_agreement(table.const_data_ptr<int64_t>(), ranks);
    const Message &kept = sends[size_t(rank)], &into = receives[size_t(rank)];
    if (kept.bytes > 0) std::memmove(into.data, kept.data, kept.bytes);
    const uint64_t tag = kExchangeTag | (*count)++;
    std::vector<std::shared_ptr<pycoll::Work>> messages;
    std::exception_ptr error;
    try {
      for (int step = 1; step < ranks; ++step) {  // towards a different rank each, at every step
        const int to = (rank + step) % ranks, from = (rank - step + ranks) % ranks;
        const Message &out = sends[size_t(to)], &in = receives[size_t(from)];
        messages.push_back(communicator->recv(in.data, in.bytes, from, tag, timeout));
        messages.push_back(communicator->send(out.data, out.bytes, to, tag, timeout));
      }
    } catch (...) {
      error = std::current_exception();
    }
    for (const auto& message : messages) {  // all, for they use the buffers
      try {
        message->wait(time_left(deadline));
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  };
  note(launch, results, ++called_);
  auto work = coalescing_ ? coalescing_ : new_work(launch);
  work->take(std::move(launch), results);
  try {
    work->add(communicator_->submit_then(sizes, std::move(move)));
  } catch (...) {
    if (!coalescing_) work->seal();
    throw;
  }
  return finish(std::move(work), opts.asyncOp);
}

// The same of CUDA tensors: the kernel that receives finds out whether the ranks agree.
Backend::WorkPtr Backend::exchange_on_device(Launch launch, std::vector<Message> sends,
                                             const std::vector<Message>& receives, DType dtype,
                                             at::TensorList results, const c10d::AllToAllOptions& opts) {
  const int rank = getRank(), ranks = getSize();
  require_one_device(launch);
  require(disjoint(receives), launch.what(), "outputs share memory with each other; give each its own");
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(launch.device());
  const auto seen = [&](const Message& message) {
    return at::from_blob(message.data, {int64_t(message.bytes)}, bytes);
  };
  if (overlap(sends, receives)) {
    size_t total = 0;
    for (const Message& send : sends) total += send.bytes;
    at::Tensor copy = launch.scratch(int64_t(total), bytes);
    int64_t next = 0;
    for (Message& send : sends) {
      if (send.bytes == 0) continue;
      at::Tensor part = copy.narrow(0, next, int64_t(send.bytes));
      part.copy_(seen(send));
      send.data = part.mutable_data_ptr();
      next += int64_t(send.bytes);
    }
  }
  const Message &kept = sends[size_t(rank)], &into = receives[size_t(rank)];
  require(kept.bytes == into.bytes, launch.what(),
          c10::str("this rank sends itself ", kept.bytes, " bytes, but expects ", into.bytes));
  if (kept.bytes > 0) seen(into).copy_(seen(kept));
  const uint64_t tag = kExchangeTag | uint64_t(dtype);  // as messages between ranks they must be alike in it
  CudaMessages messages;
  for (int step = 1; step < ranks; ++step) {
    const int to = (rank + step) % ranks, from = (rank - step + ranks) % ranks;
    messages.push_back({sends[size_t(to)].data, sends[size_t(to)].bytes, tag, to, 1});
    messages.push_back({receives[size_t(from)].data, receives[size_t(from)].bytes, tag, from, 0});
  }
  ++called_;
  return start_on_device(launch, opts.asyncOp, results, messages, opts.timeout);
}

}  // namespace pycoll::torch_adapter
