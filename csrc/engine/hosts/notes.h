// Fixed parts of the messages between hosts. Both ends are of one build (the bootstrap sees to that) and of
// one byte order (all that pycoll runs on are little-endian).
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/hosts/links.h"

namespace pycoll {

struct ExchangeNote {
  NoteKind kind = NoteKind::Exchange;
  uint8_t reserved[3] = {};
  uint32_t round = 0;
  uint64_t id = 0;
  // blocks follow, each a BlockHead and what it says
};

struct FailureNote {
  NoteKind kind = NoteKind::Failure;
  uint8_t failure = 0;  // shm::FailureKind
  uint8_t reserved[2] = {};
  int32_t reporter = 0;
  // the text follows
};

// Whom does that rank wait for?
struct QuestionNote {
  NoteKind kind = NoteKind::Question;
  uint8_t reserved[3] = {};
  uint32_t number = 0;
};

struct AnswerNote {
  NoteKind kind = NoteKind::Answer;
  uint8_t reserved[3] = {};
  uint32_t number = 0;
  int32_t waits_for = -1;
};

template <class Note>
std::span<const std::byte> bytes_of(const Note& note) {
  static_assert(std::is_trivially_copyable_v<Note>);
  return std::as_bytes(std::span(&note, 1));
}

// False: too short to be one.
template <class Note>
bool read_note(std::span<const std::byte> bytes, Note& note) {
  static_assert(std::is_trivially_copyable_v<Note>);
  if (bytes.size() < sizeof note) return false;
  std::memcpy(&note, bytes.data(), sizeof note);
  return true;
}

}  // namespace pycoll
