"""What a probe found, in sentences and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycoll.topology.fit import SHARED, Fit
from pycoll.topology.matrix import LinkMatrix, Together
from pycoll.topology.measure import Flow
from pycoll.topology.tree_links import TreeLink, fair_shares
from pycoll.topology.tree_topology import cluster_names, rank_ranges

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["findings", "print_probe"]

_MOST_CELLS = 8  # ranks that a matrix of them fits on a screen
_MOST_SHARED = 12
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def findings(matrix: LinkMatrix, fitted: Fit) -> list[str]:
    """A sentence for each thing that a user of the machine should know, the most important first."""
    words = _Words(matrix, fitted)
    return [
        *words.sampled(),
        *words.clusters(),
        *words.shared(),
        *words.slow(),
        *words.rates(),
        *words.doubts(),
    ]


class _Words:
    def __init__(self, matrix: LinkMatrix, fitted: Fit) -> None:
        self.matrix, self.fitted, self.links = matrix, fitted, fitted.links
        self.names = cluster_names(matrix, fitted.links)

    def sampled(self) -> Iterator[str]:
        if self.matrix.sampled:
            n = self.matrix.ranks
            yield (
                f"{n} ranks are many: measured were {self.matrix.pairs_measured:,} of their {n * (n - 1):,} "
                "pairs, inside clusters and between their first ranks; a cluster's ranks pass for equal"
            )

    def clusters(self) -> Iterator[str]:
        for index, cluster in enumerate(self.links.clusters):
            children = self.links.children[index]
            if not children:
                continue
            parts = cluster.parts()
            between = self._pairs_of(parts)
            inside = [
                pair for child in children for pair in self._pairs_of(self.links.clusters[child].parts())
            ]
            listed = " | ".join(rank_ranges(part) for part in parts[:4]) + (
                " | ..." if len(parts) > 4 else ""
            )
            yield (
                f"{self.names[index]} joins {_number(len(parts))} parts, {listed}: "
                f"{self._between(between)} between them, {self._between(inside)} inside"
            )
        if laned := sorted(self.links.lanes):
            rates = [rate for link, rate in self.fitted.capacity.items() if link.kind == "lane"]
            apart = len(set(self.matrix.hosts)) > 1
            of = ", ".join(self.names[cluster] for cluster in laned[:4]) + (", ..." if len(laned) > 4 else "")
            yield (
                f"each rank of {of} has a way out of there of its own, of "
                f"{self._rate(float(np.median(rates)), apart)}, beside its way to the others inside"
            )

    def shared(self) -> Iterator[str]:
        """Flows that together get less than each alone, by the link that lets them have no more."""
        found: dict[TreeLink, tuple[float, Together, list[int]]] = {}
        for measured in self.matrix.together:
            shares = fair_shares(measured.flows, self.links, self.fitted.capacity)
            for link in {share.link for share in shares if share.link is not None}:
                bound = [i for i, share in enumerate(shares) if share.link == link]
                kept = sum(measured.rates[i] for i in bound) / sum(
                    self._alone(measured.flows[i]) for i in bound
                )
                if len(bound) < 2 or kept >= SHARED:
                    continue
                if link not in found or len(bound) > len(found[link][2]):
                    found[link] = (kept, measured, bound)
        of_ranks = {link: each for link, each in found.items() if link.kind in ("rank", "lane")}
        others = sorted(
            ((link, each) for link, each in found.items() if link not in of_ranks),
            key=lambda item: item[1][0],
        )
        for link, each in others[:_MOST_SHARED]:
            yield self._shared(link, each[1], each[2])
        if len(others) > _MOST_SHARED:
            yield f"{len(others) - _MOST_SHARED} more bottlenecks are shared; the topology file has them all"
        if of_ranks:
            link, each = min(of_ranks.items(), key=lambda item: (item[0].owner, not item[0].up))
            yield "flows of one rank share its link: " + self._shared(link, each[1], each[2])
        elif not others and any(len(each.flows) > 1 for each in self.matrix.together):
            yield "no flows share a bottleneck: all together get what each gets alone"

    def _shared(self, link: TreeLink, each: Together, bound: list[int]) -> str:
        flows = [each.flows[i] for i in bound]
        apart = self._apart(flows)
        total = sum(each.rates[i] for i in bound)
        alone = float(np.median([self._alone(flow) for flow in flows]))
        arrow = ", ".join(f"r{flow.src}->r{flow.dst}" for flow in flows[:4])
        arrow += f", ... ({len(flows)} links)" if len(flows) > 4 else ""
        unit, scale = _unit(total, apart)
        return (
            f"links {arrow} share a bottleneck of {_digits(total * scale)} {unit} (alone "
            f"{_digits(alone * scale)}, {_number(len(flows))} at once {_digits(total / len(flows) * scale)} "
            f"each): {self._place(link)}"
        )

    def _place(self, link: TreeLink) -> str:
        if link.kind == "fabric":
            hosts = {self.matrix.hosts[rank] for rank in self.links.ranks_of[link.owner]}
            if len(hosts) == 1:
                return f"what {self.names[link.owner]} has of memory bandwidth and processors"
            return f"the inside of {self.names[link.owner]}"
        way = "out of" if link.up else "into"
        if link.kind == "cluster":
            ranks = rank_ranges(sorted(self.links.ranks_of[link.owner]))
            return f"the way {way} {self.names[link.owner]} ({ranks})"
        return f"the way {way} r{link.owner}"

    def slow(self) -> Iterator[str]:
        """Ranks whose link is slower than those of most others beside them."""
        for up in (True, False):
            links = {r: self.fitted.capacity[TreeLink("rank", r, up)] for r in range(self.matrix.ranks)}
            for rank, rate in links.items():
                beside = [links[r] for r, home in self.links.home.items() if home == self.links.home[rank]]
                usual = float(np.median(beside))
                if len(beside) > 2 and rate < 0.8 * usual:
                    apart = len(set(self.matrix.hosts)) > 1
                    way = "sends" if up else "receives"
                    yield (
                        f"r{rank} ({self.matrix.hosts[rank]}) {way} at {self._rate(rate, apart)}, the ranks "
                        f"beside it at {self._rate(usual, apart)}"
                    )

    def rates(self) -> Iterator[str]:
        for what, alone, together in (
            ("copying", self.matrix.copy_rate, self.matrix.copy_rate_together),
            ("adding", self.matrix.reduce_rate, self.matrix.reduce_rate_together),
        ):
            both = ~np.isnan(alone) & ~np.isnan(together)
            if not both.any():
                continue
            one, all_ = float(np.median(alone[both])), float(np.median(together[both]))
            if all_ < 0.8 * one:
                yield (
                    f"{what}, a rank alone does {_digits(one / 1e9)} GB/s, while all do "
                    f"{_digits(all_ / 1e9)} GB/s each: ranks of a host share its processors or its memory; "
                    "the topology has the lower rate"
                )

    def doubts(self) -> Iterator[str]:
        yield from self.matrix.unsettled
        counts = self.matrix.stamp.get("measurements", {})
        usual = self.matrix.stamp.get("state", "")
        if len(counts) > 1:
            yield (
                f"the machine's processors moved while it was measured: of {sum(counts.values())} "
                f"measurements the {counts.get(usual, 0)} count that were taken while they were {usual} (a "
                "cache line takes less than 70 ns between near ones)"
            )

    def _alone(self, flow: Flow) -> float:
        beta = self.matrix.beta[flow]
        if not math.isnan(beta):
            return float(1 / beta)
        return fair_shares([flow], self.links, self.fitted.capacity)[0].rate

    def _between(self, pairs: Sequence[Flow]) -> str:
        alpha = [self.matrix.alpha[pair] for pair in pairs if not np.isnan(self.matrix.alpha[pair])]
        rate = [1 / self.matrix.beta[pair] for pair in pairs if not np.isnan(self.matrix.beta[pair])]
        parts = [_time(float(np.median(alpha)))] if alpha else []
        parts += [self._rate(float(np.median(rate)), self._apart(pairs))] if rate else []
        return " and ".join(parts) or "nothing measured"

    def _pairs_of(self, parts: Sequence[Sequence[int]]) -> list[Flow]:
        return [Flow(a, b) for one in parts for two in parts if one is not two for a in one for b in two]

    def _apart(self, flows: Iterable[Flow]) -> bool:
        return any(self.matrix.hosts[flow.src] != self.matrix.hosts[flow.dst] for flow in flows)

    def _rate(self, rate: float, apart: bool) -> str:
        unit, scale = _unit(rate, apart)
        return f"{_digits(rate * scale)} {unit}"


def print_probe(matrix: LinkMatrix, fitted: Fit, console: Console) -> None:
    """The matrix, the findings, and how well the topology explains what was measured."""
    few = matrix.ranks <= _MOST_CELLS
    console.print(_matrix_table(matrix) if few else _level_table(matrix, fitted))
    console.print()
    for sentence in findings(matrix, fitted):
        console.print(f"- {sentence}", highlight=False)
    console.print(
        "\nHow well the topology explains what was measured (simulated against measured):", style="bold"
    )
    for quality in fitted.quality:
        console.print(f"  {quality}", highlight=False)


def _matrix_table(matrix: LinkMatrix) -> Table:
    from rich.table import Table

    apart = len(set(matrix.hosts)) > 1
    unit, scale = _unit(float(np.nanmedian(1 / matrix.beta)), apart)
    table = Table(
        title=f"latency; {unit} alone, with spread; {unit} while all ranks exchange in pairs",
        header_style="bold",
        show_lines=True,
    )
    table.add_column("from", style="bold", no_wrap=True)
    for rank in range(matrix.ranks):
        table.add_column(f"to r{rank}", justify="right", no_wrap=True)
    for a in range(matrix.ranks):
        cells = []
        for b in range(matrix.ranks):
            alone, together = (_plain(scale / m[a, b]) for m in (matrix.beta, matrix.beta_together))
            spread = matrix.beta_spread[a, b]
            around = "" if math.isnan(spread) else f" ±{spread:.0%}"
            cells.append("-" if a == b else f"{_time(matrix.alpha[a, b])}\n{alone}{around}\n{together}")
        table.add_row(f"r{a}\n{matrix.hosts[a]}" if apart else f"r{a}", *cells)
    return table


def _level_table(matrix: LinkMatrix, fitted: Fit) -> Table:
    """Of many ranks: a row for each switch, of the pairs that meet there."""
    from rich.table import Table

    apart = len(set(matrix.hosts)) > 1
    unit, scale = _unit(float(np.nanmedian(1 / matrix.beta)), apart)
    table = Table(title="pairs by the switch at which they meet: median (least to most)", header_style="bold")
    table.add_column("switch", style="bold")
    table.add_column("ranks")
    for name in ("pairs", "latency, us", f"{unit} alone", f"{unit} while all exchange"):
        table.add_column(name, justify="right")
    names = cluster_names(matrix, fitted.links)
    meeting: dict[int, list[Flow]] = {}
    for a, b in np.argwhere(~np.isnan(matrix.alpha) | ~np.isnan(matrix.beta)).tolist():
        meeting.setdefault(fitted.links.meeting(Flow(a, b)), []).append(Flow(a, b))
    for cluster in sorted(meeting):
        pairs = meeting[cluster]
        table.add_row(
            names[cluster],
            rank_ranges(sorted(fitted.links.ranks_of[cluster])),
            str(len(pairs)),
            _range_of([matrix.alpha[pair] * 1e6 for pair in pairs]),
            _range_of([scale / matrix.beta[pair] for pair in pairs]),
            _range_of([scale / matrix.beta_together[pair] for pair in pairs]),
        )
    return table


def _range_of(values: Sequence[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "-"
    return f"{_digits(float(np.median(known)))} ({_digits(min(known))} to {_digits(max(known))})"


def _plain(value: float) -> str:
    return "-" if math.isnan(value) else _digits(value)


def _unit(rate: float, apart: bool) -> tuple[str, float]:
    """The unit for rates about this one, and how many of it one byte/s is.

    Between hosts as networks are sold, in bits; inside in bytes.
    """
    units = (("Tbit/s", 8e-12), ("Gbit/s", 8e-9), ("Mbit/s", 8e-6)) if apart else (("GB/s", 1e-9),)
    return next((unit for unit in units if rate * unit[1] >= 0.95), units[-1])


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.95 * scale or unit == "us":
            break
    return f"{_digits(seconds / scale)} {unit}"


def _digits(value: float) -> str:
    """Three digits, and no exponent for large ones."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)
