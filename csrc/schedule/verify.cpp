#include "schedule/verify.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <string>

#include "core/error.h"

namespace pycoll {

namespace {

// Rounds are numbered in an int32; executors keep counters beside them.
constexpr int32_t kMaxRounds = 1 << 30;

std::string describe(const Schedule& schedule) {
  const Collective& collective = schedule.collective;
  std::string text = schedule.algorithm.empty() ? "schedule" : "schedule '" + schedule.algorithm + "'";
  text += " for " + std::string(name_of(collective.kind)) + " (" + std::to_string(collective.ranks) +
          " ranks, " + std::to_string(collective.pieces) + " pieces";
  if (is_rooted(collective.kind)) text += ", root " + std::to_string(collective.root);
  return text + ")";
}

std::string describe(const Transfer& transfer, size_t index) {
  return "round " + std::to_string(transfer.round) + ", transfer " + std::to_string(index) + " (" +
         (transfer.action == Action::Reduce ? "reduce" : "copy") + " of piece " +
         std::to_string(transfer.piece) + ", rank " + std::to_string(transfer.src) + " to rank " +
         std::to_string(transfer.dst) + ")";
}

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kShown) text += " and " + std::to_string(ranks.size() - kShown) + " more";
  return text;
}

void require_indices_in_range(const Schedule& schedule) {
  const Collective& collective = schedule.collective;
  for (size_t i = 0; i < schedule.transfers.size(); ++i) {
    const Transfer& transfer = schedule.transfers[i];
    const auto require = [&](bool fits, const char* field, int value, int64_t limit) {
      if (fits) return;
      throw ScheduleError(describe(schedule) + ": " + describe(transfer, i) + ": " + field + " " +
                          std::to_string(value) + " is out of range: it must be between 0 and " +
                          std::to_string(limit - 1));
    };
    const auto within = [](int value, int limit) { return value >= 0 && value < limit; };
    require(within(transfer.round, kMaxRounds), "round", transfer.round, kMaxRounds);
    require(within(transfer.src, collective.ranks), "source rank", transfer.src, collective.ranks);
    require(within(transfer.dst, collective.ranks), "destination rank", transfer.dst, collective.ranks);
    require(within(transfer.piece, collective.pieces), "piece", transfer.piece, collective.pieces);
    if (transfer.src == transfer.dst)
      throw ScheduleError(describe(schedule) + ": " + describe(transfer, i) +
                          ": a rank cannot send to itself; what it holds is already there");
  }
}

struct Violation {
  size_t transfer;  // index in the schedule
  std::string reason;
};

// One piece's life: for every rank the set of contributions it holds. No two pieces ever meet, so pieces are
// walked one after another and the memory is that of one.
class PieceWalk {
 public:
  // Transfers [own_begin, own_end) count for the depth.
  PieceWalk(const Schedule& schedule, size_t own_begin, size_t own_end)
      : schedule_(schedule),
        own_begin_(own_begin),
        own_end_(own_end),
        collective_(schedule.collective),
        // A piece with one contributor is there or not: one bit, whatever the number of ranks.
        bits_(collective_.sole_contributor(0) == Collective::kEveryRank ? collective_.ranks : 1),
        words_(static_cast<size_t>(bits_ + 63) / 64),
        held_(words_ * static_cast<size_t>(collective_.ranks)),
        depth_(static_cast<size_t>(collective_.ranks)),
        writer_(static_cast<size_t>(collective_.ranks)) {}

  // `order` holds the indices of the piece's transfers, by round.
  std::optional<Violation> walk(int piece, const std::vector<size_t>& order) {
    begin(piece);
    for (size_t first = 0, last; first < order.size(); first = last) {
      last = first + 1;
      while (last < order.size() && at(order[last]).round == at(order[first]).round) ++last;
      if (auto violation = play_round(order.data() + first, last - first)) return violation;
    }
    return std::nullopt;
  }

  // Of the piece walked last: who does not have what it is owed; empty when all have.
  std::string unmet(int piece) const {
    const int sole = collective_.sole_recipient(piece);
    if (sole != Collective::kEveryRank) return unmet_at(sole, piece);
    for (int rank = 0; rank < collective_.ranks; ++rank)
      if (std::string reason = unmet_at(rank, piece); !reason.empty()) return reason;
    return {};
  }

  int depth() const { return greatest_depth_; }

 private:
  using Word = uint64_t;

