#include "cuda/table.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/error.h"

namespace pycoll::cuda {
namespace {

struct Draft {
  Kind kind;
  int32_t piece;
  int32_t user_block = 0;
  std::vector<uint32_t> waits = {};
  std::vector<uint32_t> signals = {};
  std::vector<int32_t> sources = {};
};

// A piece at a rank.
struct PieceState {
  int writer = -1;                      // the instruction that made its present value
  std::vector<uint32_t> readers;        // flags of those that read this value, or will
  std::vector<uint32_t> aside_readers;  // the same, of the snapshot
};

using Place = std::pair<int32_t, int32_t>;  // rank, piece

class Builder {
 public:
  explicit Builder(const Schedule& schedule)
      : collective_(schedule.collective), transfers_(schedule.transfers) {
    const auto ranks = static_cast<size_t>(collective_.ranks);
    drafts_.resize(ranks);
    states_.assign(ranks, std::vector<PieceState>(static_cast<size_t>(collective_.pieces)));
    std::stable_sort(transfers_.begin(), transfers_.end(), [](const Transfer& a, const Transfer& b) {
      return a.round != b.round ? a.round < b.round : a.piece < b.piece;
    });
    count_swaps();
  }

  Tables build() {
    load();
    for_each_round([this](const Round& round) { add(round); });
    store();
    return finish();
  }

 private:
  struct Round {
    std::map<Place, std::vector<Transfer>> sends;     // by source and piece
    std::map<Place, std::vector<Transfer>> receives;  // by destination and piece
  };

  template <class Visit>
  void for_each_round(const Visit& visit) const {
    for (size_t begin = 0; begin < transfers_.size();) {
      Round round;
      size_t end = begin;
      for (; end < transfers_.size() && transfers_[end].round == transfers_[begin].round; ++end) {
        const Transfer& t = transfers_[end];
        round.sends[{t.src, t.piece}].push_back(t);
        round.receives[{t.dst, t.piece}].push_back(t);
      }
      visit(round);
      begin = end;
    }
  }

  // Whether a transfer and its mirror image are all that happens to the piece at both ranks.
  static bool is_swap(const Round& round, const Transfer& t) {
    if (t.action != Action::Reduce) return false;
    const auto only = [](const std::map<Place, std::vector<Transfer>>& all, Place place, int32_t src,
                         int32_t dst) {
      const auto found = all.find(place);
      return found != all.end() && found->second.size() == 1 && found->second[0].src == src &&
             found->second[0].dst == dst && found->second[0].action == Action::Reduce;
    };
    return only(round.sends, {t.src, t.piece}, t.src, t.dst) &&
           only(round.sends, {t.dst, t.piece}, t.dst, t.src) &&
           only(round.receives, {t.src, t.piece}, t.dst, t.src) &&
           only(round.receives, {t.dst, t.piece}, t.src, t.dst);
  }

  void count_swaps() {
    swaps_.assign(static_cast<size_t>(collective_.ranks), 0);
    for_each_round([this](const Round& round) {
      for (const auto& [place, received] : round.receives)
        if (is_swap(round, received[0])) ++swaps_[static_cast<size_t>(place.first)];
    });
  }

  // The rank with fewer swaps does the work (with one late rank, its many partners); equals take turns.
  int executor(const Transfer& t) const {
    const int a = std::min(t.src, t.dst), b = std::max(t.src, t.dst);
    const int of_a = swaps_[static_cast<size_t>(a)], of_b = swaps_[static_cast<size_t>(b)];
    if (of_a != of_b) return of_a < of_b ? a : b;
    return (t.piece + t.round) % 2 == 0 ? a : b;
  }

  PieceState& state(int rank, int piece) {
    return states_[static_cast<size_t>(rank)][static_cast<size_t>(piece)];
  }
  Draft& draft(int rank, int index) { return drafts_[static_cast<size_t>(rank)][static_cast<size_t>(index)]; }
  int append(int rank, Draft draft) {
    auto& program = drafts_[static_cast<size_t>(rank)];
    program.push_back(std::move(draft));
    return static_cast<int>(program.size()) - 1;
  }

  // A new flag that instruction `by` of rank `from` raises at rank `to`; returned as `to` names it.
  uint32_t raise(int from, int by, int to) {
    const uint32_t slot = slots_[{from, to}]++;
    if (slot >= kMostSlots) throw Unsupported("a schedule for CUDA may have 4194304 flags between two ranks");
    draft(from, by).signals.push_back(flag_of(to, slot));
    return flag_of(from, slot);
  }

