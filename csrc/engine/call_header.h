// The calls of a collective as ranks compare them.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "transport/shm/layout.h"

namespace pycoll {

// The root in the header of an install(), which is otherwise a barrier.
inline constexpr int32_t kInstall = -2;

// Equal on two ranks whose calls fit each other.
uint64_t signature_of(const shm::CallHeader& call);

// `parts`: as a CollectiveCall has them.
void set_parts(shm::CallHeader& header, const std::string* parts);

// Throws Mismatch: who called what. `calls`: by rank.
[[noreturn]] void throw_mismatch(const std::string& group, uint64_t sequence,
                                 std::span<const shm::CallHeader> calls);

}  // namespace pycoll
