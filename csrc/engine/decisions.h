// Which way calls go that name no algorithm: a table over (collective, dtype class, bytes). The selector
// makes it, in Python, and sends it as text; what is looked up at every call is engine/selection.h.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reduce/dtype.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace pycoll {

// Reductions of 16- and 8-bit floats convert every element, so their times are others.
enum class DTypeClass : uint8_t { Wide, Narrow };
inline constexpr size_t kDTypeClasses = 2;
DTypeClass class_of(DType dtype);

// How far the ranks' processors are from each other, as the group itself measures it: under one shared cache,
// or not. On a virtual machine this changes within seconds, and with it what is quickest.
enum class Distance : uint8_t { Near, Far };
inline constexpr size_t kDistances = 2;

// What a row rests on.
enum class Basis : uint8_t { Modelled, Measured, Rule, Pin };
std::string_view name_of(Basis basis);  // "modelled", "measured", "rule", "pin"

// One way to run a collective: the engine's fast path ("direct" without pieces), a registered algorithm, or
// a schedule of its own.
struct Way {
  std::string algorithm;
  int pieces = 0;
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<const Topology> topology = nullptr;  // that the algorithm fits itself to; null: the group's

  bool is_fast_path() const { return !schedule && pieces == 0 && algorithm == "direct"; }
  std::string name() const;  // "direct", "ring", "ring/16", "@star"
};

struct Decision {
  CollectiveKind kind = CollectiveKind::AllReduce;
  std::array<bool, kDTypeClasses> dtypes{true, true};
  std::array<bool, kDistances> distances{true, true};
  uint64_t begin = 0;  // of [begin, end) bytes: the larger of a rank's two buffers, as nccl-tests counts
  uint64_t end = UINT64_MAX;
  std::vector<Way> ways;  // the choice, then what is tried when the choice turns out slow
  Basis basis = Basis::Rule;
  double alpha = 0;  // the choice's predicted time: alpha + beta * bytes seconds; both 0: none
  double beta = 0;
  std::string reason;

  double predicted(uint64_t bytes) const { return alpha + beta * static_cast<double>(bytes); }
};

inline constexpr size_t kMostWays = 4;

struct DecisionTable {
  std::vector<Decision> rows;  // of one collective, dtype class and distance, no two overlap
  double factor = 0;           // by which a time must leave its prediction to be reconsidered; 0: never is
  uint64_t hash = 0;           // of the text; 0: the empty table
  std::shared_ptr<const Topology> topology;  // where the ranks are, as far as the table says it

  // The text that pycoll/selection/decisions.py writes, fields apart by tabs:
  //   decisions 1 <factor>
  //   topology <name>
  //   node <name> <device|switch> <ports> <overhead> <copy rate> <reduce rate> <0|1: forwards> ...
  //   link <from> <to> <bandwidth> <latency> ...
  //   ranks <node of rank 0,node of rank 1,...>
  //   schedule <name> <collective> <ranks> <pieces> <root> <round,src,dst,piece,reduce> <...> ...
  //   row <collective> <any|wide|narrow> <any|near|far> <begin> <end|-> <way,way,...> <basis> <alpha> <beta>
  //   <reason>
  // The algorithms of all rows fit themselves to the topology, where there is one. "" is the empty table.
  // Throws InvalidArgument that names the line, TopologyError.
  static DecisionTable parse(std::string_view text);
};

}  // namespace pycoll
