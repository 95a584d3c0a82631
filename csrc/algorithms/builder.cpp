#include "algorithms/builder.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace pycoll {

namespace {

void require_known_params(std::string_view algorithm, const std::map<std::string, std::string>& given,
                          std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : given) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string text = "algorithm '" + std::string(algorithm) + "' has no parameter '" + name + "'; ";
    if (known.size() == 0) throw InvalidArgument(text + "it takes none");
    text += "it takes";
    for (std::string_view parameter : known) text += " '" + std::string(parameter) + "'";
    throw InvalidArgument(text);
  }
}

}  // namespace

ScheduleBuilder::ScheduleBuilder(std::string_view algorithm, const BuildRequest& request, int default_pieces,
                                 std::initializer_list<std::string_view> params) {
  require_known_params(algorithm, request.params, params);
  schedule_.algorithm = algorithm;
  schedule_.params = request.params;
  Collective& collective = schedule_.collective;
  collective = {request.kind, request.ranks, 1, request.root};
  collective.check_ranks();
  if (request.pieces != 0)
    collective.pieces = request.pieces;
  else
    collective.pieces = default_pieces == kLeastPieces ? collective.pieces_multiple() : default_pieces;
  collective.check();
}

int ScheduleBuilder::block_begin(int index, int blocks) const {
  return static_cast<int>(static_cast<int64_t>(index) * pieces() / blocks);
}

void ScheduleBuilder::add(int round, int src, int dst, PieceRange pieces, Action action) {
  for (int piece = pieces.begin; piece < pieces.end; ++piece)
    schedule_.transfers.push_back({round, src, dst, piece, action});
}

void ScheduleBuilder::add(const std::vector<Transfer>& transfers, int first_round) {
  for (Transfer transfer : transfers) {
    transfer.round += first_round;
    schedule_.transfers.push_back(transfer);
  }
}

void ScheduleBuilder::follow(std::vector<int> order) {
  order_ = std::move(order);
  root_position_ = static_cast<int>(std::find(order_.begin(), order_.end(), root()) - order_.begin());
}

Schedule ScheduleBuilder::finish() {
  const auto order = [](const Transfer& t) { return std::tie(t.round, t.piece, t.src, t.dst); };
  std::sort(schedule_.transfers.begin(), schedule_.transfers.end(),
            [&](const Transfer& a, const Transfer& b) { return order(a) < order(b); });
  return std::move(schedule_);
}

}  // namespace pycoll