  static void move_to(std::vector<uint32_t>& waits, std::vector<uint32_t>& from) {
    waits.insert(waits.end(), from.begin(), from.end());
    from.clear();
  }

  // Each rank begins with pieces of its own, so that not all go to one rank first.
  std::vector<int32_t> pieces_in_order(int rank) const {
    std::vector<int32_t> order;
    const auto first = static_cast<int32_t>(int64_t{rank} * collective_.pieces / collective_.ranks);
    for (int32_t i = 0; i < collective_.pieces; ++i) order.push_back((first + i) % collective_.pieces);
    return order;
  }

  int pieces_per_block() const { return collective_.pieces / collective_.pieces_multiple(); }

  void load() {
    std::vector<std::vector<bool>> used(states_.size(),
                                        std::vector<bool>(static_cast<size_t>(collective_.pieces)));
    for (const Transfer& t : transfers_)
      for (const int rank : {t.src, t.dst})
        used[static_cast<size_t>(rank)][static_cast<size_t>(t.piece)] = true;
    for (int rank = 0; rank < collective_.ranks; ++rank)
      for (const int32_t piece : pieces_in_order(rank)) {
        if (!collective_.holds_before(rank, piece)) continue;
        if (!used[static_cast<size_t>(rank)][static_cast<size_t>(piece)] &&
            !collective_.owed_after(rank, piece))
          continue;
        const int index = collective_.input_index(rank, piece);
        state(rank, piece).writer =
            append(rank, {.kind = Kind::Load, .piece = piece, .user_block = index / pieces_per_block()});
      }
  }

  void add(const Round& round) {
    std::map<Place, int> asides;       // snapshots of this round
    std::map<Place, uint32_t> offers;  // flags by which pieces are offered for a swap, by the offering place
    std::vector<Transfer> awaited;
    for (const auto& [place, received] : round.receives) {
      const auto [rank, piece] = place;
      const Transfer& t = received[0];
      if (is_swap(round, t)) {
        if (executor(t) != rank) offers[place] = offer(rank, piece, t.src);
      } else if (round.sends.contains(place)) {
        asides[place] = snapshot(rank, piece);
      }
    }

    // Flags are raised by the instruction that made a piece's value before the round: writers stay as they
    // are until all reads are noted.
    std::map<Place, int> writers;
    std::map<Place, uint32_t> swapped;
    for (int rank = 0; rank < collective_.ranks; ++rank) {
      auto begin = round.receives.lower_bound({rank, 0}), end = round.receives.lower_bound({rank + 1, 0});
      if (begin == end) continue;
      const auto first = static_cast<int32_t>(int64_t{rank} * collective_.pieces / collective_.ranks);
      const auto middle = round.receives.lower_bound({rank, first});
      const auto visit = [&](auto from, auto to) {
        for (auto it = from; it != to; ++it) {
          const auto& [place, received] = *it;
          const Transfer& t = received[0];
          if (!is_swap(round, t)) {
            writers[place] = receive(rank, received, asides);
          } else if (executor(t) == rank) {
            const Place other{t.src, t.piece};
            writers[place] = swap(rank, t, offers.at(other));
            swapped[other] = raise(rank, writers[place], t.src);
          } else {
            awaited.push_back(t);
          }
        }
      };
      visit(middle, end);
      visit(begin, middle);
    }
    for (const Transfer& t : awaited) {
      const Place place{t.dst, t.piece};
      writers[place] = append(t.dst, {.kind = Kind::Pass, .piece = t.piece, .waits = {swapped.at(place)}});
    }
    for (const auto& [place, writer] : writers) state(place.first, place.second).writer = writer;
  }

  int snapshot(int rank, int32_t piece) {
    tables_.snapshots = true;
    Draft made{.kind = Kind::Snapshot, .piece = piece};
    move_to(made.waits, state(rank, piece).aside_readers);
    return append(rank, std::move(made));
  }

  // The piece may be overwritten as soon as earlier rounds have read it; with none, as soon as it is made.
  uint32_t offer(int rank, int32_t piece, int to) {
    PieceState& at = state(rank, piece);
    if (at.readers.empty()) return raise(rank, at.writer, to);
    Draft made{.kind = Kind::Pass, .piece = piece};
    move_to(made.waits, at.readers);
    return raise(rank, append(rank, std::move(made)), to);
  }

