"""Changes to a machine, each small and exact: what fails, slows, comes late, is added or moved.

    from pycoll.whatif import Fail, Slow, apply
    after = apply(Scenario(topology), [Fail("tor0-spine1"), Slow("leaf*-spine*", 0.5)])

A change turns one scenario into another and can be applied in any order and number. Names are read as
:mod:`pycoll.whatif.names` says; a link that is named without a direction is meant both ways. Errors are
TopologyError, for names that mean nothing, and InvalidArgument, for figures that make no sense.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pycoll.errors import InvalidArgument, TopologyError
from pycoll.topology import Link, Topology
from pycoll.topology.summary import tiers_of
from pycoll.topology.units import format_time
from pycoll.whatif.names import links_meant, nodes_meant, short
from pycoll.whatif.scenario import Lateness, Scenario, positive
from pycoll.whatif.tiers import groups, hanging_on

__all__ = [
    "Add",
    "Busy",
    "Change",
    "Ecmp",
    "Fail",
    "Flows",
    "Late",
    "LateDist",
    "Latency",
    "Oversubscribe",
    "Place",
    "Remove",
    "Slow",
    "Spread",
    "apply",
]


class Change(Protocol):
    """What every change can do. ``str()`` of one is how the command line writes it."""

    def apply(self, scenario: Scenario) -> Scenario:
        """The scenario after the change."""
        ...


def apply(scenario: Scenario, changes: Iterable[Change]) -> Scenario:
    """The scenario after all changes, in their order.

    Raises TopologyError also where ranks cannot reach each other in the end.
    """
    made = list(changes)
    for change in made:
        scenario = change.apply(scenario)
    if made:
        scenario.check(" ".join(str(change) for change in made))
    return scenario


@dataclass(frozen=True)
class Fail:
    """A link or a node is gone; ``what`` is its name, or that after ``link:`` or ``node:``.

    Of a switch only itself is gone, of a server (a group of nodes, as ``s3`` of ``s3.gpu0``) all of it.
    Ranks on what is gone are gone, and the others are numbered anew.
    """

    what: str

    def apply(self, scenario: Scenario) -> Scenario:
        sort, _, name = self.what.partition(":")
        if sort == "link" and name:
            return scenario.on(_without_links(scenario.topology, links_meant(scenario.topology, name)))
        if sort == "node" and name:
            return scenario.on(
                _without_nodes(scenario.topology, nodes_meant(scenario.topology, name), str(self))
            )
        try:
            gone = nodes_meant(scenario.topology, self.what)
        except TopologyError:
            if "-" not in self.what:
                raise
            return scenario.on(_without_links(scenario.topology, links_meant(scenario.topology, self.what)))
        return scenario.on(_without_nodes(scenario.topology, gone, str(self)))

    def __str__(self) -> str:
        return f"--fail {self.what}"


@dataclass(frozen=True)
class Remove:
    """A part of the machine is taken out, with all that hangs on it alone: a host, a switch, a rack."""

    what: str

    def apply(self, scenario: Scenario) -> Scenario:
        topology = scenario.topology
        return scenario.on(_without_nodes(topology, _part(topology, self.what), str(self)))

    def __str__(self) -> str:
        return f"--remove {self.what}"


@dataclass(frozen=True)
class Slow:
    """Links have ``factor`` of their bandwidth; a factor above 1 makes them faster."""

    links: str
    factor: float

    def apply(self, scenario: Scenario) -> Scenario:
        positive(self.factor, f"{self}: the factor")
        chosen = set(links_meant(scenario.topology, self.links))
        return scenario.on(
            _with_links(
                scenario.topology,
                (
                    replace(link, bandwidth=link.bandwidth * self.factor) if index in chosen else link
                    for index, link in enumerate(scenario.topology.links)
                ),
            )
        )

    def __str__(self) -> str:
        return f"--slow {self.links}={self.factor:g}"


@dataclass(frozen=True)
class Busy:
    """Other jobs take ``share`` (0 to 1, not 1) of the links' bandwidth."""

    links: str
    share: float

    def apply(self, scenario: Scenario) -> Scenario:
        if not 0 <= self.share < 1:
            raise InvalidArgument(f"{self}: the share that others take is at least 0 and below 1")
        return Slow(self.links, 1 - self.share).apply(scenario)

    def __str__(self) -> str:
        return f"--busy {self.links}={self.share:g}"


