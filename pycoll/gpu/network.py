"""Predictions for GPUs: their links by the simulator, and what calls and transfers cost by `Costs`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pycoll.errors import InvalidArgument
from pycoll.gpu import links, ways
from pycoll.gpu.costs import Costs
from pycoll.schedule import Schedule
from pycoll.selection.models import Network, Prediction
from pycoll.simulation import Simulation
from pycoll.topology import Topology

__all__ = ["GpuNetwork", "is_simulated"]

#: NCCL's LL protocol has a quarter of the bandwidth in its own model of AllReduce by a ring.
_NCCL_LL_WIRE = 4.0


class GpuNetwork(Network):
    """A topology whose ranks are GPUs. NCCL's own AllReduce is estimated, by its rings alone."""

    def __init__(self, topology: Topology, costs: Costs | None = None) -> None:
        super().__init__(topology)
        self.costs = costs or Costs.default(links.summary_of(topology))
        self._slowed: dict[tuple[Topology, float], Topology] = {}

    def time(self, way: str, collective: str, size: int, dtype: str, root: int) -> float | None:
        if way == "nccl":
            return self._nccl(size).seconds
        return super().time(way, collective, size, dtype, root) if is_simulated(way) else None

    def times(
        self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int
    ) -> dict[str, Prediction]:
        times = super().times([way for way in ways if is_simulated(way)], collective, size, dtype, root)
        if "nccl" in ways:
            times["nccl"] = self._nccl(size)
        return times

    def best(self, ways: Sequence[str], collective: str, size: int, dtype: str, root: int) -> str | None:
        return super().best([way for way in ways if is_simulated(way)], collective, size, dtype, root)

    def _nccl(self, size: int) -> Prediction:
        """By a ring, with the protocol that is the quicker: as NCCL's model chooses, but for its trees, NVLS,
        and what it knows of channels."""
        simple, light = self.costs.schedule, self.costs.kernel
        ring = self._schedule("ring", "allreduce", 0)
        by_simple = self._overheads(self.topology, simple.step), float(size), simple.start
        by_light = self.topology, size * _NCCL_LL_WIRE, light.start
        runs = [
            start + ring.simulate(machine, moved, verify=False).time
            for machine, moved, start in (by_simple, by_light)
        ]
        return Prediction(min(runs), estimated=True)

    def _schedule(self, way: str, collective: str, root: int) -> Schedule:
        made = ways.schedule_of(way, self._ranks, self.topology)
        if made is None:
            raise InvalidArgument(f"{way} has no transfers that could be simulated")
        return made

    def _estimate(self, way: str, collective: str, size: int, root: int) -> Prediction:
        cost = self.costs.of_way(way)
        made = self._schedule(way, collective, root)
        links_alone = super()._estimate(way, collective, int(size * cost.wire), root).seconds
        return Prediction(links_alone + cost.start + (cost.step + cost.round) * made.rounds, estimated=True)

    def _simulate_on(self, topology: Topology, way: str, collective: str, size: int, root: int) -> Prediction:
        cost = self.costs.of_way(way)
        found = super()._simulate_on(topology, way, collective, size, root)
        more = cost.start + cost.round * self._schedule(way, collective, root).rounds
        busy = None if found.busy is None else found.busy * found.seconds / (found.seconds + more)
        return Prediction(found.seconds + more, found.binding, busy)

    def _run(self, topology: Topology, way: str, collective: str, size: int, root: int) -> Simulation:
        cost = self.costs.of_way(way)
        machine = self._overheads(topology, cost.step)
        schedule = self._schedule(way, collective, root)
        return schedule.simulate(machine, self._logical(collective, size) * cost.wire, verify=False)

    def _overheads(self, topology: Topology, step: float) -> Topology:
        """The machine whose GPUs take so long over each transfer, unless its file says it for itself."""
        if not step or any(node.overhead for node in topology.nodes):
            return topology
        key = (topology, step)
        if key not in self._slowed:
            nodes = (
                replace(node, overhead=step) if node.kind == "device" else node for node in topology.nodes
            )
            self._slowed[key] = replace(topology, nodes=tuple(nodes), text=None)
        return self._slowed[key]

    def notes(self) -> Iterable[str]:
        yield (
            "Predicted by simulation of the links, flow by flow, with what a call and a transfer cost from "
            f"{self.costs.source}. 'about' marks rough estimates: of what is too far behind to be simulated, "
            "and of NCCL's own AllReduce, as if it were a ring."
        )


def is_simulated(way: str) -> bool:
    """Not what NCCL or a switch does by itself, and not a user's own schedule in a table."""
    return not way.startswith("@") and way not in ("nccl", "nvls")
