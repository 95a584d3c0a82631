"""The ways to run an AllReduce on the GPUs of a group: a list of sorts, to which one adds a sort.

| way | runs |
|---|---|
| ``one_shot``, ``two_shot`` | pycoll's kernels for small buffers |
| ``nvls`` | the NVLink switch's own reductions, where the group has them |
| ``ring/16`` | a schedule of the registry through the kernel that interprets any: 16 pieces |
| ``late_rank/28`` | the same, whose last rank is the one that comes last at run time |
| ``nccl:ring/16`` | a schedule over NCCL's send and recv |
| ``nccl`` | NCCL's own AllReduce |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pycoll.errors import Error, InvalidArgument, Unsupported
from pycoll.selection import candidates
from pycoll.selection.decisions import split_way, way_name

if TYPE_CHECKING:
    from pycoll import cuda, nccl
    from pycoll.schedule import Schedule
    from pycoll.topology import Topology

__all__ = ["KINDS", "Groups", "Kind", "kind_of", "names", "schedule_of"]

#: call(x, out, op, factor, stream)
Call = Callable[[Any, Any, str, float, "int | None"], Any]


class Groups:
    """What runs the ways of one rank: the group of GPUs, and NCCL's of the same ranks, made when it is first
    needed, by all ranks at once."""

    def __init__(self, gpus: cuda.Group) -> None:
        self.gpus = gpus
        self._nccl: nccl.Group | None = None

    @property
    def nccl(self) -> nccl.Group:
        """Collective at its first use. Raises Unsupported, on every rank, where any lacks NCCL."""
        if self._nccl is None:
            from pycoll import nccl

            with suppress(Exception):  # where cupy is missing, of() says so on every rank
                import_module("cupy").cuda.Device(self.gpus.device).use()
            self._nccl = nccl.Group.of(self.gpus._comm)
        return self._nccl


class Kind(ABC):
    """A sort of ways."""

    title = ""
    over_nccl = False

    @abstractmethod
    def names(self, ranks: int, link: str) -> Iterator[str]:
        """Those worth comparing; ``link`` as :class:`pycoll.gpu.machine.GpuMachine` has it."""

    @abstractmethod
    def owns(self, way: str) -> bool: ...

    @abstractmethod
    def call(self, groups: Groups, way: str) -> Call: ...

    def takes(self, groups: Groups, way: str, dtype: str, op: str, elements: int) -> bool:
        """Whether the way runs for these arguments: decided from them alone, so by all ranks alike."""
        return True

    def prepare(self, groups: Groups, way: str) -> None:  # noqa: B027  most have nothing to prepare
        """What may wait for the GPU, before any rank's kernel waits for another's."""

    def schedule(self, way: str, ranks: int, topology: Topology | None = None) -> Schedule | None:
        """The transfers that it comes to; None where nobody outside knows."""
        return None


class Kernel(Kind):
    """A kernel of pycoll.cuda for small buffers, and the schedule that it amounts to."""

    def __init__(self, name: str, like: str) -> None:
        self.title, self._name, self._like = f"the kernel {name}", name, like

    def names(self, ranks: int, link: str) -> Iterator[str]:
        yield self._name

    def owns(self, way: str) -> bool:
        return way == self._name

    def takes(self, groups: Groups, way: str, dtype: str, op: str, elements: int) -> bool:
        return elements <= groups.gpus._limit(way, dtype)

    def call(self, groups: Groups, way: str) -> Call:
        def run(x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
            return groups.gpus.allreduce(x, op, out=out, algorithm=way, factor=factor, stream=stream)

        return run

    def schedule(self, way: str, ranks: int, topology: Topology | None = None) -> Schedule | None:
        return candidates.schedule_of(way_name(self._like), "allreduce", ranks)


class Switch(Kind):
    """Reductions inside the NVLink switch, by pycoll's kernels, where the group can have them."""

    title = "the NVLink switch's own reductions"

    def names(self, ranks: int, link: str) -> Iterator[str]:
        if link == "nvswitch":
            yield "nvls"

    def owns(self, way: str) -> bool:
        return way == "nvls"

    def takes(self, groups: Groups, way: str, dtype: str, op: str, elements: int) -> bool:
        if not getattr(groups.gpus, "nvls", False):
            return False
        return dtype in ("float32", "float16", "bfloat16") and op in ("sum", "avg", "premul_sum")

    def call(self, groups: Groups, way: str) -> Call:
        if not getattr(groups.gpus, "nvls", False):
            reason = getattr(groups.gpus, "nvls_reason", "this pycoll has no kernels for it")
            raise Unsupported(f"algorithm nvls: {reason}")

        def run(x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
            return groups.gpus.allreduce(x, op, out=out, algorithm=way, factor=factor, stream=stream)

        return run


class Interpreted(Kind):
    """Schedules of the registry, interpreted by one kernel."""

    title = "schedules"
    _prefix = ""
    _grid = candidates.GRID

    def names(self, ranks: int, link: str) -> Iterator[str]:
        for way in candidates.ways("allreduce", ranks)[1:]:  # the first is the processors' fast path
            yield f"{self._prefix}{way}"

    def owns(self, way: str) -> bool:
        from pycoll.schedule import algorithms

        if not way.startswith(self._prefix):
            return False
        info = algorithms().get(split_way(way[len(self._prefix) :])[0])
        return info is not None and "allreduce" in info.collectives and not info.for_late_ranks

    def schedule(self, way: str, ranks: int, topology: Topology | None = None) -> Schedule | None:
        return candidates.schedule_of(way[len(self._prefix) :], "allreduce", ranks, 0, topology)

    def prepare(self, groups: Groups, way: str) -> None:
        groups.gpus.prepare(self._made(groups, way))

    def call(self, groups: Groups, way: str) -> Call:
        made = self._made(groups, way)

        def run(x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
            return groups.gpus.run(made, x, out, op, factor=factor, stream=stream)

        return run

    def _made(self, groups: Groups, way: str) -> Schedule:
        made = self.schedule(way, groups.gpus.ranks)
        assert made is not None
        return made


class FindsLate(Interpreted):
    """late_rank, for whichever rank comes last: by atomic operations, which cross PCIe on few machines."""

    title = "late_rank, for whichever rank comes last"
    _factors = (1, 4)

    def names(self, ranks: int, link: str) -> Iterator[str]:
        from pycoll.schedule import algorithms

        info = algorithms()["late_rank"]
        if not info.accepts(ranks) or not _has_atomics(link):
            return
        with suppress(Error):
            own = candidates.schedule_of("late_rank", "allreduce", ranks)
            for factor in self._factors:
                if len(own.transfers) * factor <= candidates.MOST_TRANSFERS:
                    yield way_name("late_rank", own.pieces * factor)

    def owns(self, way: str) -> bool:
        return split_way(way)[0] == "late_rank"

    def prepare(self, groups: Groups, way: str) -> None:
        groups.gpus.prepare(self._made(groups, way), finds_late=True)

    def call(self, groups: Groups, way: str) -> Call:
        made = self._made(groups, way)

        def run(x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
            return groups.gpus.run(made, x, out, op, factor=factor, finds_late=True, stream=stream)

        return run


def _has_atomics(link: str) -> bool:
    """Between all GPUs. Where nobody says how they are wired it may be by PCIe, and ranks wait for ever."""
    return link in ("", "one gpu") or all(kind in ("nvlink", "nvswitch") for kind in link.split("+"))


class OverNccl(Interpreted):
    """Schedules over NCCL's point-to-point: a group of sends and receives a round, so few pieces only."""

    title = "schedules over NCCL's send and recv"
    over_nccl = True
    _prefix = "nccl:"

    def names(self, ranks: int, link: str) -> Iterator[str]:
        from pycoll.schedule import algorithms

        own = {name for name, info in algorithms().items() if info.builtin}
        seen: set[str] = set()
        for way in super().names(ranks, link):
            name = split_way(way[len(self._prefix) :])[0]
            if name in own and name not in seen:  # the first of each: its own number of pieces
                seen.add(name)
                yield way

    def prepare(self, groups: Groups, way: str) -> None:
        groups.nccl._plan_of(self._made(groups, way))

    def takes(self, groups: Groups, way: str, dtype: str, op: str, elements: int) -> bool:
        # cupy and torch reduce no 8-bit floats; avg of 64-bit integers may not fit.
        return not dtype.startswith("float8") and not (op == "avg" and dtype == "int64")

    def call(self, groups: Groups, way: str) -> Call:
        made = self._made(groups, way)

        def run(x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
            return groups.nccl.run(made, x, out, op, factor=factor, stream=stream)

        return run


class Nccl(Kind):
    """NCCL's own AllReduce."""

    title = "NCCL's own"
    over_nccl = True

    def names(self, ranks: int, link: str) -> Iterator[str]:
        yield "nccl"

    def owns(self, way: str) -> bool:
        return way == "nccl"

    def takes(self, groups: Groups, way: str, dtype: str, op: str, elements: int) -> bool:
        from pycoll.nccl import NCCL_DTYPES, NCCL_OPS

        return dtype in NCCL_DTYPES and op in NCCL_OPS

    def prepare(self, groups: Groups, way: str) -> None:
        _ = groups.nccl

    def call(self, groups: Groups, way: str) -> Call:
        def run(x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
            return groups.nccl.nccl_allreduce(x, out, op, stream=stream)

        return run


#: In the order of explanations. The first that owns a way runs it.
KINDS: tuple[Kind, ...] = (
    Kernel("one_shot", like="direct"),
    Kernel("two_shot", like="direct_two_shot"),
    Switch(),
    FindsLate(),
    Nccl(),
    OverNccl(),
    Interpreted(),
)


def names(ranks: int, link: str = "", nccl: bool = True) -> list[str]:
    """All ways worth comparing on a group."""
    return [way for kind in KINDS if nccl or not kind.over_nccl for way in kind.names(ranks, link)]


def kind_of(way: str) -> Kind:
    """Raises InvalidArgument, with what there is, for a way that no sort has."""
    for kind in KINDS:
        if kind.owns(way):
            return kind
    raise InvalidArgument(
        f"there is no algorithm {way!r} for allreduce on GPUs; there are: {', '.join(known())}"
    )


def known() -> list[str]:
    """What a way may begin with."""
    from pycoll.schedule import algorithms

    able = [name for name, info in algorithms().items() if "allreduce" in info.collectives]
    kernels = [
        way for kind in KINDS if isinstance(kind, (Kernel, Switch, Nccl)) for way in kind.names(2, "nvswitch")
    ]
    return [*kernels, *able, "nccl:NAME"]


def only_on_gpus(way: str) -> bool:
    """Whether processors have no way of this name."""
    with suppress(InvalidArgument):
        kind = kind_of(way)
        return isinstance(kind, (Kernel, Switch)) or kind.over_nccl
    return False


def schedule_of(way: str, ranks: int, topology: Topology | None = None) -> Schedule | None:
    """The transfers that a way comes to; None for the switch's and NCCL's own."""
    return kind_of(way).schedule(way, ranks, topology)


def spelled(way: str, ranks: int) -> str:
    """`direct` alone is the processors' fast path: on GPUs it is the algorithm with its own pieces."""
    if way not in ("direct", "nccl:direct"):
        return way
    from pycoll.schedule import build

    return f"{way}/{build('direct', ranks=ranks).pieces}"