  const Transfer& at(size_t index) const { return schedule_.transfers[index]; }
  Word* held(int rank) { return held_.data() + static_cast<size_t>(rank) * words_; }
  const Word* held(int rank) const { return held_.data() + static_cast<size_t>(rank) * words_; }
  static bool test(const Word* set, int bit) { return set[bit / 64] >> (bit % 64) & 1; }
  bool empty(const Word* set) const {
    return std::all_of(set, set + words_, [](Word word) { return word == 0; });
  }
  bool complete(const Word* set) const {
    for (size_t i = 0; i + 1 < words_; ++i)
      if (~set[i] != 0) return false;
    return set[words_ - 1] == ~Word{0} >> (static_cast<int>(words_) * 64 - bits_);
  }

  int contributor(int piece, size_t word, int bit) const {
    const int sole = collective_.sole_contributor(piece);
    return sole == Collective::kEveryRank ? static_cast<int>(word) * 64 + bit : sole;
  }

  std::string unmet_at(int rank, int piece) const {
    if (complete(held(rank))) return {};
    const std::string owed =
        "rank " + std::to_string(rank) + " is owed piece " + std::to_string(piece) + " complete";
    if (empty(held(rank))) return owed + " but never receives it";
    std::vector<int> missing;
    for (int contributor = 0; contributor < bits_; ++contributor)
      if (!test(held(rank), contributor)) missing.push_back(contributor);
    return owed + " but lacks the contribution of " + list_ranks(missing);
  }

  void begin(int piece) {
    std::fill(held_.begin(), held_.end(), 0);
    std::fill(depth_.begin(), depth_.end(), 0);
    std::fill(writer_.begin(), writer_.end(), nullptr);
    const int sole = collective_.sole_contributor(piece);
    if (sole != Collective::kEveryRank) {
      *held(sole) = 1;
      return;
    }
    for (int rank = 0; rank < collective_.ranks; ++rank) held(rank)[rank / 64] |= Word{1} << (rank % 64);
  }

  std::optional<Violation> play_round(const size_t* indices, size_t count) {
    // Everything is read before anything is written.
    read_.resize(count * words_);
    read_depth_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const Transfer& transfer = at(indices[i]);
      std::copy_n(held(transfer.src), words_, read_.data() + i * words_);
      read_depth_[i] = depth_[static_cast<size_t>(transfer.src)];
    }
    for (size_t i = 0; i < count; ++i) {
      const bool own = indices[i] >= own_begin_ && indices[i] < own_end_;
      std::string reason = write(at(indices[i]), read_.data() + i * words_, read_depth_[i] + (own ? 1 : 0));
      if (!reason.empty()) return Violation{indices[i], std::move(reason)};
    }
    return std::nullopt;
  }

  // Empty, or why the transfer is wrong.
  std::string write(const Transfer& transfer, const Word* value, int depth) {
    const std::string src = "rank " + std::to_string(transfer.src),
                      dst = "rank " + std::to_string(transfer.dst);
    const auto dst_index = static_cast<size_t>(transfer.dst);
    Word* target = held(transfer.dst);

    if (empty(value)) return src + " holds nothing of this piece to send";
    const Transfer* other = writer_[dst_index];
    if (other && other->round == transfer.round &&
        (other->action == Action::Copy || transfer.action == Action::Copy))
      return dst + " also receives this piece in the same round from rank " + std::to_string(other->src) +
             ", and only reduces may share a round";
    writer_[dst_index] = &transfer;

    if (transfer.action == Action::Copy) {
      if (!complete(value))
        return src + " does not hold the piece complete yet, so the copy would overwrite it at " + dst +
               " with a partial result";
      std::copy_n(value, words_, target);
      depth_[dst_index] = depth;
    } else {
      if (empty(target)) return dst + " holds nothing of this piece to reduce into; copy it there instead";
      for (size_t i = 0; i < words_; ++i) {
        const Word twice = target[i] & value[i];
        if (twice != 0)
          return "double counting: " + dst + " already holds the contribution of rank " +
                 std::to_string(contributor(transfer.piece, i, std::countr_zero(twice))) + ", which " + src +
                 " sends again";
        target[i] |= value[i];
      }
      depth_[dst_index] = std::max(depth_[dst_index], depth);
    }
    greatest_depth_ = std::max(greatest_depth_, depth);
    return {};
  }

  const Schedule& schedule_;
  const size_t own_begin_;
  const size_t own_end_;
  const Collective& collective_;
  const int bits_;
  const size_t words_;
  std::vector<Word> held_;
  std::vector<int> depth_;               // of the transfer that made the value a rank holds
  std::vector<const Transfer*> writer_;  // last one, by rank
  std::vector<Word> read_;
  std::vector<int> read_depth_;
  int greatest_depth_ = 0;
};

