#include "transport/ucx/context.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "transport/ucx/information.h"

namespace pycoll::ucx {
namespace {

std::string in_seconds(double seconds) {
  return std::to_string(static_cast<int64_t>(std::ceil(seconds * 1000))) + "ms";
}

// "mlx5_0:1" of "ib0": the adapter behind a network interface, if it is one that does RDMA.
std::string rdma_device_of(const std::string& interface) {
  std::error_code error;
  const std::string folder = "/sys/class/net/" + interface;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/device/infiniband", error)) {
    int port = 0;
    std::ifstream(folder + "/dev_port") >> port;
    return entry.path().filename().string() + ":" + std::to_string(port + 1);
  }
  return "";
}

std::string devices_of(const std::vector<std::string>& interfaces) {
  std::string devices;
  const auto add = [&](const std::string& device) {
    if (!device.empty()) devices += (devices.empty() ? "" : ",") + device;
  };
  for (const std::string& interface : interfaces) {
    add(rdma_device_of(interface));
    add(interface);
  }
  return devices;
}

// How often TCP repeats its first packet, after 1, 2, 4 ... seconds, before the time is over.
int repetitions_within(double seconds) {
  return std::clamp(static_cast<int>(std::log2(seconds + 1)), 1, 10);
}

}  // namespace

Settings settings_for(const NetworkOptions& options, const std::vector<std::string>& interfaces) {
  const double silence = std::chrono::duration<double>(options.silence).count();
  const double connect = std::chrono::duration<double>(options.connect_timeout).count();
  const bool rdma = !rdma_devices().empty();
  Settings settings = {
      // Shared memory inside a host is pycoll's own, and UCX's cannot tell that a peer has died.
      {"TLS", rdma ? "ib,tcp" : "tcp"},
      {"TCP_CONN_NB", "y"},
      {"TCP_SYN_CNT", std::to_string(repetitions_within(connect))},
      {"TCP_USER_TIMEOUT", in_seconds(silence * 7 / 8)},  // the kernel looks once a second only
      {"TCP_KEEPIDLE", in_seconds(std::max(1.0, std::floor(silence / 4)))},  // and where nothing is
      {"TCP_KEEPINTVL", "1s"},
      {"TCP_KEEPCNT", std::to_string(std::max(1, static_cast<int>(std::ceil(silence))))},
      {"KEEPALIVE_INTERVAL", in_seconds(silence / 8)},  // after so long it first asks TCP to look
  };
  // A stream is bounded by its ring, so that nothing need be asked for. Over TCP asking costs a round trip a
  // piece, and whoever leaves would have to wait until the other looks.
  if (!rdma) settings.emplace_back("RNDV_THRESH", "inf");
  if (!interfaces.empty()) settings.emplace_back("NET_DEVICES", devices_of(interfaces));
  return settings;
}

Context::Context(const Library& library, const Settings& settings) : library_(library) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = library.config_read(nullptr, nullptr, &config);
  if (status != UCS_OK)
    throw Error(std::string("UCX cannot read its configuration: ") + library.status_string(status));
  for (const auto& [name, value] : settings) {
    // A setting that this version does not know stays at its default.
    if (std::getenv(("UCX_" + name).c_str()) == nullptr)
      library.config_modify(config, name.c_str(), value.c_str());
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "pycoll";
  status = library.init_version(1, 14, &params, config, &context_);
  library.config_release(config);
  if (status != UCS_OK)
    throw Error("UCX " + library.version() + " (" + library.path +
                ") cannot be used: " + library.status_string(status));
}

Context::~Context() {
  if (context_ != nullptr) library_.cleanup(context_);
}

std::vector<std::string> Context::transports() const {
  // UCP tells them in print only: lines "#  resource 2 :  md 1  dev 1  flags -- tcp/eth0".
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) return {};
  library_.context_print_info(context_, stream);
  std::fclose(stream);
  std::istringstream lines(std::string(text, size));
  std::free(text);
  std::vector<std::string> transports;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("resource") == std::string::npos) continue;
    const std::string last = line.substr(line.find_last_of(' ') + 1);
    if (last.find('/') != std::string::npos) transports.push_back(last);
  }
  return transports;
}

Worker::Worker(Context& context) : library_(context.library()) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = library_.worker_create(context.handle(), &params, &worker_);
  if (status == UCS_OK) status = library_.worker_get_efd(worker_, &descriptor_);
  if (status != UCS_OK) {
    if (worker_ != nullptr) library_.worker_destroy(worker_);
    throw Error(std::string("UCX has no transport for this machine's network: ") +
                library_.status_string(status));
  }
}

Worker::~Worker() {
  library_.worker_destroy(worker_);
}

std::string Worker::address() const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY;
  const ucs_status_t status = library_.worker_query(worker_, &attributes);
  if (status != UCS_OK)
    throw Error(std::string("UCX does not tell its address: ") + library_.status_string(status));
  std::string address(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  library_.worker_release_address(worker_, attributes.address);
  return address;
}

RegisteredMemory::RegisteredMemory(Context& context, void* address, size_t size) : context_(context) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = address;
  params.length = size;
  if (context.library().mem_map(context.handle(), &params, &memory_) != UCS_OK) memory_ = nullptr;
}

RegisteredMemory::~RegisteredMemory() {
  if (memory_ != nullptr) context_.library().mem_unmap(context_.handle(), memory_);
}

}  // namespace pycoll::ucx
