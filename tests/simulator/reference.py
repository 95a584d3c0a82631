"""The simulator's model again, in the plainest way: every rule is looked at anew after every event."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from pycoll import Schedule, Topology

SAME = 1e-12


def paths(topology: Topology, src: int, dst: int) -> list[list[int]]:
    """All paths without a loop, as lists of links; only switches, and devices that forward, are passed."""

    def onward(node: int, seen: frozenset[int]) -> Iterator[list[int]]:
        for index, link in enumerate(topology.links):
            if link.source != node or link.target in seen:
                continue
            if link.target == dst:
                yield [index]
            passed = topology.nodes[link.target]
            if link.target != dst and (passed.kind == "switch" or passed.forwards):
                for rest in onward(link.target, seen | {link.target}):
                    yield [index, *rest]

    return list(onward(src, frozenset({src})))


def routes(topology: Topology, src: int, dst: int) -> list[list[int]]:
    """The equal best paths between two ranks."""

    def worth(path: list[int]) -> tuple[float, int, float]:
        links = [topology.links[index] for index in path]
        return -min(k.bandwidth for k in links), len(links), round(sum(k.latency for k in links), 12)

    every = paths(topology, topology.ranks[src], topology.ranks[dst])
    best = min(map(worth, every))
    return [path for path in every if worth(path) == best]


def fair_rates(flows: list[dict[int, float]], topology: Topology) -> list[float]:
    """Max-min fair rates of flows, each a share of its rate by link: all rise until a link is full."""
    rates = [0.0] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        room = math.inf
        for index, link in enumerate(topology.links):
            weight = sum(flows[f].get(index, 0.0) for f in rising)
            if weight > 0:
                used = sum(flow.get(index, 0.0) * rate for flow, rate in zip(flows, rates, strict=True))
                room = min(room, max(0.0, link.bandwidth - used) / weight)
        for f in rising:
            rates[f] += room
        for index, link in enumerate(topology.links):
            used = sum(flow.get(index, 0.0) * rate for flow, rate in zip(flows, rates, strict=True))
            if used >= link.bandwidth * (1 - 1e-10):
                rising = {f for f in rising if index not in flows[f]}
    return rates


@dataclass
class Life:
    start: float = math.inf
    begin: float = math.inf  # its bytes flow from here
    sent: float = math.inf
    there: float = math.inf
    done: float = math.inf
    left: float = 0.0
    flow: dict[int, float] = field(default_factory=dict)
    latency: float = 0.0


def simulate(
    schedule: Schedule, topology: Topology, size: float, start: list[float] | None = None
) -> list[Life]:
    """What becomes of each transfer."""
    transfers = [tuple(row) for row in schedule.transfers.tolist()]
    order = sorted(range(len(transfers)), key=lambda i: (transfers[i][0], i))
    arrival = start or [0.0] * schedule.ranks
    size_of_piece = size / schedule.pieces
    lives = [Life(left=size_of_piece) for _ in transfers]
    for life, (_, src, dst, _, _) in zip(lives, transfers, strict=True):
        best = routes(topology, src, dst)
        for index in itertools.chain(*best):
            life.flow[index] = life.flow.get(index, 0.0) + 1 / len(best)
        life.latency = sum(topology.links[index].latency for index in best[0])
    adder_free = [0.0] * schedule.ranks
    now = 0.0

    def over(moment: float) -> bool:
        return moment <= now * (1 + SAME)

    def device(rank: int):  # type: ignore[no-untyped-def]
        return topology.nodes[topology.ranks[rank]]

    def may_take_effect(i: int) -> bool:
        """All reads of its own and earlier rounds have left, all earlier writes are there."""
        round_, _, dst, piece, _ = transfers[i]
        for j, (other_round, src, other_dst, other_piece, _) in enumerate(transfers):
            if other_piece != piece:
                continue
            if src == dst and other_round <= round_ and not over(lives[j].sent):
                return False
            if other_dst == dst and other_round < round_ and not over(lives[j].done):
                return False
        return True

    def may_start(i: int) -> bool:
        round_, src, dst, piece, _ = transfers[i]
        if not (over(arrival[src]) and over(arrival[dst])):
            return False
        for j, (other_round, _, other_dst, other_piece, _) in enumerate(transfers):
            written = other_dst == src and other_piece == piece and other_round < round_
            if written and not (over(lives[j].done) and may_take_effect(j)):
                return False
        before = order[: order.index(i)]
        if any(transfers[j][1:3] == (src, dst) and not over(lives[j].sent) for j in before):
            return False
        for rank, side in ((src, 1), (dst, 2)):
            ports = device(rank).ports
            if ports == 0:
                continue
            mine = [j for j in before if transfers[j][side] == rank]
            if any(not over(lives[j].start) for j in mine):
                return False
            if sum(not over(lives[j].sent) for j in mine) >= ports:
                return False
        return True

    def opens_message(i: int) -> bool:
        return all(transfers[j][:3] != transfers[i][:3] for j in order[: order.index(i)])

    while True:
        changed = True
        while changed:
            changed = False
            for i in order:
                life = lives[i]
                _, src, dst, _, reduce = transfers[i]
                if life.start == math.inf and may_start(i):
                    life.start = now
                    life.begin = now + (device(src).overhead if opens_message(i) else 0.0)
                    changed = True
                rate = device(dst).reduce_rate if reduce else math.inf
                if not over(life.there) or life.done < math.inf:
                    continue
                if rate == math.inf:
                    life.done = life.there
                    changed = True
                elif may_take_effect(i):
                    adder_free[dst] = max(now, adder_free[dst]) + size_of_piece / rate
                    life.done = adder_free[dst]
                    changed = True
        flowing = [i for i in order if over(lives[i].begin) and lives[i].sent == math.inf]
        rates = fair_rates([lives[i].flow for i in flowing], topology)
        moments = [now + lives[i].left / rate for i, rate in zip(flowing, rates, strict=True)]
        ends = dict(zip(flowing, moments, strict=True))
        for life in lives:
            moments += [life.begin, life.there, life.done]
        moments += arrival
        ahead = [moment for moment in moments if not over(moment) and moment < math.inf]
        if not ahead:
            return lives
        then = min(ahead)
        for i, rate in zip(flowing, rates, strict=True):
            if ends[i] <= then * (1 + SAME):
                lives[i].sent = then
                lives[i].there = then + lives[i].latency
            else:
                lives[i].left -= rate * (then - now)
        now = then
