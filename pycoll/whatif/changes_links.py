"""Changes to links: their bandwidth and latency."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pycoll.errors import InvalidArgument, TopologyError
from pycoll.topology import Link
from pycoll.topology.units import format_time
from pycoll.whatif.edits import leaves, ups_and_downs, with_links
from pycoll.whatif.names import links_meant, nodes_meant, short
from pycoll.whatif.scenario import Scenario, sensible

__all__ = ["Busy", "Latency", "Oversubscribe", "Slow"]


@dataclass(frozen=True)
class Slow:
    """Links have ``factor`` of their bandwidth; a factor above 1 makes them faster."""

    links: str
    factor: float

    def apply(self, scenario: Scenario) -> Scenario:
        sensible(self.factor, f"{self}: the factor")
        chosen = set(links_meant(scenario.topology, self.links))
        return scenario.on(
            with_links(
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
            with_links(scenario.topology, (changed(k) if i in chosen else k for i, k in links))
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
        sensible(self.ratio, f"{self}: the ratio")
        topology = scenario.topology
        ups, downs = ups_and_downs(topology)
        chosen = nodes_meant(topology, self.switches) if self.switches else leaves(topology, ups, downs)
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

        return scenario.on(with_links(topology, (changed(i, k) for i, k in enumerate(topology.links))))

    def __str__(self) -> str:
        return f"--oversubscribe {self.switches + '=' if self.switches else ''}{self.ratio:g}:1"
