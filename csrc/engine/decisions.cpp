#include "engine/decisions.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "core/error.h"

namespace pycoll {
namespace {

constexpr std::string_view kBases[] = {"modelled", "measured", "rule", "pin"};

using Fields = std::vector<std::string_view>;

Fields split(std::string_view text, char separator) {
  Fields fields;
  for (;;) {
    const size_t end = text.find(separator);
    fields.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return fields;
    text.remove_prefix(end + 1);
  }
}

template <class Number>
Number number(std::string_view text, const char* what) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw InvalidArgument(std::string(what) + " is '" + std::string(text) + "', which is no such number");
  return value;
}

void require_fields(const Fields& fields, size_t least) {
  if (fields.size() < least)
    throw InvalidArgument("has " + std::to_string(fields.size()) + " fields, and needs " +
                          std::to_string(least));
}

CollectiveKind kind_from(std::string_view name) {
  if (const auto kind = collective_from_name(name)) return *kind;
  throw InvalidArgument("there is no collective '" + std::string(name) + "'");
}

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash | 1;
}

class Parser {
 public:
  DecisionTable parse(std::string_view text) {
    const Fields lines = split(text, '\n');
    for (size_t i = 0; i < lines.size(); ++i) {
      try {
        line(split(lines[i], '\t'), i == 0);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument("decision table, line " + std::to_string(i + 1) + ": " + error.what());
      }
    }
    table_.hash = fnv1a(text);
    if (topology_) topology_->check();
    table_.topology = topology_;
    return std::move(table_);
  }

 private:
  void line(const Fields& fields, bool first) {
    if (first) {
      require_fields(fields, 3);
      if (fields[0] != "decisions" || fields[1] != "1")
        throw InvalidArgument("it must begin with 'decisions', version 1");
      table_.factor = number<double>(fields[2], "the factor");
    } else if (fields[0] == "topology") {
      require_fields(fields, 2);
      topology_ = std::make_shared<Topology>();
      topology_->name = fields[1];
    } else if (topology_ && fields[0] == "node") {
      node(fields);
    } else if (topology_ && fields[0] == "link") {
      link(fields);
    } else if (topology_ && fields[0] == "ranks") {
      require_fields(fields, 2);
      for (const std::string_view rank : split(fields[1], ','))
        topology_->ranks.push_back(number<int>(rank, "a rank's node"));
    } else if (fields[0] == "schedule") {
      schedule(fields);
    } else if (fields[0] == "row") {
      row(fields);
    } else if (fields.size() > 1 || !fields[0].empty()) {
      throw InvalidArgument("'" + std::string(fields[0]) +
                            "' is neither row nor schedule, nor of a topology");
    }
  }

  void node(const Fields& fields) {
    require_fields(fields, 8);
    if (fields[2] != "device" && fields[2] != "switch")
      throw InvalidArgument("a node is a device or a switch, not '" + std::string(fields[2]) + "'");
    topology_->nodes.push_back({.name = std::string(fields[1]),
                                .kind = fields[2] == "device" ? NodeKind::Device : NodeKind::Switch,
                                .ports = number<int>(fields[3], "ports"),
                                .overhead = number<double>(fields[4], "the overhead"),
                                .copy_rate = number<double>(fields[5], "the copy rate"),
                                .reduce_rate = number<double>(fields[6], "the reduce rate"),
                                .forwards = fields[7] != "0"});
  }

  void link(const Fields& fields) {
    require_fields(fields, 5);
    const int from = number<int>(fields[1], "a link's source");
    const int to = number<int>(fields[2], "a link's target");
    topology_->links.push_back({.from = from,
                                .to = to,
                                .bandwidth = number<double>(fields[3], "the bandwidth"),
                                .latency = number<double>(fields[4], "the latency"),
                                .name = std::string(fields[1]) + "->" + std::string(fields[2]) + "#" +
                                        std::to_string(topology_->links.size())});
  }

