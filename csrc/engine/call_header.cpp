#include "engine/call_header.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"

namespace pycoll {
namespace {

constexpr uint64_t mix(uint64_t value) {  // the finalizer of SplitMix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// "all_reduce" is allreduce.
bool same_name(std::string_view a, std::string_view b) {
  const auto letters = [](std::string_view name) {
    std::string text(name);
    std::erase(text, '_');
    return text;
  };
  return letters(a) == letters(b);
}

std::string in_words(const shm::CallHeader& call) {
  std::string text(name_of(call.kind));
  if (call.kind == CollectiveKind::Barrier) return call.root == kInstall ? "install (of a table)" : text;
  text += "(" + std::to_string(call.count) + " x " + std::string(name_of(call.dtype));
  if (is_reduction(call.kind)) text += ", " + std::string(name_of(call.op));
  if (is_rooted(call.kind)) text += ", root " + std::to_string(call.root);
  text += ", algorithm " + std::string(call.algorithm) + ")";
  if (call.caller[0] != '\0' && !same_name(call.caller, name_of(call.kind)))
    text += " for " + std::string(call.caller);
  if (call.parts != 0) {
    text += " of " + std::string(call.first_parts);
    if (std::strlen(call.first_parts) == sizeof call.first_parts - 1) text += "...";
  }
  return text;
}

}  // namespace

uint64_t signature_of(const shm::CallHeader& call) {
  const uint64_t kinds = static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                         static_cast<uint64_t>(call.op) << 16 |
                         static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32;
  return mix(mix(call.count + 0x9e3779b97f4a7c15ULL) ^ kinds) ^ call.schedule_hash ^ mix(call.table) ^
         mix(call.parts);
}

void set_parts(shm::CallHeader& header, const std::string* parts) {
  header.parts = 0;
  if (parts == nullptr) return;
  header.parts = 14695981039346656037ULL;  // FNV-1a
  for (const char letter : *parts)
    header.parts = (header.parts ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  header.first_parts[parts->copy(header.first_parts, sizeof header.first_parts - 1)] = '\0';
}

void throw_mismatch(const std::string& group, uint64_t sequence, std::span<const shm::CallHeader> headers) {
  // One entry for each different call, with the ranks that made it.
  std::vector<std::pair<uint64_t, std::vector<int>>> calls;
  for (size_t rank = 0; rank < headers.size(); ++rank) {
    const uint64_t theirs = signature_of(headers[rank]);
    auto found =
        std::find_if(calls.begin(), calls.end(), [&](const auto& call) { return call.first == theirs; });
    if (found == calls.end()) found = calls.insert(calls.end(), {theirs, {}});
    found->second.push_back(static_cast<int>(rank));
  }
  bool tables_differ = false;
  std::string text =
      "group '" + group + "': the ranks' calls differ at collective #" + std::to_string(sequence) + ": ";
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& ranks = calls[i].second;
    text += (i == 0 ? "rank " : "; rank ") + std::to_string(ranks[0]);
    for (size_t k = 1; k < std::min<size_t>(ranks.size(), 8); ++k) text += ", " + std::to_string(ranks[k]);
    if (ranks.size() > 8) text += " and " + std::to_string(ranks.size() - 8) + " more";
    text += " called " + in_words(headers[static_cast<size_t>(ranks[0])]);
    tables_differ |= headers[static_cast<size_t>(ranks[0])].table !=
                     headers[static_cast<size_t>(calls[0].second[0])].table;
  }
  if (tables_differ) text += ". The ranks' decision tables differ: install the same one on all ranks";
  throw Mismatch(text +
                 ". No data was delivered; make all ranks call the same collectives in the same order.");
}

}  // namespace pycoll