@dataclass(frozen=True)
class Latency:
    """Links' latency becomes ``seconds``, or, with ``more``, that much more (or less, where negative)."""

    links: str
    seconds: float
    more: bool = True

    def apply(self, scenario: Scenario) -> Scenario:
        chosen = set(links_meant(scenario.topology, self.links))

        def changed(link: Link) -> Link:
            latency = self.seconds + (link.latency if self.more else 0.0)
            if latency < 0:
                raise InvalidArgument(f"{self}: {link.name} has {format_time(link.latency)}, less than that")
            return replace(link, latency=latency)

        links = enumerate(scenario.topology.links)
        return scenario.on(
            _with_links(scenario.topology, (changed(k) if i in chosen else k for i, k in links))
        )

    def __str__(self) -> str:
        sign = ("-" if self.seconds < 0 else "+") if self.more else ""
        return f"--latency {self.links}={sign}{format_time(abs(self.seconds)).replace(' ', '')}"


@dataclass(frozen=True)
class Oversubscribe:
    """Uplinks of switches are scaled so that what comes from below is ``ratio`` times what fits through
    them.

    ``switches`` names them; without, they are those of the lowest tier with several nodes below and links
    upwards: top-of-rack switches, leaves.
    """

    ratio: float
    switches: str = ""

    def apply(self, scenario: Scenario) -> Scenario:
        positive(self.ratio, f"{self}: the ratio")
        topology = scenario.topology
        ups, downs = _ups_and_downs(topology)
        chosen = nodes_meant(topology, self.switches) if self.switches else _leaves(topology, ups, downs)
        factors: dict[int, float] = {}
        for switch in chosen:
            if not (ups[switch] and downs[switch]):
                both = short(topology.nodes[i].name for i in range(len(ups)) if ups[i] and downs[i])
                way = "upwards" if downs[switch] else "downwards"
                raise TopologyError(
                    f"{self}: {topology.nodes[switch].name} has no links {way}; switches with both: "
                    f"{both or 'none'}"
                )
            up = sum(topology.links[index].bandwidth for index in ups[switch])
            down = sum(topology.links[index].bandwidth for index in downs[switch])
            for index in ups[switch]:
                factors[index] = down / up / self.ratio
        back = {(topology.links[i].source, topology.links[i].target): factor for i, factor in factors.items()}

        def changed(index: int, link: Link) -> Link:
            factor = factors.get(index, back.get((link.target, link.source)))
            return link if factor is None else replace(link, bandwidth=link.bandwidth * factor)

        return scenario.on(_with_links(topology, (changed(i, k) for i, k in enumerate(topology.links))))

    def __str__(self) -> str:
        return f"--oversubscribe {self.switches + '=' if self.switches else ''}{self.ratio:g}:1"


@dataclass(frozen=True)
class Add:
    """``count`` more of a part: a host, a switch with what hangs on it, a group of names such as ``rack0``.

    Each copy has the part's inner links and its links to the rest of the machine, at the same places; its
    nodes take the next free numbers, and its ranks come after all others.
    """

    what: str
    count: int = 1

    def apply(self, scenario: Scenario) -> Scenario:
        if self.count < 1:
            raise InvalidArgument(f"{self}: add 1 or more, not {self.count}")
        topology = scenario.topology
        part = _part(topology, self.what)
        for _ in range(self.count):
            topology = _with_copy(topology, part, self.what)
        return scenario.on(topology)

    def __str__(self) -> str:
        return f"--add {self.count}*{self.what}"


