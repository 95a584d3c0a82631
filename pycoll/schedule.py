"""Schedules: collective algorithms as data, and the registry of the algorithms that build them.

    s = pycoll.build("ring", collective="allreduce", ranks=8)
    print(s.verify())
    s.draw("ring.png")

A schedule is a list of transfers (round, src, dst, piece, reduce). The buffer is cut in ``pieces``
contiguous parts. In ``round``, rank ``src`` sends its value of ``piece`` to rank ``dst``, which overwrites
its own value with it or, where ``reduce`` is true, adds it to its own. Transfers of one round read the
state before the round. A round is an order, never a barrier.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pycoll import _core
from pycoll._core import InvalidArgument, ScheduleError, Unsupported
from pycoll._schedule_format import Transfers, integer, param_text, read_json, rows_of, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pycoll.simulation import AnyTopology, Simulation

__all__ = ["AlgorithmInfo", "Schedule", "ScheduleReport", "algorithm", "algorithms", "build"]


@dataclass(frozen=True)
class ScheduleReport:
    """What a valid schedule asks of the machine; reported, not judged.

    ``depth`` is the longest chain of transfers each of which needs the one before. A port is a peer: the
    greatest number of ranks that one rank sends to (receives from) in one round. Pieces are counted by
    rank.
    """

    rounds: int
    depth: int
    transfers: int
    pieces: int
    max_send_ports: int
    max_recv_ports: int
    pieces_sent: tuple[int, ...]
    pieces_received: tuple[int, ...]

    def bytes_sent(self, size: int) -> tuple[float, ...]:
        """Bytes that each rank sends when the logical buffer (all pieces) is ``size`` bytes."""
        return tuple(count * size / self.pieces for count in self.pieces_sent)

    def bytes_received(self, size: int) -> tuple[float, ...]:
        """Bytes that each rank receives when the logical buffer (all pieces) is ``size`` bytes."""
        return tuple(count * size / self.pieces for count in self.pieces_received)

    def __str__(self) -> str:
        return (
            f"valid: {self.transfers} transfers in {self.rounds} rounds, depth {self.depth}; a rank uses at "
            f"most {self.max_send_ports} send and {self.max_recv_ports} receive ports a round, sends at most "
            f"{max(self.pieces_sent)} and receives at most {max(self.pieces_received)} pieces of "
            f"1/{self.pieces} of the buffer"
        )


class Schedule(_core.Schedule):
    """A collective algorithm for a given number of ranks, as a list of transfers. Immutable.

    Made by :func:`build`, :meth:`from_transfers`, :meth:`from_json` or :meth:`load`. Two schedules are
    equal when collective, ranks, pieces, root and transfers are, whatever they are called.

    Attributes: ``collective``, ``algorithm`` (names), ``ranks``, ``pieces``, ``root``, ``rounds`` (ints),
    ``params`` (what the builder was given, as text), ``hash`` (64 bits, equal on every machine),
    ``transfers`` (a read-only structured array with the fields round, src, dst, piece, reduce).

    A *part* of a collective, such as the rounds of ``late_rank`` after the arrival, moreover has the
    transfers ``preceding`` and ``following`` it, each with rounds of their own from 0. It is verified in
    their midst, and drawn and simulated alone; running it is refused. ``is_part`` tells.
    """

    _verified = False

    @classmethod
    def from_transfers(
        cls,
        transfers: Transfers,
        *,
        collective: str,
        ranks: int,
        pieces: int | None = None,
        root: int = 0,
        algorithm: str = "custom",
        params: Mapping[str, object] | None = None,
        preceding: Transfers = (),
        following: Transfers = (),
    ) -> Schedule:
        """A schedule of these transfers, kept in the order given.

        ``pieces`` defaults to the least number that the collective allows and that has every piece named in
        the transfers. Nothing is verified yet: call :meth:`verify`; running it does. With ``preceding`` or
        ``following`` it is a part of what these transfers do together.

        Raises InvalidArgument when collective, ranks, pieces and root do not fit each other, ScheduleError
        when a transfer is no row of five integers.
        """
        rows = rows_of(transfers)
        ranks = integer("ranks", ranks)
        if pieces is None:
            multiple = _core.pieces_multiple(collective, ranks)
            used = int(rows[:, 3].max()) + 1 if len(rows) else 1
            pieces = -(-max(used, 1) // multiple) * multiple
        text = {name: param_text(value) for name, value in (params or {}).items()}
        pieces, root = integer("pieces", pieces), integer("root", root)
        around = (rows_of(preceding), rows_of(following))
        return cls(rows, collective, ranks, pieces, root, algorithm, text, *around)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The schedule that :meth:`to_json` wrote.

        Raises ScheduleError, naming the field, on malformed input.
        """
        fields = read_json(text)
        del fields["pycoll_schedule"]
        try:
            return cls.from_transfers(fields.pop("transfers"), **fields)
        except InvalidArgument as error:
            raise ScheduleError(str(error)) from error

    @classmethod
    def from_msccl_xml(cls, text: str, *, root: int = 0) -> Schedule:
        """A schedule from an MSCCL algorithm file: its ``gpu``, ``tb`` and ``step`` elements.

        The file's chunks become pieces and its dataflow becomes rounds. Raises ScheduleError, naming gpu,
        tb and step, for what is malformed and for what the transfers of a schedule cannot say: see
        docs/schedules.md.
        """
        from pycoll.msccl_xml import schedule_from_xml

        return schedule_from_xml(text, root=root)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Schedule:
        """Reads a ``.json`` file of :meth:`save`, or an MSCCL ``.xml`` file.

        Raises ScheduleError, naming the file.
        """
        source = Path(path)
        reader = {".json": cls.from_json, ".xml": cls.from_msccl_xml}.get(source.suffix.lower())
        if reader is None:
            raise InvalidArgument(f"{source}: a schedule's file ends in .json or .xml (MSCCL)")
        try:
            return reader(source.read_text(encoding="utf-8"))
        except (ScheduleError, UnicodeDecodeError) as error:
            raise ScheduleError(f"{source}: {error}") from error

    def to_json(self) -> str:
        """The schedule as JSON, one transfer a line; :meth:`from_json` reads it."""
        return write_json(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes :meth:`to_json` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def verify(self) -> ScheduleReport:
        """Checks that every contribution reaches every place that is owed it, exactly once.

        A part is checked in the midst of what precedes and follows it; the report is of the part.

        Raises ScheduleError, naming round, transfer and reason, for double counting, a copy of a partial
        result, a read of nothing, clashing writes, an index out of range or an unmet postcondition.
        """
        report = _core.verify(self)
        self._verified = True
        return ScheduleReport(
            rounds=report.rounds,
            depth=report.depth,
            transfers=len(self.transfers),
            pieces=self.pieces,
            max_send_ports=report.max_send_ports,
            max_recv_ports=report.max_recv_ports,
            pieces_sent=tuple(report.pieces_sent),
            pieces_received=tuple(report.pieces_received),
        )

    def simulate(
        self,
        topology: AnyTopology,
        size: float,
        *,
        routing: str = "spread",
        seed: int = 0,
        start: Sequence[float] | None = None,
        verify: bool = True,
    ) -> Simulation:
        """How long the schedule takes on a topology, and why.

        ``size`` is the logical buffer's, in bytes, cut in ``pieces`` equal parts; a barrier's is 0.
        ``routing`` says what transfers do where there are several equal paths: ``"spread"`` divides each
        evenly over all, ``"hash"`` sends it along one that a hash of source, destination and ``seed``
        picks. ``start`` gives the seconds at which each rank comes, counted from about the first; by default
        all come at 0. The schedule is verified once; ``verify=False`` leaves that out. The model:
        docs/simulator.md.

        Raises InvalidArgument where topology and schedule have different numbers of ranks and for a size
        or a start that is no number of bytes or seconds, ScheduleError where the schedule is wrong.
        """
        from pycoll.simulation import simulate

        if verify and not self._verified:
            self.verify()
        return simulate(self, topology, size, routing=routing, seed=seed, start=start)

    def draw(self, path: str | PathLike[str] | None = None, *, dpi: int = 150) -> Figure:
        """Draws who sends what to whom in which round: a row a rank, a column a round, a colour a piece.

        Writes the picture to ``path`` (png, pdf, svg: by its ending) where given, and returns matplotlib's
        figure. Raises Unsupported where matplotlib is not installed.
        """
        from pycoll.drawing import draw_schedule

        return draw_schedule(self, path, dpi=dpi)

    def __repr__(self) -> str:
        root = f", root={self.root}" if self.root else ""
        return (
            f"<Schedule {self.algorithm!r}: {self.collective}, ranks={self.ranks}, pieces={self.pieces}{root}"
            f", rounds={self.rounds}, transfers={len(self.transfers)}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _core.Schedule):
            return NotImplemented
        return (self.collective, self.ranks, self.pieces, self.root) == (
            other.collective,
            other.ranks,
            other.pieces,
            other.root,
        ) and all(
            len(own) == len(others) and bool((own == others).all())
            for own, others in (
                (self.transfers, other.transfers),
                (self.preceding, other.preceding),
                (self.following, other.following),
            )
        )

    def __hash__(self) -> int:
        return self.hash

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.collective, self.ranks, self.pieces, self.root, self.algorithm, self.params)
        around = (rows_of(self.preceding), rows_of(self.following))
        return Schedule, (rows_of(self.transfers), *fields, *around)


@dataclass(frozen=True)
class AlgorithmInfo:
    """An entry of the registry: a line of prose, its collectives, the ranks it takes, its source.

    ``for_late_ranks``: it pays only where a rank comes late, and is no candidate where all come on time.
    """

    name: str
    description: str
    collectives: tuple[str, ...]
    valid_ranks: str
    source: str
    builtin: bool
    for_late_ranks: bool = False

    def accepts(self, ranks: int) -> bool:
        """Whether the algorithm runs on so many ranks."""
        if self.builtin:
            return _core.algorithm_accepts(self.name, ranks)
        return ranks >= 1 and _registered[self.name].accepts(ranks)


BuilderFunction = Callable[..., "Schedule | Transfers"]
_Function = TypeVar("_Function", bound=BuilderFunction)


@dataclass(frozen=True)
class _Registered:
    info: AlgorithmInfo
    function: BuilderFunction
    accepts: Callable[[int], bool]
    pieces: int | Callable[[int], int] | None


_registered: dict[str, _Registered] = {}
_builtin = {info["name"]: AlgorithmInfo(**info, builtin=True) for info in _core.algorithms()}


def algorithms() -> dict[str, AlgorithmInfo]:
    """Every algorithm that :func:`build` knows, the built-in ones first: name -> what it is."""
    return _builtin | {name: entry.info for name, entry in _registered.items()}


def is_builtin(name: str) -> bool:
    """Whether the engine itself builds the algorithm of that name."""
    return name in _builtin


def algorithm(
    *,
    collectives: Sequence[str],
    name: str | None = None,
    description: str | None = None,
    source: str = "user",
    valid_ranks: str = "any",
    accepts: Callable[[int], bool] = lambda ranks: True,
    pieces: int | Callable[[int], int] | None = None,
) -> Callable[[_Function], _Function]:
    """Enters a function in the registry, so that :func:`build` knows it by name.

    The function is called with those of the keyword arguments ``collective``, ``ranks``, ``pieces``,
    ``root``, ``topology`` that it names, and with the parameters given to ``build``. It returns or yields
    rows (round, src, dst, piece, reduce) in any order, or returns a Schedule. What it builds is verified at
    once.

        @pycoll.algorithm(collectives=["broadcast"])
        def star(ranks, pieces, root):
            for dst in range(ranks):
                if dst != root:
                    for piece in range(pieces):
                        yield 0, root, dst, piece, False

    ``name`` defaults to the function's, ``description`` to the first line of its docstring. ``accepts``
    says which numbers of ranks it takes, ``valid_ranks`` says so in words. ``pieces`` is the default number
    of pieces, a number or a function of ranks; without it, the least that the collective allows.
    Registering a name again replaces the function; InvalidArgument when the name is a built-in one, or a
    collective is unknown.
    """
    if isinstance(collectives, str):
        collectives = (collectives,)
    for collective in collectives:
        _core.pieces_multiple(collective, 1)

    def register(function: _Function) -> _Function:
        chosen = name if name is not None else function.__name__
        if chosen in _builtin:
            raise InvalidArgument(f"algorithm {chosen!r} is built in; choose another name")
        prose = description if description is not None else (inspect.getdoc(function) or "").split("\n")[0]
        info = AlgorithmInfo(chosen, prose, tuple(collectives), valid_ranks, source, builtin=False)
        _registered[chosen] = _Registered(info, function, accepts, pieces)
        return function

    return register


def build(
    algorithm: str,
    *,
    collective: str = "allreduce",
    ranks: int,
    pieces: int | None = None,
    root: int = 0,
    topology: AnyTopology | None = None,
    **params: object,
) -> Schedule:
    """The schedule of a registered algorithm.

    ``pieces`` is the number of parts that the buffer is cut in, by default the algorithm's own choice: any
    number for allreduce, reduce and broadcast; a multiple of ranks for reduce_scatter, all_gather, gather
    and scatter, and of ranks squared for all_to_all; 1 for barrier. ``root`` is for broadcast, reduce,
    gather and scatter. ``topology`` is the machine, whose ranks are the schedule's, for the algorithms that
    fit themselves to one; a user's function gets it if it names it. ``params`` are the algorithm's own.

    Raises InvalidArgument for arguments that do not fit, Unsupported when the algorithm does not do the
    collective or does not run on so many ranks, ScheduleError when a user's function builds a schedule that
    is wrong.
    """
    ranks, root = integer("ranks", ranks), integer("root", root)
    if pieces is not None and (pieces := integer("pieces", pieces)) < 1:
        raise InvalidArgument(f"algorithm {algorithm!r}: pieces must be at least 1, not {pieces}")
    if algorithm in _registered:
        return _build_registered(_registered[algorithm], collective, ranks, pieces, root, topology, params)
    if algorithm not in _builtin:
        raise InvalidArgument(f"there is no algorithm {algorithm!r}; there are: {', '.join(algorithms())}")
    text = {name: param_text(value) for name, value in params.items()}
    machine = None if topology is None else _native(topology)
    return Schedule(_core.build(algorithm, collective, ranks, pieces or 0, root, text, machine))


def _native(topology: AnyTopology) -> _core.Topology:
    return topology if isinstance(topology, _core.Topology) else topology.native


def _build_registered(
    entry: _Registered,
    collective: str,
    ranks: int,
    pieces: int | None,
    root: int,
    topology: AnyTopology | None,
    params: dict[str, object],
) -> Schedule:
    name = entry.info.name
    if collective not in entry.info.collectives:
        does = ", ".join(entry.info.collectives)
        raise Unsupported(f"algorithm {name!r} does not do {collective}; it does {does}")
    multiple = _core.pieces_multiple(collective, ranks)
    if not entry.accepts(ranks):
        raise Unsupported(
            f"algorithm {name!r} does not run on {ranks} ranks; it takes: {entry.info.valid_ranks}"
        )
    if pieces is None:
        default = entry.pieces(ranks) if callable(entry.pieces) else entry.pieces
        pieces = multiple if default is None else integer("pieces", default)
    _core.check_collective(collective, ranks, pieces, root)

    given = {"collective": collective, "ranks": ranks, "pieces": pieces, "root": root, "topology": topology}
    signature = inspect.signature(entry.function).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature):
        named = {parameter.name for parameter in signature}
        given = {key: value for key, value in given.items() if key in named}
        unknown = [key for key in params if key not in named]
        if unknown:
            own = sorted(named - {"collective", "ranks", "pieces", "root", "topology"})
            takes = f"it takes {', '.join(own)}" if own else "it takes none"
            raise InvalidArgument(f"algorithm {name!r} has no parameter {unknown[0]!r}; {takes}")
    made = entry.function(**given, **params)

    if isinstance(made, _core.Schedule):
        asked = (collective, ranks, pieces, root)
        got = (made.collective, made.ranks, made.pieces, made.root)
        if got != asked:
            raise ScheduleError(
                f"algorithm {name!r} was asked for (collective, ranks, pieces, root) = {asked}, built {got}"
            )
        made = made.transfers
    rows = rows_of(made)
    schedule = Schedule(
        rows[np.lexsort((rows[:, 3], rows[:, 0]))],
        collective,
        ranks,
        pieces,
        root,
        name,
        {key: param_text(value) for key, value in params.items()},
        rows_of(()),
        rows_of(()),
    )
    schedule.verify()
    return schedule