void walk_pieces(const Schedule& schedule, size_t own_begin, size_t own_end, ScheduleReport& report) {
  std::vector<std::vector<size_t>> by_piece(static_cast<size_t>(schedule.pieces()));
  for (size_t i = 0; i < schedule.transfers.size(); ++i)
    by_piece[static_cast<size_t>(schedule.transfers[i].piece)].push_back(i);

  PieceWalk walk(schedule, own_begin, own_end);
  std::optional<Violation> first;  // by round, so that the message points at the cause
  std::string unmet;
  for (int piece = 0; piece < schedule.pieces(); ++piece) {
    auto& order = by_piece[static_cast<size_t>(piece)];
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return schedule.transfers[a].round < schedule.transfers[b].round;
    });
    if (auto found = walk.walk(piece, order)) {
      const auto round = [&](const Violation& v) { return schedule.transfers[v.transfer].round; };
      if (!first || round(*found) < round(*first)) first = std::move(found);
      continue;
    }
    if (unmet.empty()) unmet = walk.unmet(piece);
  }
  if (first)
    throw ScheduleError(describe(schedule) + ": " +
                        describe(schedule.transfers[first->transfer], first->transfer) + ": " +
                        first->reason);
  if (!unmet.empty())
    throw ScheduleError(describe(schedule) + ": after the last round (" +
                        std::to_string(schedule.rounds() - 1) + "), " + unmet);
  report.depth = walk.depth();
}

// The most peers that one rank has in one round.
template <typename RankOf, typename PeerOf>
int max_ports(const std::vector<Transfer>& transfers, RankOf rank_of, PeerOf peer_of) {
  std::vector<std::array<int, 3>> links;  // round, rank, peer
  links.reserve(transfers.size());
  for (const Transfer& transfer : transfers)
    links.push_back({transfer.round, std::invoke(rank_of, transfer), std::invoke(peer_of, transfer)});
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  int most = 0, in_use = 0;
  for (size_t i = 0; i < links.size(); ++i) {
    const bool same = i > 0 && links[i][0] == links[i - 1][0] && links[i][1] == links[i - 1][1];
    in_use = same ? in_use + 1 : 1;
    most = std::max(most, in_use);
  }
  return most;
}

void count_traffic(const Schedule& schedule, ScheduleReport& report) {
  report.max_send_ports = max_ports(schedule.transfers, &Transfer::src, &Transfer::dst);
  report.max_recv_ports = max_ports(schedule.transfers, &Transfer::dst, &Transfer::src);
  report.pieces_sent.assign(static_cast<size_t>(schedule.ranks()), 0);
  report.pieces_received.assign(static_cast<size_t>(schedule.ranks()), 0);
  for (const Transfer& transfer : schedule.transfers) {
    ++report.pieces_sent[static_cast<size_t>(transfer.src)];
    ++report.pieces_received[static_cast<size_t>(transfer.dst)];
  }
}

// The whole that a part belongs to.
Schedule whole_of(const Schedule& part) {
  Schedule whole;
  whole.collective = part.collective;
  whole.algorithm = part.algorithm + ", all its parts";
  int64_t first_round = 0;
  for (const auto* transfers : {&part.preceding, &part.transfers, &part.following}) {
    const size_t begin = whole.transfers.size();
    whole.transfers.insert(whole.transfers.end(), transfers->begin(), transfers->end());
    require_indices_in_range(whole);
    const int64_t end = first_round + rounds_of(*transfers);
    if (end > kMaxRounds) throw ScheduleError(describe(whole) + ": it has more rounds than there can be");
    for (size_t i = begin; i < whole.transfers.size(); ++i)
      whole.transfers[i].round += static_cast<int32_t>(first_round);
    first_round = end;
  }
  return whole;
}

}  // namespace

ScheduleReport verify(const Schedule& schedule) {
  try {
    schedule.collective.check();
  } catch (const InvalidArgument& error) {
    throw ScheduleError(error.what());
  }
  require_indices_in_range(schedule);
  ScheduleReport report;
  report.rounds = schedule.rounds();
  if (schedule.is_part()) {
    const Schedule whole = whole_of(schedule);
    const size_t begin = schedule.preceding.size();
    walk_pieces(whole, begin, begin + schedule.transfers.size(), report);
  } else {
    walk_pieces(schedule, 0, schedule.transfers.size(), report);
  }
  count_traffic(schedule, report);
  return report;
}

}  // namespace pycoll