  void schedule(const Fields& fields) {
    require_fields(fields, 6);
    auto made = std::make_shared<Schedule>();
    made->algorithm = fields[1];
    made->collective = {kind_from(fields[2]), number<int>(fields[3], "ranks"),
                        number<int>(fields[4], "pieces"), number<int>(fields[5], "root")};
    made->collective.check();
    for (size_t i = 6; i < fields.size(); ++i) {
      const Fields numbers = split(fields[i], ',');
      require_fields(numbers, 5);
      made->transfers.push_back({number<int>(numbers[0], "a round"), number<int>(numbers[1], "a source"),
                                 number<int>(numbers[2], "a destination"), number<int>(numbers[3], "a piece"),
                                 numbers[4] == "0" ? Action::Copy : Action::Reduce});
    }
    schedules_[std::string(fields[1])] = std::move(made);
  }

  void row(const Fields& fields) {
    require_fields(fields, 11);
    Decision row;
    row.kind = kind_from(fields[1]);
    row.dtypes = either("the dtype class", fields[2], "wide", "narrow");
    row.distances = either("the distance", fields[3], "near", "far");
    row.begin = number<uint64_t>(fields[4], "the first size");
    if (fields[5] != "-") row.end = number<uint64_t>(fields[5], "the last size");
    if (row.begin >= row.end) throw InvalidArgument("its sizes end before they begin");
    for (const std::string_view name : split(fields[6], ',')) row.ways.push_back(way(name));
    if (row.ways.size() > kMostWays)
      throw InvalidArgument("it has more than " + std::to_string(kMostWays) + " ways to go");
    const auto basis = std::ranges::find(kBases, fields[7]);
    if (basis == std::end(kBases)) throw InvalidArgument("'" + std::string(fields[7]) + "' is no basis");
    row.basis = static_cast<Basis>(basis - std::begin(kBases));
    row.alpha = number<double>(fields[8], "alpha");
    row.beta = number<double>(fields[9], "beta");
    row.reason = fields[10];
    for (const Decision& other : table_.rows) {
      const auto meet = [](const std::array<bool, 2>& a, const std::array<bool, 2>& b) {
        return (a[0] && b[0]) || (a[1] && b[1]);
      };
      const bool same_class = meet(row.dtypes, other.dtypes) && meet(row.distances, other.distances);
      if (other.kind == row.kind && same_class && row.begin < other.end && other.begin < row.end)
        throw InvalidArgument("its sizes overlap those of another row for " + std::string(name_of(row.kind)));
    }
    table_.rows.push_back(std::move(row));
  }

  static std::array<bool, 2> either(const std::string& what, std::string_view text, std::string_view first,
                                    std::string_view second) {
    if (text == "any") return {true, true};
    if (text == first || text == second) return {text == first, text == second};
    throw InvalidArgument(what + " is any, " + std::string(first) + " or " + std::string(second) + ", not '" +
                          std::string(text) + "'");
  }

  Way way(std::string_view name) const {
    if (name.starts_with('@')) {
      const auto found = schedules_.find(name.substr(1));
      if (found == schedules_.end())
        throw InvalidArgument("there is no schedule '" + std::string(name) + "' above it");
      return {found->second->algorithm, found->second->pieces(), found->second};
    }
    const size_t slash = name.find('/');
    Way way{std::string(name.substr(0, slash)), 0, nullptr, topology_};
    if (slash != std::string_view::npos) way.pieces = number<int>(name.substr(slash + 1), "pieces");
    return way;
  }

  DecisionTable table_;
  std::shared_ptr<Topology> topology_;
  std::map<std::string, std::shared_ptr<const Schedule>, std::less<>> schedules_;
};

}  // namespace

DTypeClass class_of(DType dtype) {
  switch (dtype) {
    case DType::Float16:
    case DType::BFloat16:
    case DType::Float8E4M3FN:
    case DType::Float8E5M2:
      return DTypeClass::Narrow;
    default:
      return DTypeClass::Wide;
  }
}

std::string_view name_of(Basis basis) {
  return kBases[static_cast<size_t>(basis)];
}

std::string Way::name() const {
  if (schedule) return "@" + algorithm;
  return pieces == 0 ? algorithm : algorithm + "/" + std::to_string(pieces);
}

DecisionTable DecisionTable::parse(std::string_view text) {
  if (text.empty()) return {};
  return Parser().parse(text);
}

}  // namespace pycoll
