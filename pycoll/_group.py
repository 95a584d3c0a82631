"""A group of ranks: what it is, what it costs, what happened in it, and its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from pycoll import _buffers, _core
from pycoll._calls import Duration, Op, op_and_factor, seconds
from pycoll._network import Settings, settings
from pycoll.errors import Aborted, InvalidArgument, Mismatch, PeerLost, Timeout

if TYPE_CHECKING:
    from pycoll.lateness import StragglerReport
    from pycoll.schedule import Schedule
    from pycoll.selection.decisions import DecisionTable

_Self = TypeVar("_Self", bound="Group")


class Memory(NamedTuple):
    """Bytes that a group costs this rank."""

    shared: int  #: this rank's part of the group's shared memory: staging and control
    private: int  #: scratch of schedules
    allocated: int  #: buffers made by `Communicator.empty`


class Arrival(NamedTuple):
    """When each rank reached one collective."""

    sequence: int
    lateness: list[float]  #: seconds after the first rank, by rank


class Group:
    """A group of ranks, without its collectives: see `pycoll.Communicator`."""

    def __init__(self, core: _core.Communicator, group: str, timeout: float) -> None:
        self._core = core
        self._group = group
        self._timeout = timeout
        self._rank = core.rank
        self._ranks = core.ranks
        self._closed = False
        self._built: dict[tuple[str, str, int, int], tuple[object, Schedule]] = {}
        _open_groups.add(self)

    @classmethod
    def create(
        cls: type[_Self],
        rank: int,
        ranks: int,
        all_gather: Callable[[bytes], list[bytes]],
        group: str = "default",
        timeout: Duration = 300.0,
        decisions: DecisionTable | None = None,
        rules: str = "",
        network: Settings | None = None,
        fixed_order: bool = False,
        decide: Callable[[Sequence[str], Sequence[int]], str] | None = None,
    ) -> _Self:
        """Makes a group with any means to meet: `all_gather` gets this rank's bytes and returns all ranks',
        by rank.

        Called by all ranks alike. `pycoll.init` is this with a ready-made way to meet. `decisions`: the table
        that the group begins with; rank 0's counts. `rules`: any text that must be the same on all ranks.
        `network`: how other hosts are reached; default: what the environment says. `fixed_order`: no large
        AllReduce begins before its last rank is there, so that sums have one order.
        `decide`: instead of
        `decisions`, called on rank 0 with the names of the hosts and each rank's host, as an index into them;
        gives the table as text.
        """
        limit = seconds(timeout)
        if limit is None:
            raise InvalidArgument(f"{group}: timeout must be a number of seconds or a timedelta")
        table = decisions.to_text() if decisions is not None else ""
        reach = settings(os.environ.get("MASTER_ADDR", ""), limit) if network is None else network
        core = _core.Communicator.create(
            rank, ranks, all_gather, group, limit, table, rules, *reach, fixed_order, decide
        )
        return cls(core, group, limit)

    # What it is

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def ranks(self) -> int:
        return self._ranks

    @property
    def group(self) -> str:
        """The group's name, as errors have it."""
        return self._group

    @property
    def timeout(self) -> float:
        """Seconds that a collective may take that names no timeout of its own."""
        return self._timeout

    @timeout.setter
    def timeout(self, value: Duration) -> None:
        limit = seconds(value)
        if limit is None:
            raise InvalidArgument(f"{self._group}: timeout must be a number of seconds or a timedelta")
        self._core.set_timeout(limit)
        self._timeout = limit

    @property
    def sequence(self) -> int:
        """Collectives begun so far."""
        return self._core.sequence

    @property
    def closed(self) -> bool:
        """Whether this rank has left the group by `close`."""
        return self._closed

    def __repr__(self) -> str:
        return f'<pycoll.Communicator "{self._group}", rank {self._rank} of {self._ranks}>'

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Communicator belongs to its process and cannot be pickled: call pycoll.init there")

    # Memory

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """An uninitialised array in shared memory. A collective whose buffers all lie there copies nothing
        on its way.

        A torch tensor where `dtype` is torch's, a NumPy array otherwise. Its memory is freed with the last
        array that refers to it, also after the group is closed. A local call: ranks need not make the same
        ones.
        """
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(length < 0 for length in lengths):
            raise InvalidArgument(f"{self._call('empty')}: shape {lengths} has a negative length")
        size = _core.dtype_size(_buffers.dtype_name(dtype, self._call("empty")))
        for length in lengths:
            size *= length
        return _buffers.shared_array(self._core.allocate(size), lengths, dtype)

    def memory(self) -> Memory:
        """Bytes that the group costs this rank at present."""
        return Memory(*self._core.memory())

    # What happened, and what would

    def arrivals(self) -> list[Arrival]:
        """When each rank reached the last collectives (up to 1024), oldest first: who is late, by how
        much."""
        return [Arrival(sequence, lateness) for sequence, lateness in self._core.arrivals()]

    def stragglers(self) -> StragglerReport:
        """Who is late to this group's collectives, and what that costs: see `pycoll.stragglers`."""
        from pycoll.lateness import report

        return report(self._core.arrivals(), self._core.early_report())

    def chosen_algorithm(
        self, collective: str, count: int, dtype: Any = "float32", op: Op = "sum", root: int = 0
    ) -> str:
        """The algorithm that the engine would run for `count` elements (of the whole buffer for allreduce,
        reduce and broadcast; of one shard or block for the others)."""
        call = self._call(collective)
        name, _ = op_and_factor(op, call)
        return self._core.chosen_algorithm(collective, _buffers.dtype_name(dtype, call), name, root, count)

    def install(self, table: DecisionTable) -> None:
        """Makes `table` what decides from the next call on which algorithm runs; an empty one lets all calls
        go the fast path. Collective: all ranks install the same.

        Raises:
            InvalidArgument, Unsupported, ScheduleError: the table names what cannot run here; nothing was
                sent.
            Mismatch: other ranks install another table, or call something else; the old table stays.
        """
        self._core.install(table.to_text())

    def decisions(self) -> DecisionTable:
        """The table in force, with what the group has changed in it by itself, and how well its predictions
        have held (`Decision.typical`). A local call."""
        from pycoll.selection.decisions import Decision, DecisionTable

        rows = [
            Decision(
                collective,
                begin,
                end,
                ways[0],
                dtypes,
                distance,
                basis,
                reason,
                alpha,
                beta,
                tuple(ways[1:]),
                typical,
            )
            for collective, dtypes, distance, begin, end, ways, basis, alpha, beta, reason, typical in (
                self._core.decisions()
            )
        ]
        return DecisionTable(rows)

    # The end

    def abort(self, reason: str = "aborted by the user") -> None:
        """Ends the group on every rank: whoever waits in it, and whoever calls it later, gets `Aborted`."""
        self._core.abort(reason)

    def close(self) -> None:
        """Leaves the group. Not collective, and harmless when repeated; happens by itself when the process
        ends."""
        self._closed = True
        self._core.close()
        _open_groups.discard(self)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The others may be waiting for a collective that this rank, having failed, will never call.
        if error is not None and not isinstance(error, (Mismatch, PeerLost, Timeout, Aborted)):
            with contextlib.suppress(Aborted, InvalidArgument):  # where it is over already
                self.abort(f"rank {self._rank} raised {kind.__name__ if kind else 'an error'}: {error}")
        self.close()

    def _call(self, name: str) -> str:
        return f'{name} on rank {self._rank} of {self._ranks} in group "{self._group}"'


_open_groups: weakref.WeakSet[Group] = weakref.WeakSet()
_owner = os.getpid()


@atexit.register
def _leave_groups() -> None:
    """So that peers see a rank that ended, not one that was lost, and threads end before the interpreter
    does."""
    if os.getpid() != _owner:
        return
    for group in list(_open_groups):
        group.close()
