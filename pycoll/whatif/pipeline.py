"""Pipeline parallelism: layers in stages, microbatches that go through them, one forward and one backward in
turn.

The schedule is 1F1B with flush (PipeDream-Flush: Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters", arXiv 2104.04473, section 2.2): stage s of S runs S-1-s forwards ahead, then one
forward and one backward in turn, then the backwards that are left. Stages are side by side in the order of
ranks: ranks s*R .. s*R+R-1 are the R replicas of stage s, whose gradients are added up at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pycoll.errors import InvalidArgument
from pycoll.topology import Topology
from pycoll.whatif.workload import Layer, Workload

__all__ = ["Boundary", "Send", "Stages", "boundaries", "one_forward_one_backward", "stages_of"]


@dataclass(frozen=True)
class Stages:
    """The layers of each stage, and how many replicas and microbatches there are."""

    layers: tuple[tuple[Layer, ...], ...]
    replicas: int
    microbatches: int

    @property
    def forward(self) -> list[float]:
        """Seconds of a microbatch's forward, by stage."""
        return [sum(layer.forward for layer in own) / self.microbatches for own in self.layers]

    @property
    def backward(self) -> list[float]:
        """Seconds of a microbatch's backward, by stage."""
        return [sum(layer.backward for layer in own) / self.microbatches for own in self.layers]

    @property
    def bytes(self) -> list[int]:
        """Of the parameters, by stage."""
        return [sum(layer.bytes for layer in own) for own in self.layers]

    @property
    def activations(self) -> list[int]:
        """Bytes of a microbatch between each stage and the next."""
        ends = [own[-1].activation for own in self.layers[:-1]]
        inside = [max((layer.activation for layer in own), default=0) for own in self.layers[:-1]]
        return [(end or most) // self.microbatches for end, most in zip(ends, inside, strict=True)]


def stages_of(workload: Workload, ranks: int) -> Stages:
    """The workload's layers in stages of about equal computing, in their order.

    Without a number of stages it is the largest of 8, 4, 2 that divides the ranks and leaves each a layer;
    without one of microbatches, four a stage. Raises InvalidArgument for a number that does not fit.
    """
    count = workload.stages or next(
        (each for each in (8, 4, 2) if ranks % each == 0 and each <= len(workload.layers)), 0
    )
    if not count or ranks % count or count > len(workload.layers):
        raise InvalidArgument(
            f"pipeline of {workload.name!r}: {count or 'no number of'} stages for {ranks} ranks and "
            f"{len(workload.layers)} layers; stages divide the ranks, and each has a layer or more"
        )
    costs = [layer.forward + layer.backward for layer in workload.layers]
    cuts = _balanced(costs, count)
    parts = tuple(
        workload.layers[begin:end]
        for begin, end in zip([0, *cuts], [*cuts, len(workload.layers)], strict=True)
    )
    return Stages(parts, ranks // count, workload.microbatches or 4 * count)


def _balanced(costs: Sequence[float], count: int) -> list[int]:
    """Where to cut so that the most expensive of the ``count`` parts, none empty, costs least."""
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    size = len(costs)
    best = [[0.0] * (size + 1) for _ in range(count + 1)]
    cut = [[0] * (size + 1) for _ in range(count + 1)]
    best[1] = list(total)
    for parts in range(2, count + 1):
        for end in range(parts, size + 1):
            options = ((max(best[parts - 1][at], total[end] - total[at]), at) for at in range(parts - 1, end))
            best[parts][end], cut[parts][end] = min(options)
    cuts: list[int] = []
    end = size
    for parts in range(count, 1, -1):
        end = cut[parts][end]
        cuts.append(end)
    return cuts[::-1]


# ---- what sending takes


@dataclass(frozen=True)
class Boundary:
    """Seconds of a microbatch's activations to the next stage, and of their gradients back."""

    forward: float
    backward: float


#: (stage, replica) -> seconds that do not depend on bytes, and the share of them on each link.
Routes = dict[tuple[int, int], tuple[float, list[tuple[int, float]]]]


def boundaries(topology: Topology, stages: Stages, routing: str, seed: int) -> list[Boundary]:
    """For each boundary, the slowest of its replicas, all of which send at once over all boundaries.

    A link gives each of the transfers that cross it its part of the bandwidth.
    """
    count, replicas, links = len(stages.layers), stages.replicas, topology.links
    ways: list[list[float]] = []
    for step in (1, -1):
        routes: Routes = {}
        load: dict[int, float] = {}
        for stage in range(count - 1):
            size = stages.activations[stage]
            for replica in range(replicas):
                ends = [stage * replicas + replica, (stage + 1) * replicas + replica][::step]
                latency, shares = topology.native.route(*ends, routing, seed)
                overhead = topology.nodes[topology.ranks[ends[0]]].overhead
                routes[stage, replica] = (latency + overhead, shares)
                for link, share in shares:
                    load[link] = load.get(link, 0.0) + size * share

        def slowest(stage: int, routes: Routes = routes, load: dict[int, float] = load) -> float:
            return max(
                fixed + max((load[link] / links[link].bandwidth for link, _ in shares), default=0.0)
                for fixed, shares in (routes[stage, replica] for replica in range(replicas))
            )

        ways.append([slowest(stage) for stage in range(count - 1)])
    return [Boundary(forward, backward) for forward, backward in zip(*ways, strict=True)]


# ---- the schedule


@dataclass(frozen=True)
class Send:
    """A microbatch from one stage to another: seconds at which it leaves and arrives."""

    source: int
    target: int
    microbatch: int
    start: float
    end: float


def one_forward_one_backward(
    forward: Sequence[float],
    backward: Sequence[float],
    sending: Sequence[Boundary],
    microbatches: int,
) -> tuple[list[float], list[Send]]:
    """Seconds at which each stage has done its last backward, and all that was sent.

    ``forward`` and ``backward`` are a microbatch's seconds by stage. Sending does not hold up computing.
    """
    count = len(forward)
    plans = [_plan(stage, count, microbatches) for stage in range(count)]
    place, free = [0] * count, [0.0] * count
    arrived: dict[tuple[str, int, int], float] = {("F", 0, batch): 0.0 for batch in range(microbatches)}
    sends: list[Send] = []
    moved = True
    while moved:
        moved = False
        for stage in range(count):
            while place[stage] < len(plans[stage]):
                kind, batch = plans[stage][place[stage]]
                ready = arrived.get((kind, stage, batch))
                if ready is None:
                    break
                end = max(free[stage], ready) + (forward if kind == "F" else backward)[stage]
                free[stage] = end
                place[stage] += 1
                moved = True
                following = stage + 1 if kind == "F" else stage - 1
                if following == count:
                    arrived["B", stage, batch] = end
                elif following >= 0:
                    edge = sending[min(stage, following)]
                    until = end + (edge.forward if kind == "F" else edge.backward)
                    arrived[kind, following, batch] = until
                    sends.append(Send(stage, following, batch, end, until))
    return free, sorted(sends, key=lambda each: each.start)


def _plan(stage: int, count: int, microbatches: int) -> list[tuple[str, int]]:
    ahead = min(count - 1 - stage, microbatches)
    plan = [("F", batch) for batch in range(ahead)]
    for batch in range(microbatches - ahead):
        plan += [("F", ahead + batch), ("B", batch)]
    return plan + [("B", batch) for batch in range(microbatches - ahead, microbatches)]


def pipeline(
    workload: Workload, topology: Topology, routing: str, seed: int, allreduce: Callable[[int, int], float]
) -> tuple[float, float, float, list[tuple[str, str, int, float, float, float]]]:
    """Seconds of a step, of the busiest stage's computing, of the bubble when sending takes no time; and
    what is sent: (what, collective, bytes, ready, start, end).

    ``allreduce(stage, bytes)`` is the seconds of the replicas' gradients of a stage, once backward is over.
    """
    stages = stages_of(workload, len(topology.ranks))
    forward, backward = stages.forward, stages.backward
    edges = boundaries(topology, stages, routing, seed)
    ended, sends = one_forward_one_backward(forward, backward, edges, stages.microbatches)
    rows = [
        (
            f"stage {each.source} to {each.target}, microbatch {each.microbatch}",
            "send",
            stages.activations[min(each.source, each.target)],
            each.start,
            each.start,
            each.end,
        )
        for each in sends
    ]
    done = []
    for stage, (end, size) in enumerate(zip(ended, stages.bytes, strict=True)):
        last = end
        if stages.replicas > 1 and size:
            last = end + allreduce(stage, size)
            rows.append((f"gradients of stage {stage}", "allreduce", size, end, end, last))
        done.append(last)
    free = [Boundary(0.0, 0.0)] * len(edges)
    alone, _ = one_forward_one_backward(forward, backward, free, stages.microbatches)
    computing = max((f + b) * stages.microbatches for f, b in zip(forward, backward, strict=True))
    return max(done) + workload.step, computing + workload.step, max(alone) - computing, rows
