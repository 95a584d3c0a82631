"""Which link, node or switch matters most: each fails in turn, and they are ranked by the harm.

print(each("hgx-h100-128-rail", "link", "allreduce", "256MiB"))
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from pycoll.errors import Error, InvalidArgument, TopologyError
from pycoll.selection import candidates
from pycoll.topology import Topology
from pycoll.whatif.changes import Change, Fail, apply
from pycoll.whatif.compare import check_collective, sizes_of, topology_of
from pycoll.whatif.evaluate import Evaluator, Outcome, outcome_from
from pycoll.whatif.names import cables, short
from pycoll.whatif.result import Result
from pycoll.whatif.scenario import Disconnected, Scenario
from pycoll.whatif.studies import Study, fingerprint
from pycoll.whatif.symmetry import cable_classes, colours, node_classes

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Harm", "Harms", "each"]

KINDS = {"link": "links", "node": "devices", "switch": "switches", "host": "hosts"}
#: Machines of up to so many ranks get the best algorithm after each failure too, and several members a class.
_SMALL = 64
_OF_SMALL = 16


@dataclass(frozen=True)
class Harm:
    """What the failure of any of ``members`` does. ``outcome`` is None where it leaves ranks cut off.

    ``outcome`` is the collective as it was run before (built anew where ranks are gone), ``rechosen`` that
    by the best algorithm afterwards, where that was looked for. ``simulated`` names the members that were.
    """

    members: tuple[str, ...]
    simulated: tuple[str, ...]
    outcome: Outcome | None
    rechosen: Outcome | None
    cut_off: str
    ratio: float  # of the time before; infinite where ranks are cut off
    least: float  # the same of the member simulated that harms least

    @property
    def which(self) -> str:
        """The members in short."""
        return short(self.members, 160)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "members": list(self.members),
            "stands_for": len(self.members),
            "simulated": list(self.simulated),
            "cut_off": self.cut_off or None,
            "time_ratio": None if math.isinf(self.ratio) else self.ratio,
            "least_time_ratio": None if math.isinf(self.least) else self.least,
            "after": self.outcome and self.outcome.to_dict(),
            "rechosen": self.rechosen and self.rechosen.to_dict(),
        }


@dataclass(frozen=True)
class Harms(Result):
    """Classes of links, nodes or switches, the most harmful first. Prints as a table."""

    kind: str
    machine: str
    ranks: int
    collective: str
    size: int
    changes: tuple[str, ...]
    before: Outcome
    rows: tuple[Harm, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def members(self) -> int:
        """How many links (nodes, switches) there are."""
        return sum(len(row.members) for row in self.rows)

    @property
    def plural(self) -> str:
        """What fails: links, devices, switches, hosts."""
        return KINDS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; seconds, bytes and bytes/s."""
        return {
            "each": self.kind,
            "topology": self.machine,
            "ranks": self.ranks,
            "collective": self.collective,
            "size_bytes": self.size,
            "changes": list(self.changes),
            "before": self.before.to_dict(),
            "members": self.members,
            "classes": [row.to_dict() for row in self.rows],
            "notes": list(self.notes),
        }

    def flat(self) -> list[dict[str, Any]]:
        """A dict of plain values a class, for CSV and data frames."""
        return [
            {
                "which": row.which,
                "stands_for": len(row.members),
                "time_s": row.outcome and row.outcome.time,
                "time_before_s": self.before.time,
                "time_ratio": None if math.isinf(row.ratio) else row.ratio,
                "way": row.outcome and row.outcome.way,
                "binding_link": row.outcome and row.outcome.binding,
                "rechosen_way": row.rechosen and row.rechosen.way,
                "rechosen_time_s": row.rechosen and row.rechosen.time,
                "cut_off": row.cut_off or None,
            }
            for row in self.rows
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pycoll.whatif.tables import harm_table

        yield from harm_table(self)


def each(
    machine: Topology | str | PathLike[str],
    kind: str = "link",
    collective: str = "allreduce",
    size: int | str = "256MiB",
    *,
    algorithm: str = "auto",
    changes: Iterable[Change] = (),
    study: Study | None = None,
    classes: bool = True,
) -> Harms:
    """Fails every link (both directions; a parallel one alone), node (device), switch or host in turn.

    The collective goes on as it was chosen before the failure, as in a running job: with the same schedule,
    or the same algorithm built anew where ranks are gone. Where that does not run on so few, the best that
    does goes on, or InvalidArgument is raised if it was asked for by name. On machines of up to 64 ranks
    the best algorithm afterwards is looked for too. Equivalent members are one class, of which one is
    simulated (of up to 64 ranks up to 16, and the worst counts: in which order pieces and partners follow
    can make ten percent between them); ``classes=False`` simulates every one. ``changes`` are made first.
    """
    if kind not in KINDS:
        raise InvalidArgument(f"--each {kind}: fail each link, node, switch or host")
    check_collective(collective)
    (bytes_,) = sizes_of(size, collective)
    made = tuple(changes)
    scenario = apply(Scenario(topology_of(machine)), made)
    evaluator = Evaluator(scenario)
    before = evaluator.best_of(evaluator.ways(collective, algorithm), collective, bytes_)
    found = _classes(scenario, before.loads, kind, classes)
    if not found:
        raise TopologyError(f"topology {scenario.topology.name!r} has no {KINDS[kind]}")
    small = len(scenario.topology.ranks) <= _SMALL
    tasks, keys, names, owners = [], [], [], []
    for number, members in enumerate(found):
        picked = _spread(members, _OF_SMALL if small else 1)
        for name in picked:
            way_back = small and algorithm == "auto" and name == members[0]
            named = algorithm != "auto"
            tasks.append((scenario, _failures(kind, name), before.way, collective, bytes_, way_back, named))
            keys.append(fingerprint(scenario, "each", kind, name, *tasks[-1][2:]))
            names.append(f"{kind} {name}")
            owners.append((number, name))
    results = (study or Study()).map(failed, tasks, keys, names)
    rows = []
    for number, members in enumerate(found):
        mine = [
            (name, result) for (owner, name), result in zip(owners, results, strict=True) if owner == number
        ]
        rows.append(_harm(members, mine, before))
    rows.sort(key=lambda row: -row.ratio)
    notes = []
    if len(rows) < sum(len(row.members) for row in rows):
        told = f"up to {_OF_SMALL} were simulated; the worst counts" if small else "one was simulated"
        notes.append(
            f"Equivalent {KINDS[kind]} are one class (same figures, same neighbourhood, same load), of which "
            f"{told}."
        )
    notes.append(f"The collective goes on by {before.way}, as before the failure.")
    return Harms(
        kind,
        scenario.topology.name,
        len(scenario.topology.ranks),
        collective,
        bytes_,
        tuple(str(change) for change in made),
        before,
        tuple(rows),
        tuple(notes),
    )


def _classes(scenario: Scenario, loads: dict[str, float], kind: str, classes: bool) -> list[list[str]]:
    """Members that are alike. What cuts ranks off does so whatever it carries: there the machine alone
    counts."""
    topology = scenario.topology
    found = _alike(topology, loads, kind, classes)
    if not classes:
        return found
    every = len(topology.ranks) <= _SMALL
    apart = [
        members
        for members in _alike(topology, {}, kind, classes)
        if all(_cuts_off(scenario, kind, name) for name in (members if every else members[:1]))
    ]
    gone = {name for members in apart for name in members}
    left = ([name for name in members if name not in gone] for members in found)
    return apart + [members for members in left if members]


def _cuts_off(scenario: Scenario, kind: str, name: str) -> bool:
    try:
        apply(scenario, _failures(kind, name))
    except TopologyError:
        return True
    return False


def _alike(topology: Topology, loads: dict[str, float], kind: str, classes: bool) -> list[list[str]]:
    if kind == "link":
        return cable_classes(topology, loads) if classes else [[name] for name in cables(topology)]
    if kind == "host":
        colour, _ = colours(topology, loads)
        alike: dict[object, list[str]] = {}
        for name, group in _hosts(topology).items():
            alike.setdefault(tuple(sorted(colour[index] for index in group)) if classes else name, []).append(
                name
            )
        return list(alike.values())
    found = node_classes(topology, loads, "device" if kind == "node" else "switch")
    return found if classes else [[name] for members in found for name in members]


def _hosts(topology: Topology) -> dict[str, list[int]]:
    """Devices that share a name up to the last dot, as s0.gpu0 and s0.gpu1 do; a device without one is a host
    of its own."""
    found: dict[str, list[int]] = {}
    for index, node in enumerate(topology.nodes):
        if node.kind == "device":
            found.setdefault(node.name.rpartition(".")[0] or node.name, []).append(index)
    return found


def _spread(members: list[str], count: int) -> list[str]:
    """As many of the members, the first and the last among them."""
    if len(members) <= count:
        return members
    if count == 1:
        return members[:1]
    return [members[index * (len(members) - 1) // (count - 1)] for index in range(count)]


def _failures(kind: str, name: str) -> tuple[Change, ...]:
    if kind == "link":
        return (Fail(f"link:{name}"),)
    return (Fail(f"node:{name}"),)


def failed(
    scenario: Scenario,
    failures: tuple[Change, ...],
    way: str,
    collective: str,
    size: int,
    rechoose: bool,
    named: bool,
) -> dict[str, Any]:
    """One failure, as plain values; runs in other processes too. ``named``: no other algorithm may run."""
    ranks = len(scenario.topology.ranks)
    try:
        after = apply(scenario, failures)
    except Disconnected as error:
        return {"cut_off": short(error.cut_off, 100)}
    except TopologyError as error:
        return {"cut_off": str(error)}
    evaluator = Evaluator(after)
    if len(after.topology.ranks) == ranks:
        schedule = candidates.schedule_of(way, collective, ranks, 0, scenario.topology)
        outcome = evaluator.outcome_of(schedule, way, collective, size)
    else:
        outcome = _rebuilt(evaluator, way, collective, size, named)
    best = evaluator.best_of(evaluator.ways(collective), collective, size) if rechoose else None
    return {"after": outcome.to_dict(), "rechosen": best and best.to_dict()}


def _rebuilt(evaluator: Evaluator, way: str, collective: str, size: int, named: bool) -> Outcome:
    """The way for fewer ranks; where it does not run on so many, the best that does. InvalidArgument where
    that is another than was asked for by name."""
    for again in (way, way.partition("/")[0]):
        try:
            return evaluator.outcome(again, collective, size)
        except Error:
            continue
    if named:
        evaluator.ways(collective, way.partition("/")[0])  # says what is wrong, and what runs
    return evaluator.best_of(evaluator.ways(collective), collective, size)


def _harm(members: list[str], results: list[tuple[str, dict[str, Any]]], before: Outcome) -> Harm:
    def ratio(result: dict[str, Any]) -> float:
        if "cut_off" in result:
            return math.inf
        return float(result["after"]["time_s"]) / before.time if before.time else 1.0

    _, worst = max(results, key=lambda each: ratio(each[1]))
    outcomes = [
        outcome_from(result[name], before.collective, before.size) if result.get(name) else None
        for name, result in (("after", worst), ("rechosen", results[0][1]))
    ]
    names = tuple(name for name, _ in results)
    least = min(ratio(result) for _, result in results)
    return Harm(
        tuple(members), names, outcomes[0], outcomes[1], worst.get("cut_off", ""), ratio(worst), least
    )
