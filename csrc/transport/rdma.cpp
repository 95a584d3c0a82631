#include <algorithm>
#include <filesystem>

#include "transport/ucx/information.h"

namespace pycoll::ucx {

std::vector<std::string> rdma_devices() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", error))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace pycoll::ucx
