#include "torch/waits.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

namespace pycoll::torch_adapter {
namespace {

constexpr size_t kMostInAChain = 16;
constexpr char kBetween = '|';  // of a line: members | those who are missing

// Several threads of a process may each be making a group, and share one note.
struct Note {
  std::mutex mutex;
  std::map<const ToldWait*, std::string> lines;
  bool stale = false;  // says what is over

  void write(c10d::Store& notes, int self) {
    std::string text;
    for (const auto& [wait, line] : lines) text += line + '\n';
    notes.set("making/" + std::to_string(self), text);
    stale = false;
  }
};

// Never destroyed: threads may outlive static destructors.
Note& own_note() {
  static auto* note = new Note;
  return *note;
}

std::vector<int> ranks_in(const std::string& text) {
  std::vector<int> ranks;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) ranks.push_back(std::stoi(word));
  return ranks;
}

std::string note_of(c10d::Store& notes, int rank) {
  const std::string key = "making/" + std::to_string(rank);
  return notes.check({key}) ? notes.get_to_str(key) : "";
}

std::string rank_or_ranks(const std::string& ranks) {
  return (ranks.find(',') == std::string::npos ? "rank " : "ranks ") + ranks;
}

}  // namespace

std::string comma_separated(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

ToldWait::ToldWait(c10::intrusive_ptr<c10d::Store> notes, const std::vector<int>& members, int self)
    : notes_(std::move(notes)), members_(comma_separated(members)), self_(self) {
  if (members.empty()) notes_ = nullptr;
  if (!notes_) return;
  Note& note = own_note();
  const std::lock_guard lock(note.mutex);
  if (note.stale) note.write(*notes_, self_);
}

ToldWait::~ToldWait() {
  if (told_.empty()) return;
  Note& note = own_note();
  const std::lock_guard lock(note.mutex);
  note.lines.erase(this);
  note.stale = true;
  if (left_) return;
  try {
    note.write(*notes_, self_);
  } catch (const std::exception&) {  // the store may be what failed
  }
}

void ToldWait::tell(const std::vector<int>& missing) {
  if (!notes_) return;
  std::string line = members_ + kBetween + comma_separated(missing);
  if (line == told_) return;
  told_ = std::move(line);
  Note& note = own_note();
  const std::lock_guard lock(note.mutex);
  note.lines[this] = told_;
  note.write(*notes_, self_);
}

std::string ToldWait::chain_from(const std::vector<int>& missing) const {
  if (!notes_) return "";
  std::string chain;
  std::deque<int> next(missing.begin(), missing.end());
  std::set<int> seen(missing.begin(), missing.end());
  seen.insert(self_);
  for (size_t links = 0; !next.empty() && links < kMostInAChain; next.pop_front()) {
    std::istringstream lines(note_of(*notes_, next.front()));
    for (std::string line; std::getline(lines, line) && links < kMostInAChain; ++links) {
      const size_t between = line.find(kBetween);
      const std::string members = line.substr(0, between), waited_for = line.substr(between + 1);
      chain += (chain.empty() ? "rank " : "; rank ") + std::to_string(next.front()) + " waits for " +
               rank_or_ranks(waited_for) + " to make a group of ranks " + members;
      for (const int r : ranks_in(waited_for))
        if (seen.insert(r).second) next.push_back(r);
    }
  }
  return chain;
}

}  // namespace pycoll::torch_adapter
