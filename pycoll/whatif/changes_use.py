"""Changes to how a machine is used: where ranks live, when they come, which paths traffic takes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pycoll.errors import InvalidArgument, TopologyError
from pycoll.topology import Topology
from pycoll.topology.units import format_time
from pycoll.whatif.names import nodes_meant
from pycoll.whatif.scenario import Lateness, Scenario
from pycoll.whatif.tiers import groups

__all__ = ["Ecmp", "Flows", "Late", "LateDist", "Place", "Spread"]


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