@dataclass(frozen=True)
class Place:
    """Ranks are dealt otherwise: ``packed`` (neighbours side by side), ``interleaved`` (one a server or rack
    in turn, as mpirun --map-by node) or in an ``order`` of ranks or device names, of which some may be left
    out."""

    how: str = ""
    order: tuple[int | str, ...] = ()

    @classmethod
    def from_file(cls, path: str | Path) -> Place:
        """The order in a file: ranks or device names, between blanks or commas, or a JSON list of them."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidArgument(
                f"--place {path}: {reason}; it is packed, interleaved or a file with an order of ranks"
            ) from error
        words: Sequence[object]
        if text.lstrip().startswith("["):
            try:
                words = json.loads(text)
            except ValueError as error:
                raise InvalidArgument(f"--place {path}: {error}") from error
        else:
            words = re.split(r"[\s,]+", re.sub(r"#.*", "", text).strip())
        if not words or not all(isinstance(word, (int, str)) and word != "" for word in words):
            raise InvalidArgument(f"--place {path}: a list of ranks or of device names is needed")
        order = tuple(int(text) if text.isdecimal() else text for text in map(str, words))
        return cls(str(path), order)

    def apply(self, scenario: Scenario) -> Scenario:
        topology = scenario.topology
        rank_of = {node: rank for rank, node in enumerate(topology.ranks)}
        if self.order:
            order = [self._rank(topology, rank_of, each) for each in self.order]
            return scenario.on(topology.place(order))
        levels = [
            [[device for device in group if device in rank_of] for group in level]
            for level in groups(topology)
        ]
        if self.how not in ("packed", "interleaved"):
            raise InvalidArgument(f"{self}: ranks are placed packed, interleaved or as a file says")
        if not levels:
            raise TopologyError(
                f"{self}: topology {topology.name!r} has no servers or racks to deal ranks over: all devices "
                "are alike near"
            )
        if self.how == "packed":
            keys: dict[int, list[int]] = {node: [] for node in topology.ranks}
            for level in reversed(levels):
                for group in level:
                    for device in group:
                        keys[device].append(min(group))
            dealt = sorted(topology.ranks, key=lambda node: (*keys[node], node))
        else:
            finest = [sorted(group) for group in levels[0]]
            turns = max(len(group) for group in finest)
            dealt = [group[turn] for turn in range(turns) for group in finest if turn < len(group)]
        return scenario.on(topology.place([rank_of[node] for node in dealt]))

    def _rank(self, topology: Topology, rank_of: dict[int, int], each: int | str) -> int:
        if isinstance(each, int):
            return each
        node = topology.index(each)
        if node not in rank_of:
            raise TopologyError(f"{self}: no rank lives on {each}")
        return rank_of[node]

    def __str__(self) -> str:
        return f"--place {self.how or 'order'}"


@dataclass(frozen=True)
class Late:
    """A rank (its number, or its device's name) comes ``seconds`` after the others."""

    who: int | str
    seconds: float

    def apply(self, scenario: Scenario) -> Scenario:
        topology = scenario.topology
        if not (self.seconds >= 0 and math.isfinite(self.seconds)):
            raise InvalidArgument(f"{self}: a rank is 0 seconds late or more")
        device = str(self.who)
        if device.isdecimal():
            if int(device) >= len(topology.ranks):
                raise TopologyError(
                    f"{self}: there is no rank {device}; there are {len(topology.ranks)}, 0 to "
                    f"{len(topology.ranks) - 1}"
                )
            device = topology.nodes[topology.ranks[int(device)]].name
        found = [index for index in nodes_meant(topology, device) if index in topology.ranks]
        if not found:
            raise TopologyError(f"{self}: no rank lives on {device}")
        late = tuple((topology.nodes[index].name, self.seconds) for index in found)
        return replace(scenario, late=scenario.late + late)

    def __str__(self) -> str:
        return f"--late {self.who}:{format_time(self.seconds).replace(' ', '')}"


@dataclass(frozen=True)
class LateDist:
    """Every rank comes late by a draw of its own; times are means over all draws."""

    lateness: Lateness

    def apply(self, scenario: Scenario) -> Scenario:
        return replace(scenario, lateness=self.lateness)

    def __str__(self) -> str:
        return f"--late-dist {self.lateness.shape}:{format_time(self.lateness.scale).replace(' ', '')}"


@dataclass(frozen=True)
class Ecmp:
    """Of equal paths each connection takes one, picked by a hash of its ends and ``seed``, as routers do."""

    seed: int = 0

    def apply(self, scenario: Scenario) -> Scenario:
        return replace(scenario, routing="hash", seed=self.seed)

    def __str__(self) -> str:
        return f"--ecmp seed={self.seed}"


@dataclass(frozen=True)
class Spread:
    """Every transfer is divided evenly over all equal paths, as adaptive routing does at best."""

    def apply(self, scenario: Scenario) -> Scenario:
        return replace(scenario, routing="spread")

    def __str__(self) -> str:
        return "--spread"


@dataclass(frozen=True)
class Flows:
    """Every connection is ``lanes`` connections, each with its share of the bytes and a path of its own."""

    lanes: int

    def apply(self, scenario: Scenario) -> Scenario:
        if not 1 <= self.lanes <= 64:
            raise InvalidArgument(f"{self}: 1 to 64 flows")
        return replace(scenario, flows=self.lanes)

    def __str__(self) -> str:
        return f"--flows {self.lanes}"


# ---- the graph


def _with_links(topology: Topology, links: Iterable[Link]) -> Topology:
    return replace(topology, links=tuple(links), text=None)


def _without_links(topology: Topology, gone: Iterable[int]) -> Topology:
    chosen = set(gone)
    return _with_links(topology, (link for index, link in enumerate(topology.links) if index not in chosen))


def _without_nodes(topology: Topology, gone: Iterable[int], blame: str) -> Topology:
    lost = set(gone)
    kept = [index for index in range(len(topology.nodes)) if index not in lost]
    moved = {old: new for new, old in enumerate(kept)}
    ranks = tuple(moved[index] for index in topology.ranks if index in moved)
    if not ranks:
        raise TopologyError(f"{blame} leaves no ranks of topology {topology.name!r}")
    links = (
        replace(link, source=moved[link.source], target=moved[link.target])
        for link in topology.links
        if link.source in moved and link.target in moved
    )
    nodes = tuple(topology.nodes[index] for index in kept)
    return replace(topology, nodes=nodes, links=tuple(links), ranks=ranks, text=None)


def _part(topology: Topology, what: str) -> list[int]:
    """The nodes meant; a single switch brings what hangs on it alone."""
    sort, _, name = what.partition(":")
    meant = nodes_meant(topology, name if sort == "node" and name else what)
    found = set(meant)
    for index in meant:
        if topology.nodes[index].kind == "switch" and len(meant) < len(topology.nodes):
            found.update(hanging_on(topology, index))
    return sorted(found)


def _ups_and_downs(topology: Topology) -> tuple[list[list[int]], list[list[int]]]:
    """By node, the links that leave it upwards (also to its own tier), and those that come in from below."""
    tiers = tiers_of(topology)
    ups: list[list[int]] = [[] for _ in topology.nodes]
    downs: list[list[int]] = [[] for _ in topology.nodes]
    for index, link in enumerate(topology.links):
        if tiers[link.source] and tiers[link.target] >= tiers[link.source]:
            ups[link.source].append(index)
        if tiers[link.source] < tiers[link.target]:
            downs[link.target].append(index)
    return ups, downs


def _leaves(topology: Topology, ups: list[list[int]], downs: list[list[int]]) -> list[int]:
    """Switches of the lowest tier that gather several nodes and lead on upwards."""
    tiers = tiers_of(topology)
    gathering = [
        index
        for index, node in enumerate(topology.nodes)
        if node.kind == "switch" and ups[index] and len({topology.links[k].source for k in downs[index]}) > 1
    ]
    if not gathering:
        raise TopologyError(
            f"topology {topology.name!r} has no switch to oversubscribe: none with several nodes below and "
            "links upwards"
        )
    lowest = min(tiers[index] for index in gathering)
    return [index for index in gathering if tiers[index] == lowest]


_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def _with_copy(topology: Topology, part: list[int], what: str) -> Topology:
    rename = _renaming(topology, part, what)
    copy_of = {old: len(topology.nodes) + place for place, old in enumerate(part)}
    nodes = tuple(replace(topology.nodes[old], name=rename(topology.nodes[old].name)) for old in part)
    links = [
        replace(
            link, source=copy_of.get(link.source, link.source), target=copy_of.get(link.target, link.target)
        )
        for link in topology.links
        if link.source in copy_of or link.target in copy_of
    ]
    ranks = tuple(copy_of[node] for node in topology.ranks if node in copy_of)
    return replace(
        topology,
        nodes=topology.nodes + nodes,
        links=topology.links + tuple(links),
        ranks=topology.ranks + ranks,
        text=None,
    )


def _renaming(topology: Topology, part: list[int], what: str) -> Callable[[str], str]:
    """The next free number: of the group's name where the part is one of names, or of each node's."""
    taken = {node.name for node in topology.nodes}
    names = [topology.nodes[index].name for index in part]
    if all(name.startswith(f"{what}.") for name in names):
        stem, number = _stem(what)
        fresh = next(
            f"{stem}{count}"
            for count in range(number + 1, len(taken) + number + 2)
            if not any(name.startswith(f"{stem}{count}.") for name in taken)
        )
        return lambda name: fresh + name[len(what) :]
    highest: dict[str, int] = {}
    for name in taken:
        stem, number = _stem(name)
        highest[stem] = max(highest.get(stem, -1), number)
    new: dict[str, str] = {}
    for name in names:
        stem, _ = _stem(name)
        highest[stem] += 1
        new[name] = f"{stem}{highest[stem]}"
    return new.__getitem__


def _stem(name: str) -> tuple[str, int]:
    match = _NUMBERED.match(name)
    return (match[1], int(match[2])) if match else (name, 0)
