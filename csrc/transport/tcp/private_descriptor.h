// A descriptor that children made by fork() do not keep. Were a data loader's workers to hold copies of a
// killed rank's sockets, its peers would not learn of its death before the last worker is gone.
#pragma once
#include <utility>

#include "core/file_descriptor.h"

namespace pycoll::tcp {

class PrivateDescriptor {
 public:
  PrivateDescriptor() = default;
  PrivateDescriptor(FileDescriptor descriptor);  // NOLINT: implicit on purpose
  PrivateDescriptor(PrivateDescriptor&& other) noexcept = default;
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~PrivateDescriptor();
  int get() const { return descriptor_.get(); }
  explicit operator bool() const { return static_cast<bool>(descriptor_); }

 private:
  FileDescriptor descriptor_;
};

}  // namespace pycoll::tcp
