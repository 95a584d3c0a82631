// A datagram socket with a name of its own in the abstract name space: it wakes a rank of this host that
// sleeps in poll(2), where no futex can.
#pragma once
#include <string>

#include "core/file_descriptor.h"

namespace pycoll::shm {

class Bell {
 public:
  Bell();
  const std::string& name() const { return name_; }
  int descriptor() const { return socket_.get(); }
  void clear();  // takes what rang it

 private:
  std::string name_;
  FileDescriptor socket_;
};

void ring_bell(const char* name);  // lost when nobody has that name any more

}  // namespace pycoll::shm