  int receive(int rank, const std::vector<Transfer>& received, const std::map<Place, int>& asides) {
    const int32_t piece = received[0].piece;
    const bool reduces = received[0].action == Action::Reduce;
    Draft made{.kind = reduces ? Kind::Reduce : Kind::Copy, .piece = piece};
    move_to(made.waits, state(rank, piece).readers);
    const int index = append(rank, std::move(made));
    for (const Transfer& t : received) {
      const auto aside = asides.find({t.src, piece});
      PieceState& source = state(t.src, piece);
      const bool is_aside = aside != asides.end();
      const uint32_t ready = raise(t.src, is_aside ? aside->second : source.writer, rank);
      Draft& mine = draft(rank, index);
      mine.waits.push_back(ready);
      mine.sources.push_back(t.src | (is_aside ? kFromSnapshot : 0));
      (is_aside ? source.aside_readers : source.readers).push_back(raise(rank, index, t.src));
    }
    // In the order of ranks, its own value among them: where several ranks reduce the same values, they get
    // the same bits.
    if (reduces) {
      std::vector<int32_t>& sources = draft(rank, index).sources;
      sources.push_back(rank);
      std::ranges::sort(sources, {}, [](int32_t source) { return source & ~kFromSnapshot; });
    }
    return index;
  }

  int swap(int rank, const Transfer& t, uint32_t offered) {
    Draft made{.kind = Kind::Swap, .piece = t.piece, .waits = {offered}, .sources = {rank, t.src}};
    move_to(made.waits, state(rank, t.piece).readers);
    return append(rank, std::move(made));
  }

  // At the end every value owed is delivered, and nobody reads this rank's memory any more.
  void store() {
    for (int rank = 0; rank < collective_.ranks; ++rank) {
      for (int32_t piece = 0; piece < collective_.pieces; ++piece) {
        if (!collective_.owed_after(rank, piece)) continue;
        const int index = collective_.output_index(rank, piece);
        append(rank, {.kind = Kind::Store, .piece = piece, .user_block = index / pieces_per_block()});
      }
      Draft last{.kind = Kind::Pass, .piece = 0};
      for (PieceState& at : states_[static_cast<size_t>(rank)]) {
        move_to(last.waits, at.readers);
        move_to(last.waits, at.aside_readers);
      }
      append(rank, std::move(last));
    }
  }

  Tables finish() {
    tables_.collective = collective_;
    for (const auto& program : drafts_) {
      Table table;
      const auto at = [](const auto& list) { return static_cast<int32_t>(list.size()); };
      for (const Draft& made : program) {
        Instruction instruction{.kind = made.kind,
                                .piece = made.piece,
                                .user_block = made.user_block,
                                .first_wait = at(table.flags),
                                .first_signal = 0,
                                .end_signal = 0,
                                .first_source = at(table.sources),
                                .sources = at(made.sources)};
        table.flags.insert(table.flags.end(), made.waits.begin(), made.waits.end());
        instruction.first_signal = at(table.flags);
        table.flags.insert(table.flags.end(), made.signals.begin(), made.signals.end());
        instruction.end_signal = at(table.flags);
        table.sources.insert(table.sources.end(), made.sources.begin(), made.sources.end());
        table.instructions.push_back(instruction);
      }
      tables_.by_rank.push_back(std::move(table));
    }
    for (const auto& [pair, count] : slots_) tables_.slots = std::max(tables_.slots, static_cast<int>(count));
    return std::move(tables_);
  }

  Collective collective_;
  std::vector<Transfer> transfers_;
  std::vector<std::vector<Draft>> drafts_;       // by rank
  std::vector<std::vector<PieceState>> states_;  // by rank and piece
  std::map<Place, uint32_t> slots_;              // flags so far, by pair (from, to)
  std::vector<int> swaps_;                       // by rank
  Tables tables_;
};

}  // namespace

Tables make_tables(const Schedule& schedule) {
  if (schedule.ranks() > kMostRanks)
    throw Unsupported("a schedule for CUDA may have " + std::to_string(kMostRanks) + " ranks, not " +
                      std::to_string(schedule.ranks()));
  if (schedule.is_part()) throw Unsupported("a part of a collective is no collective: it cannot be run");
  return Builder(schedule).build();
}

}  // namespace pycoll::cuda
