#include "transport/ucx/library.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <tuple>

#include "transport/ucx/information.h"

namespace pycoll::ucx {
namespace {

constexpr const char* kName = "libucp.so.0";
// 1.14 is the first that takes the handle of registered memory with each operation and whose
// ucp_config_modify reaches the settings of transports, such as TCP's timeouts.
constexpr auto kOldest = std::make_tuple(1U, 14U);

std::mutex mutex;
std::string search_path;
std::unique_ptr<Library> found;
std::vector<std::string> notes;  // why others were passed over when `found` was

template <class Function>
void look_up(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
}

// The name of the first function that is missing, or null.
const char* look_up_all(void* handle, Library& library) {
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    look_up(handle, name, function);
    if (function == nullptr && missing == nullptr) missing = name;
  };
  need("ucp_get_version", library.get_version);
  need("ucp_config_read", library.config_read);
  need("ucp_config_modify", library.config_modify);
  need("ucp_config_release", library.config_release);
  need("ucp_init_version", library.init_version);
  need("ucp_cleanup", library.cleanup);
  need("ucp_context_print_info", library.context_print_info);
  need("ucp_mem_map", library.mem_map);
  need("ucp_mem_unmap", library.mem_unmap);
  need("ucp_worker_create", library.worker_create);
  need("ucp_worker_destroy", library.worker_destroy);
  need("ucp_worker_query", library.worker_query);
  need("ucp_worker_release_address", library.worker_release_address);
  need("ucp_worker_progress", library.worker_progress);
  need("ucp_worker_get_efd", library.worker_get_efd);
  need("ucp_worker_arm", library.worker_arm);
  need("ucp_worker_flush_nbx", library.worker_flush_nbx);
  need("ucp_worker_set_am_recv_handler", library.worker_set_am_recv_handler);
  need("ucp_ep_create", library.ep_create);
  need("ucp_ep_query", library.ep_query);
  need("ucp_ep_close_nbx", library.ep_close_nbx);
  need("ucp_am_send_nbx", library.am_send_nbx);
  need("ucp_am_recv_data_nbx", library.am_recv_data_nbx);
  need("ucp_request_check_status", library.request_check_status);
  need("ucp_request_free", library.request_free);
  need("ucs_status_string", library.status_string);
  return missing;
}

std::string path_of(void* function, const std::string& otherwise) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

// Some versions install handlers for crashes when they are loaded, which would take Python's faulthandler's
// place and freeze a process that its user wants to see die.
class SignalHandlersKept {
 public:
  SignalHandlersKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &kept_[i]);
  }
  ~SignalHandlersKept() {
    for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &kept_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  std::array<struct sigaction, kSignals.size()> kept_;
};

struct Attempt {
  std::unique_ptr<Library> library;
  std::string why_not;
};

Attempt attempt(const std::string& path, const std::string& origin) {
  const SignalHandlersKept kept;
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return {nullptr, why != nullptr ? why : "cannot be loaded"};
  }
  auto library = std::make_unique<Library>();
  library->origin = origin;
  const char* missing = look_up_all(handle, *library);
  if (library->get_version != nullptr)
    library->get_version(&library->major, &library->minor, &library->release);
  std::string why_not;
  if (std::make_tuple(library->major, library->minor) < kOldest)
    why_not = "version " + library->version() + " is older than 1.14";
  else if (missing != nullptr)
    why_not = "version " + library->version() + " lacks " + missing;
  if (!why_not.empty()) {
    ::dlclose(handle);
    return {nullptr, why_not};
  }
  library->path = path_of(reinterpret_cast<void*>(library->get_version), path);
  return {std::move(library), ""};
}

bool is_loaded(const char* name) {
  void* handle = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) ::dlclose(handle);
  return handle != nullptr;
}

// UCX's warnings are meant for its developers; what goes wrong reaches the user as pycoll's errors. Where
// others use UCX in this process, or the user has asked for its log, it stays as it is.
void be_quiet() {
  if (std::getenv("UCX_LOG_LEVEL") != nullptr) return;
  if (void* handle = ::dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD)) {
    ucs_status_t (*set)(const char*, const char*) = nullptr;
    look_up(handle, "ucs_global_opts_set_value", set);
    if (set != nullptr) set("LOG_LEVEL", "fatal");
    ::dlclose(handle);
  }
}

struct Candidate {
  std::string origin;
  std::string path;  // empty: there is none
  std::string why_none;
};

std::string in_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? path + "/" + kName : path;
}

// The libucx wheel's folder, as said, or where it is when it is installed beside pycoll.
std::string wheel_folder() {
  if (!search_path.empty()) return search_path;
  const std::string own = path_of(reinterpret_cast<void*>(&set_search_path), "");
  const std::filesystem::path beside = std::filesystem::path(own).parent_path().parent_path() / "libucx/lib";
  std::error_code ignored;
  return std::filesystem::exists(beside / kName, ignored) ? beside.string() : "";
}

std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
  const char* pinned = std::getenv("PYCOLL_UCX");
  if (pinned != nullptr && *pinned != '\0') all.push_back({"PYCOLL_UCX", in_folder(pinned), ""});
  const Candidate system = {"the system's", kName, ""};
  const std::string folder = wheel_folder();
  const Candidate wheel = {"the libucx wheel's", folder.empty() ? "" : in_folder(folder),
                           "not installed (pip install 'pycoll[ucx]')"};
  // The wheel is the newer one as a rule, but knows TCP only.
  const bool rdma = !rdma_devices().empty();
  all.push_back(rdma ? system : wheel);
  all.push_back(rdma ? wheel : system);
  return all;
}

}  // namespace

std::string Library::version() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

void set_search_path(const std::string& folder) {
  const std::lock_guard lock(mutex);
  search_path = folder;
}

const Library* find_library(std::vector<std::string>* passed_over) {
  const std::lock_guard lock(mutex);
  const auto report = [&](const Library* library) {
    if (passed_over != nullptr) *passed_over = notes;
    return library;
  };
  if (found) return report(found.get());
  notes.clear();
  if (is_loaded(kName)) {
    // A second one would be bound to the libraries of the first.
    Attempt loaded = attempt(kName, "already loaded in this process");
    if (loaded.library) {
      const char* pinned = std::getenv("PYCOLL_UCX");
      if (pinned != nullptr && *pinned != '\0') {
        std::error_code ignored;
        if (!std::filesystem::equivalent(in_folder(pinned), loaded.library->path, ignored))
          notes.push_back(std::string("PYCOLL_UCX=") + pinned +
                          ": another libucp is already loaded in this process, by torch, MPI or another "
                          "package; import pycoll first");
      }
      found = std::move(loaded.library);
    } else {
      notes.push_back("the libucp.so.0 already loaded in this process: " + loaded.why_not);
    }
    return report(found.get());
  }
  for (const Candidate& candidate : candidates()) {
    if (candidate.path.empty()) {
      notes.push_back(candidate.origin + ": " + candidate.why_none);
      continue;
    }
    Attempt result = attempt(candidate.path, candidate.origin);
    if (result.library) {
      found = std::move(result.library);
      be_quiet();
      break;
    }
    // The system's path is a bare name, which the reason repeats.
    const std::string where = candidate.path == kName ? "" : " " + candidate.path;
    notes.push_back(candidate.origin + where + ": " + result.why_not);
    if (candidate.origin == "PYCOLL_UCX") break;  // what the user names is taken or nothing is
    if (is_loaded("libucs.so.0")) {
      notes.push_back("others were not tried: the old one's libraries cannot be unloaded");
      break;
    }
  }
  return report(found.get());
}

}  // namespace pycoll::ucx
