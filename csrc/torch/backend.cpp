#include "torch/backend.h"

#include <ATen/record_function.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <vector>

namespace pycoll::torch_adapter {
namespace {

constexpr auto kTimeToFinish = std::chrono::seconds(5);
constexpr TorchCall kCoalesced{c10d::OpType::COALESCED, "pycoll:coalesced"};

std::mutex live_mutex;
// Never destroyed: groups may outlive static destructors.
std::vector<c10::weak_intrusive_ptr<Backend>>& live_backends() {
  static auto* backends = new std::vector<c10::weak_intrusive_ptr<Backend>>;
  return *backends;
}

}  // namespace

Backend::Backend(Joined joined, Rendezvous rendezvous, std::shared_ptr<const Accelerator> accelerator)
    : c10d::Backend(joined.communicator->rank(), joined.communicator->ranks()),
      communicator_(std::move(joined.communicator)),
      peers_(std::move(joined.peers)),
      rendezvous_(std::move(rendezvous)),
      options_(c10::make_intrusive<GroupOptions>(
          std::chrono::duration_cast<std::chrono::milliseconds>(communicator_->options().timeout))),
      accelerator_(std::move(accelerator)),
      enter_device_([this](c10::Device device, const TorchCall& what) {
        const auto gpus = open_gpus(device, what.name());
        gpus->follow_current_stream(gpus->stream());
        return gpus->stream();
      }),
      process_(getpid()) {
  options_->group_name = communicator_->options().group;
  if (auto* recorder = FlightRecorder::get()) {
    std::vector<int> members = rendezvous_.global_ranks;
    for (int r = int(members.size()); r < getSize(); ++r) members.push_back(r);
    flight_group_ = recorder->add_group(options_->group_name, std::move(members), getRank());
  }
}

c10::intrusive_ptr<Backend> Backend::create(const Rendezvous& rendezvous,
                                            std::shared_ptr<const Accelerator> accelerator) {
  auto backend = c10::make_intrusive<Backend>(join(rendezvous), rendezvous, std::move(accelerator));
  std::lock_guard lock(live_mutex);
  std::erase_if(live_backends(), [](const auto& old) { return old.expired(); });
  live_backends().emplace_back(backend);
  return backend;
}

Backend::~Backend() {
  leave_for_good();
}

void Backend::leave_for_good() {
  // Python may drop its last reference holding the GIL, for which the threads that are to end may wait.
  std::optional<pybind11::gil_scoped_release> released;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released.emplace();
  if (getpid() == process_)
    shutdown();
  else {  // The threads and peers are the parent's; the least harm is to leave everything as it is.
    new std::shared_ptr<Communicator>(std::move(communicator_));
    new std::shared_ptr<CudaGroup>(std::move(gpus_));
  }
}

void Backend::shutdown() {
  if (getpid() != process_ || left_.exchange(true)) return;
  works_->wait_for_none(kTimeToFinish);
  if (const auto gpus = this->gpus()) gpus->leave(kTimeToFinish);
  communicator_->close();
  peers_ = nullptr;
}

void Backend::shutdown_all() {
  std::vector<c10::intrusive_ptr<Backend>> backends;
  {
    std::lock_guard lock(live_mutex);
    for (const auto& backend : live_backends())
      if (auto alive = backend.lock()) backends.push_back(std::move(alive));
  }
  for (auto& backend : backends) backend->shutdown();
}

void Backend::abort() {
  translating_errors([&] {
    const std::string reason = "rank " + std::to_string(getRank()) + " aborted the process group";
    if (const auto gpus = this->gpus()) gpus->watchdog().fail(reason);
    communicator_->abort(reason);
  });
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  translating_errors([&] {
    communicator_->set_timeout(timeout);
    options_->timeout = timeout;
  });
}

c10::intrusive_ptr<AsyncWork> Backend::new_work(const Launch& launch, bool awaited) {
  return c10::make_intrusive<AsyncWork>(getRank(), launch, called_, works_, awaited);
}

void Backend::note(Launch& launch, at::TensorList results, uint64_t called) {
  if (!flight_group_ || launch.flight.open()) return;
  FlightRecorder::Entry entry;
  entry.group = flight_group_;
  entry.name = launch.what().title;
  entry.collective = called;
  entry.message = messages_;
  entry.timeout = options_->timeout;
  if (!launch.calls.empty() && launch.calls[0].timeout)
    entry.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(*launch.calls[0].timeout);
  launch.flight =
      FlightEntry(FlightRecorder::get()->begin(std::move(entry), getGroupDesc(), launch.shown(), results));
}

void Backend::note_message(Launch& launch, at::TensorList tensors, bool sent, int peer, int tag) {
  if (!flight_group_) return;
  FlightRecorder::Entry entry;
  entry.group = flight_group_;
  entry.name = launch.what().title;
  entry.collective = called_;
  entry.message = ++messages_;
  entry.is_message = true;
  entry.peer = peer;
  entry.tag = tag;
  entry.timeout = options_->timeout;
  const at::TensorList none;
  launch.flight = FlightEntry(FlightRecorder::get()->begin(std::move(entry), getGroupDesc(),
                                                           sent ? tensors : none, sent ? none : tensors));
}

Backend::WorkPtr Backend::start(Launch& launch, bool async, at::TensorList results) {
  require_one_device(launch);
  ++called_;
  if (!launch.device().is_cpu()) return start_on_device(launch, async, results);
  note(launch, results, called_);
  launch.name_parts();
  if (!async && !coalescing_) {
    std::optional<ProfiledCall> record;
    if (at::hasCallbacks()) record.emplace(getRank(), launch);
    std::exception_ptr error;  // as submit_all() has it
    for (const CollectiveCall& call : launch.calls) {
      try {
        communicator_->run(call);
      } catch (const Error& e) {
        if (!error) error = std::current_exception();
        launch.flight.failed(e.what());
        if (dynamic_cast<const Mismatch*>(&e) != nullptr) break;
      }
    }
    if (error) std::rethrow_exception(error);
    launch.write_back();
    launch.flight.done();
    return ended_work();
  }
  auto work = coalescing_ ? coalescing_ : new_work(launch);
  const auto calls = std::move(launch.calls);
  work->take(std::move(launch), results);
  try {
    if (calls.size() == 1)
      work->add(communicator_->submit(calls[0]));
    else if (!calls.empty())
      work->add(communicator_->submit_all({calls.begin(), calls.end()}));
  } catch (...) {
    if (!coalescing_) work->seal();
    throw;
  }
  return finish(std::move(work), async);
}

// What a call returns: a work that collects others is sealed by endCoalescing().
Backend::WorkPtr Backend::finish(c10::intrusive_ptr<AsyncWork> work, bool async) {
  if (work == coalescing_) return async ? WorkPtr(work) : ended_work();
  work->seal();
  if (async) return work;
  work->wait(kNoTimeout);
  return ended_work();
}

void Backend::startCoalescing() {
  if (coalescing_) C10_THROW_ERROR(ValueError, "pycoll: coalescing has been started already; end it first");
  coalescing_ = new_work(Launch(kCoalesced));
  coalescing_device_.reset();
  coalescing_failed_ = false;
}

Backend::WorkPtr Backend::endCoalescing() {
  if (std::exchange(coalescing_failed_, false))
    C10_THROW_ERROR(DistError, "pycoll: coalescing ended before, with the error of one of its calls");
  if (!coalescing_) C10_THROW_ERROR(ValueError, "pycoll: coalescing has not been started");
  auto work = std::exchange(coalescing_, nullptr);
  work->seal();
  if (!coalescing_on_device_) return work;
  auto on_device = std::exchange(coalescing_on_device_, nullptr);
  seal_on_device(*on_device);
  return on_device;
}

void Backend::give_up_coalescing() noexcept {
  if (!coalescing_) return;
  coalescing_failed_ = true;
  try {
    std::exchange(coalescing_, nullptr)->seal();
    if (const auto on_device = std::exchange(coalescing_on_device_, nullptr)) {
      kept_messages_.clear();  // none was sent
      seal_on_device(*on_device);
      on_device->follow();
    }
  } catch (const std::exception& e) {
    TORCH_WARN("pycoll: calls that were coalesced before one failed: ", e.what());
  }
}

void Backend::require_one_device(const Launch& launch) {
  if (!coalescing_) return;
  const c10::Device device = launch.device();
  if (coalescing_device_.value_or(device) != device)
    C10_THROW_ERROR(ValueError, c10::str("pycoll ", launch.what().name(),
                                         ": a coalescing manager takes tensors of one device, got one on ",
                                         device, " after one on ", *coalescing_device_,
                                         "; give the tensors of each device a coalescing manager each"));
  coalescing_device_ = device;
}

const at::Tensor& Backend::only(const Tensors& tensors, const TorchCall& what) const {
  require(tensors.size() == 1, what, "takes one tensor, got " + std::to_string(tensors.size()));
  return tensors[0];
}

int Backend::root_of(int64_t root, const TorchCall& what) const {
  require(root >= 0 && root < getSize(), what,
          "the root must be a rank of this group, 0 to " + std::to_string(getSize() - 1) + ", got " +
              std::to_string(root));
  return int(root);
}

const Backend::Tensors& Backend::only_list(const std::vector<Tensors>& lists, const TorchCall& what) const {
  require(lists.size() == 1, what, "takes one list of tensors, got " + std::to_string(lists.size()));
  require(lists[0].size() == size_t(getSize()), what,
          "the list must hold a tensor for each of " + std::to_string(getSize()) + " ranks, got " +
              std::to_string(lists[0].size()));
  return lists[0];
}

}  // namespace pycoll::torch_adapter
