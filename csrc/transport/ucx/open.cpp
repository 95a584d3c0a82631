#include <algorithm>

#include "core/error.h"
#include "transport/tcp/interfaces.h"
#include "transport/ucx/information.h"
#include "transport/ucx/ucx_network.h"

namespace pycoll {
namespace ucx {
namespace {

std::vector<std::string> interfaces_for(const NetworkOptions& options) {
  std::vector<std::string> names;
  for (const tcp::NetworkInterface& one : tcp::choose_interfaces(options.towards, options.interface))
    if (one.chosen) names.push_back(one.name);
  return names;
}

bool is_rdma(const std::string& transport) {
  return !transport.starts_with("tcp/");
}

}  // namespace

Information information() {
  Information information;
  information.rdma_devices = rdma_devices();
  const Library* library = find_library(&information.passed_over);
  if (library == nullptr) return information;
  information.found = true;
  information.path = library->path;
  information.origin = library->origin;
  information.version = library->version();
  try {
    information.transports = Context(*library, settings_for({}, {})).transports();
  } catch (const Error& error) {
    information.passed_over.push_back(error.what());
  }
  return information;
}

Drives drives_rdma(const NetworkOptions& options) {
  std::vector<std::string> passed_over;
  const Library* library = find_library(&passed_over);
  if (library == nullptr)
    return {false, "no UCX is fit for use" + (passed_over.empty() ? "" : ": " + passed_over.front())};
  const std::string version = "UCX " + library->version() + " (" + library->origin + ") ";
  try {
    const std::vector<std::string> wires =
        Context(*library, settings_for(options, interfaces_for(options))).transports();
    if (std::any_of(wires.begin(), wires.end(), is_rdma)) return {true, ""};
  } catch (const Error& error) {
    return {false, error.what()};
  }
  return {false, version + "cannot use it" +
                     (options.interface.empty() ? "" : " over the interface " + options.interface)};
}

}  // namespace ucx

std::unique_ptr<Network> open_ucx_network(const NetworkOptions& options) {
  std::vector<std::string> passed_over;
  const ucx::Library* library = ucx::find_library(&passed_over);
  if (library == nullptr) {
    std::string text = "group '" + options.group + "': no UCX (libucp) is fit for use; tried:";
    for (const std::string& one : passed_over) text += "\n  " + one;
    throw Unsupported(text);
  }
  return std::make_unique<ucx::UcxNetwork>(*library, options, ucx::interfaces_for(options));
}

}  // namespace pycoll
