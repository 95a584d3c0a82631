"""A machine as a graph: devices that ranks live on, switches that only forward, directed links between them.

    t = pycoll.Topology.load("two_racks")
    t.bound("allreduce", 2**30)                # the least seconds that any algorithm could take
    t.scaled("tor0->tor1", 0.5)                # the same machine with a slower link

docs/topology.md shows the file that one is loaded from.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from pycoll import _core
from pycoll.errors import InvalidArgument, TopologyError
from pycoll.topology import reach
from pycoll.topology.graph import Link, Node, check_link, check_node, named
from pycoll.topology.units import parse_bandwidth, parse_time

__all__ = ["Link", "Node", "Topology"]


@dataclass(frozen=True)
class Topology:
    """A machine: ``nodes``, directed ``links``, and the node index of the device that each rank lives on.

    Immutable; two are equal when name, nodes, links and ranks are. A full-duplex link is two links here.
    Raises TopologyError for an index out of range, a name that is missing or taken, a rank on a switch, two
    ranks on one device, a rate that is not positive. Ranks that cannot reach each other are left to
    :meth:`check`, which every way of loading calls.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    ranks: tuple[int, ...]
    about: str = field(default="", compare=False)
    text: str | None = field(default=None, compare=False, repr=False)  # the file as it was written

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "ranks", tuple(self.ranks))
        for node in self.nodes:
            check_node(node)
        taken = Counter(node.name for node in self.nodes)
        for name, count in taken.items():
            if count > 1:
                raise TopologyError(f"{count} nodes are called {name!r}; names must differ")
        links = tuple(self.links)
        for link in links:
            check_link(link, self.nodes)
        object.__setattr__(self, "links", named(links, self.nodes))
        self._check_ranks()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # of thousands of links, where a cache asks at every look-up
        return hash((self.name, self.nodes, self.links, self.ranks))

    def _check_ranks(self) -> None:
        if not self.ranks:
            raise TopologyError(f"topology {self.name!r} has no ranks")
        seen: dict[int, int] = {}
        for rank, index in enumerate(self.ranks):
            if not 0 <= index < len(self.nodes):
                raise TopologyError(f"rank {rank} lives on node {index} of {len(self.nodes)}")
            node = self.nodes[index]
            if node.kind != "device":
                raise TopologyError(f"rank {rank} lives on {node.name}, a switch; ranks need a device")
            if index in seen:
                raise TopologyError(f"ranks {seen[index]} and {rank} both live on {node.name}; one a device")
            seen[index] = rank

    # ---- where one comes from

    @classmethod
    def load(cls, source: str | PathLike[str]) -> Topology:
        """The topology in a YAML file, or the bundled one of that name: ``"dgx-h100"``.

        ``pycoll topo list`` prints the bundled names. Raises TopologyError, naming file, line, column, field
        and remedy, for what is wrong in the file, and for a name or file that does not exist.
        """
        from pycoll.topology.bundled import find

        path = find(source)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise TopologyError(f"{path} cannot be read: {reason}") from error
        return cls.from_yaml(text, file=str(path))

    @classmethod
    def from_yaml(cls, text: str, *, file: str = "topology") -> Topology:
        """The topology that the text of a topology file describes; ``file`` is what errors call it.

        Raises TopologyError, naming line, column, field and remedy.
        """
        from pycoll.topology.format import read_yaml

        return read_yaml(text, file)

    @classmethod
    def flat(
        cls,
        ranks: int,
        bandwidth: float | str,
        latency: float | str = 0.0,
        ports: int = 1,
        overhead: float | str = 0.0,
    ) -> Topology:
        """``ranks`` devices on one switch: the machine that closed forms are written for.

        ``bandwidth`` is that of one direction of each device's link; ``latency`` is from device to device,
        half of it on either side of the switch. Numbers are bytes/s and seconds; text has units.
        """
        if ranks < 1:
            raise InvalidArgument(f"a topology needs at least 1 rank, not {ranks}")
        speed, half = _bandwidth(bandwidth), _time(latency) / 2
        device = Node("", "device", ports=ports, overhead=_time(overhead))
        nodes = [replace(device, name=f"r{rank}") for rank in range(ranks)]
        links = []
        for rank in range(ranks):
            links += [Link(rank, ranks, speed, half), Link(ranks, rank, speed, half)]
        name = f"{ranks} ranks on one switch"
        return cls(name, (*nodes, Node("switch", "switch")), tuple(links), tuple(range(ranks)))

    # ---- where it goes

    def to_yaml(self) -> str:
        """The text of a topology file: as it was loaded, comments and all, or else written out anew.

        ``Topology.from_yaml(t.to_yaml()) == t`` for every topology.
        """
        if self.text is not None:
            return self.text
        from pycoll.topology.writer import write_yaml

        return write_yaml(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes :meth:`to_yaml` to a file."""
        Path(path).write_text(self.to_yaml(), encoding="utf-8")

    @cached_property
    def native(self) -> Any:
        """The same graph in C++, as simulator and bound read it; made once."""
        core: Any = _core
        nodes = [
            (n.name, n.kind, n.ports, n.overhead, n.copy_rate, n.reduce_rate, n.forwards) for n in self.nodes
        ]
        links = [(k.source, k.target, k.bandwidth, k.latency, k.name) for k in self.links]
        return core.Topology(self.name, nodes, links, list(self.ranks))

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # not what is cached

    # ---- the same machine, otherwise

    def place(self, ranks: Iterable[int]) -> Topology:
        """The same machine with other ranks: new rank i lives where rank ``ranks[i]`` lives now.

        An order of all ranks, or of some. Raises TopologyError for a rank that does not exist or comes twice.
        """
        order = list(ranks)
        for rank in order:
            if not 0 <= rank < len(self.ranks):
                raise TopologyError(f"there is no rank {rank} in {self.name!r}, which has {len(self.ranks)}")
        return replace(self, ranks=tuple(self.ranks[rank] for rank in order), text=None)

    def first(self, ranks: int) -> Topology:
        """The machine cut down to its first ``ranks`` ranks; itself where it has no more than that.

        The devices of the other ranks are gone with their links. Switches keep the links between them, in
        full: 64 GPUs of a pod see the whole pod's spine. A switch that served only ranks that are gone, being
        nearer to them than to any other, is gone too.
        """
        if ranks < 1:
            raise InvalidArgument(f"a topology needs at least 1 rank, not {ranks}")
        if ranks >= len(self.ranks):
            return self
        gone = set(self.ranks[ranks:])
        before = reach.distances(len(self.nodes), self.links, set(self.ranks))
        after = reach.distances(len(self.nodes), self.links, set(self.ranks[:ranks]), gone)
        kept = {
            index
            for index, node in enumerate(self.nodes)
            if index not in gone and (node.kind == "device" or before[index] == after[index])
        }
        cut = self._keep(kept, f"{self.name}, first {ranks}")
        cut.check()
        return cut

    def scaled(self, pattern: str, factor: float) -> Topology:
        """The machine with the bandwidth of every link whose name matches multiplied by ``factor``.

        ``pattern`` is a shell pattern over directed names: ``"tor0->tor1"``, ``"*->tor1"``, ``"gpu3<->*"``;
        with ``<->``, both directions. Raises TopologyError where no link matches, InvalidArgument for a
        factor that is not positive (see :meth:`without`).
        """
        if not (factor > 0 and math.isfinite(factor)):
            raise InvalidArgument(f"a factor is positive, not {factor}; without() removes links")
        chosen = self.matching_links(pattern)
        links = [
            replace(link, bandwidth=link.bandwidth * factor) if index in chosen else link
            for index, link in enumerate(self.links)
        ]
        return replace(self, links=tuple(links), text=None)

    def without(self, pattern: str) -> Topology:
        """The machine after a failure: without the links, or the nodes, whose names match ``pattern``.

        A pattern with ``->`` or ``<->`` is one of links (see :meth:`scaled`), any other one of nodes; ranks
        on a node that is gone are gone, and the rest move up. Raises TopologyError where nothing matches,
        and where the ranks that remain cannot reach each other.
        """
        if "->" in pattern:
            gone = self.matching_links(pattern)
            links = tuple(link for index, link in enumerate(self.links) if index not in gone)
            rest = replace(self, links=links, text=None)
        else:
            kept = {i for i, node in enumerate(self.nodes) if not fnmatchcase(node.name, pattern)}
            if len(kept) == len(self.nodes):
                raise self._no_match("node", pattern, [node.name for node in self.nodes])
            if not kept & set(self.ranks):
                raise TopologyError(f"without {pattern!r}, topology {self.name!r} has no ranks left")
            rest = self._keep(kept, self.name)
        rest.check()
        return rest

    def matching_links(self, pattern: str) -> set[int]:
        """Indices of the links whose names match, as :meth:`scaled` reads ``pattern``."""
        patterns = [pattern]
        if "<->" in pattern:
            left, right = pattern.split("<->", 1)
            number = ""
            if "#" in right:
                right, digits = right.split("#", 1)
                number = f"#{digits}"
            patterns = [f"{left}->{right}{number}", f"{right}->{left}{number}"]
        chosen = {
            index
            for index, link in enumerate(self.links)
            if any(fnmatchcase(link.name, each) for each in patterns)
        }
        if not chosen:
            raise self._no_match("link", pattern, [link.name for link in self.links])
        return chosen

    def _no_match(self, what: str, pattern: str, names: list[str]) -> TopologyError:
        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names[:4])}, ..."
        return TopologyError(f"no {what} of topology {self.name!r} matches {pattern!r}{hint}")

    def _keep(self, kept: set[int], name: str) -> Topology:
        """The graph of these nodes only."""
        moved = {old: new for new, old in enumerate(sorted(kept))}
        links = tuple(
            replace(link, source=moved[link.source], target=moved[link.target])
            for link in self.links
            if link.source in moved and link.target in moved
        )
        nodes = tuple(self.nodes[index] for index in moved)
        ranks = tuple(moved[index] for index in self.ranks if index in moved)
        return replace(self, name=name, nodes=nodes, links=links, ranks=ranks, text=None)

    # ---- questions

    def index(self, name: str) -> int:
        """Index of the node of that name; TopologyError, with the nearest name, if there is none."""
        for index, node in enumerate(self.nodes):
            if node.name == name:
                return index
        raise self._no_match("node", name, [node.name for node in self.nodes])

    def parts(self) -> list[list[int]]:
        """The ranks in groups that can all reach each other, largest group first; one group if all is well.

        A transfer passes through switches and through devices that forward, through no others.
        """
        return reach.parts(self.nodes, self.links, self.ranks)

    def check(self) -> None:
        """Raises TopologyError, naming two of them, where some ranks cannot reach each other."""
        parts = self.parts()
        if len(parts) > 1:
            first, second = (
                self.nodes[self.ranks[rank]].name
                for rank in reach.unreachable(self.nodes, self.links, self.ranks)
            )
            raise TopologyError(
                f"topology {self.name!r} falls into {len(parts)} parts that do not all reach each other: no "
                f"path from {first} to {second}; add a link, or leave one part out of ranks"
            )

    def bound(self, collective: str, size: float, root: int = 0) -> float:
        """The least seconds that any algorithm could take on this machine.

        ``size`` is the bytes of the logical buffer. :func:`pycoll.bounds.bound` says also which part of the
        machine binds, and whether the figure is proved tight.
        """
        from pycoll.bounds import bound

        return float(bound(self, collective, size, root=root).seconds)

    def draw(self, path: str | PathLike[str] | None = None, *, dpi: int = 150) -> Any:
        """Draws the machine: switches in tiers over their devices, or devices on the grid of a torus.

        Writes the picture to ``path`` where given, and returns matplotlib's figure. Raises Unsupported where
        matplotlib is not installed.
        """
        from pycoll.topology.drawing import draw_topology

        return draw_topology(self, path, dpi=dpi)

    def __str__(self) -> str:
        switches = sum(node.kind == "switch" for node in self.nodes)
        return (
            f"{self.name}: {len(self.ranks)} ranks, {len(self.nodes) - switches} devices, "
            f"{switches} switches, {len(self.links)} directed links"
        )


def _bandwidth(value: float | str) -> float:
    return parse_bandwidth(value) if isinstance(value, str) else float(value)


def _time(value: float | str) -> float:
    return parse_time(value) if isinstance(value, str) else float(value)
