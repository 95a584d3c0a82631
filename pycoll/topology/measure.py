"""How the figures of a probe are taken over a group: rank 0 says what is measured, and all ranks do it.

Everything here goes through the communicator's own calls, so that it measures whatever transport that has.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pycoll import _core, probe
from pycoll.communicator import Communicator, Work
from pycoll.errors import Error

__all__ = ["PING_BYTES", "Flow", "GroupMeasurer", "Measurer", "serve"]

Samples = npt.NDArray[np.float64]
Activity = Literal["copy", "reduce"]

#: Messages of a stream that are under way at once, so that none waits for the one before to be acknowledged.
DEPTH = 2
WARMUPS = 2
#: Bytes of a small message.
PING_BYTES = 8
_HOST_BYTES = 256
# The other ranks of a host sleep meanwhile: spinning, they would disturb the probe of its processors.
_PROBE_SECONDS = 0.008


class Flow(NamedTuple):
    """Bytes on their way from one rank to another."""

    src: int
    dst: int


class Measurer(Protocol):
    """What a probe asks for. All times are seconds; every sample is one repetition."""

    @property
    def hosts(self) -> Sequence[str]:
        """Name of the host of each rank."""

    def elapsed(self) -> float:
        """Seconds since the measurer was made."""

    def ping(self, a: int, b: int, messages: int, repeats: int) -> Samples:
        """Round trips: ``messages`` small messages from a to b, then one back; shape (repeats,)."""

    def transfer(self, flow: Flow, size: int, repeats: int) -> Samples:
        """From the moment the receiver asks until it has ``size`` bytes; shape (repeats,)."""

    def stream(self, flows: Sequence[Flow], sizes: Sequence[int], seconds: float, repeats: int) -> Samples:
        """Bytes/s that each flow gets while all send messages of its size; shape (repeats, flows)."""

    def compute(self, activity: Activity, ranks: Sequence[int], size: int, seconds: float) -> Samples:
        """Bytes/s that each rank copies or adds while all do; shape (ranks,)."""

    def distances(self) -> dict[str, float]:
        """Nanoseconds a cache line travels from one processor to another on each host."""


class _Task(IntEnum):
    STOP, PING, TRANSFER, STREAM, COMPUTE, DISTANCES = range(6)


class _Command(NamedTuple):
    """What rank 0 tells all ranks. Rows: (src, dst, bytes) of a flow, or (rank, 0, bytes)."""

    task: _Task
    rows: npt.NDArray[np.int64]
    repeats: int = 1
    messages: int = 1
    seconds: float = 0.0

    def owners(self) -> npt.NDArray[np.int64]:
        """Whose clock each row's samples are of."""
        return self.rows[:, 1] if self.task in (_Task.TRANSFER, _Task.STREAM) else self.rows[:, 0]


def serve(comm: Communicator) -> None:
    """Does, as any rank but 0, what rank 0 asks until it says stop."""
    station = _Station(comm)
    while (command := _listen(comm)).task is not _Task.STOP:
        samples = station.obey(command)
        for row in np.flatnonzero(command.owners() == comm.rank):
            comm.send(samples[int(row)], 0, tag=int(row))


class GroupMeasurer:
    """Rank 0's hand on a group whose other ranks :func:`serve`. Use it in a ``with`` block, which frees
    them."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._station = _Station(comm)
        self._begin = time.monotonic()
        self.hosts = self._station.hosts

    def __enter__(self) -> GroupMeasurer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            _tell(self._comm, _Command(_Task.STOP, np.zeros((0, 3), np.int64)))
        except Error:
            if kind is None:
                raise  # otherwise the group is over, and what ended it is on its way already

    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def ping(self, a: int, b: int, messages: int, repeats: int) -> Samples:
        return self._run(_Task.PING, [(a, b, PING_BYTES)], repeats=repeats, messages=messages)[0]

    def transfer(self, flow: Flow, size: int, repeats: int) -> Samples:
        return self._run(_Task.TRANSFER, [(*flow, size)], repeats=repeats)[0]

    def stream(self, flows: Sequence[Flow], sizes: Sequence[int], seconds: float, repeats: int) -> Samples:
        rows = [(*flow, size) for flow, size in zip(flows, sizes, strict=True)]
        return np.stack(self._run(_Task.STREAM, rows, repeats=repeats, seconds=seconds), axis=1)

    def compute(self, activity: Activity, ranks: Sequence[int], size: int, seconds: float) -> Samples:
        rows = [(rank, int(activity == "reduce"), size) for rank in ranks]
        return np.concatenate(self._run(_Task.COMPUTE, rows, seconds=seconds))

    def distances(self) -> dict[str, float]:
        firsts = [self.hosts.index(host) for host in dict.fromkeys(self.hosts)]
        measured = self._run(_Task.DISTANCES, [(rank, 0, 0) for rank in firsts])
        return {self.hosts[rank]: float(ns[0]) for rank, ns in zip(firsts, measured, strict=True)}

    def _run(
        self,
        task: _Task,
        rows: Sequence[tuple[int, int, int]],
        repeats: int = 1,
        messages: int = 1,
        seconds: float = 0.0,
    ) -> list[Samples]:
        """A row's samples each."""
        command = _Command(task, np.array(rows, np.int64), repeats, messages, seconds)
        _tell(self._comm, command)
        own = self._station.obey(command)
        samples = [np.empty(repeats) for _ in rows]
        for row, owner in enumerate(command.owners()):
            if owner == self._comm.rank:
                samples[row] = own[row]
            else:
                self._comm.recv(samples[row], int(owner), tag=row)
        return samples


def _tell(comm: Communicator, command: _Command) -> None:
    head = [command.task, len(command.rows), command.repeats, command.messages, command.seconds]
    comm.broadcast(np.array(head, np.float64), 0)
    if len(command.rows):
        comm.broadcast(command.rows, 0)


def _listen(comm: Communicator) -> _Command:
    head = np.zeros(5)
    comm.broadcast(head, 0)
    task, count, repeats, messages = (int(number) for number in head[:4])
    rows = np.zeros((count, 3), np.int64)
    if count:
        comm.broadcast(rows, 0)
    return _Command(_Task(task), rows, repeats, messages, float(head[4]))


class _Station:
    """One rank's part in every measurement."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}
        name = np.zeros(_HOST_BYTES, np.uint8)
        text = socket.gethostname().encode()[:_HOST_BYTES]
        name[: len(text)] = np.frombuffer(text, np.uint8)
        names = comm.all_gather(name).reshape(comm.ranks, _HOST_BYTES)
        self.hosts = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in names]

    def obey(self, command: _Command) -> dict[int, Samples]:
        """Row -> samples, of the rows that this rank's clock times."""
        if command.task is _Task.PING:
            return self._ping(command)
        if command.task is _Task.TRANSFER:
            return self._transfer(command)
        if command.task is _Task.COMPUTE:
            return self._compute(command)
        if command.task is _Task.DISTANCES:
            return self._distances(command)
        repeated = [self._stream(command) for _ in range(command.repeats)]
        return {row: np.array([rates[row] for rates in repeated]) for row in repeated[0]}

    # A pair alone: the others are asleep in the next broadcast

    def _ping(self, command: _Command) -> dict[int, Samples]:
        a, b, size = (int(number) for number in command.rows[0])
        comm, clock, taken = self._comm, time.perf_counter, np.empty(WARMUPS + command.repeats)
        there, back = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        for index in range(len(taken)):
            if comm.rank == a:
                begin = clock()
                for _ in range(command.messages):
                    comm.send(there, b)
                comm.recv(back, b)
                taken[index] = clock() - begin
            elif comm.rank == b:
                for _ in range(command.messages):
                    comm.recv(there, a)
                comm.send(back, a)
        return {0: taken[WARMUPS:]} if comm.rank == a else {}

    def _transfer(self, command: _Command) -> dict[int, Samples]:
        src, dst, size = (int(number) for number in command.rows[0])
        comm, clock, taken = self._comm, time.perf_counter, np.empty(1 + command.repeats)
        ask = np.zeros(PING_BYTES, np.uint8)
        for index in range(len(taken)):
            if comm.rank == dst:
                data = self._buffer("in", size)
                begin = clock()
                comm.send(ask, src)
                comm.recv(data, src)
                taken[index] = clock() - begin
            elif comm.rank == src:
                comm.recv(ask, dst)
                comm.send(self._buffer("out", size), dst)
        return {0: taken[1:]} if comm.rank == dst else {}

    # Several at once

    def _stream(self, command: _Command) -> dict[int, float]:
        rank = self._comm.rank
        ends: list[_Sender | _Receiver] = []
        for row, (src, dst, size) in enumerate(command.rows.tolist()):
            if src == rank:
                ends.append(_Sender(self._comm, row, dst, self._buffer("out", size)))
            if dst == rank:
                into = [self._buffer(f"in {row} {slot}", size) for slot in range(DEPTH)]
                ends.append(_Receiver(self._comm, row, src, into))
        self._comm.barrier()
        begin = time.perf_counter()
        for end in ends:
            end.start(begin + command.seconds)
        open_ends = list(ends)
        while open_ends:
            for end in open_ends:
                # One that has nothing else to do may sleep until there is news.
                end.step(wait=len(open_ends) == 1)
            open_ends = [end for end in open_ends if not end.over]
            if len(open_ends) > 1:
                os.sched_yield()
        self._comm.barrier()
        return {end.row: end.rate(begin) for end in ends if isinstance(end, _Receiver)}

    def _compute(self, command: _Command) -> dict[int, Samples]:
        mine = np.flatnonzero(command.rows[:, 0] == self._comm.rank)
        rates = {}
        self._comm.barrier()
        for row in mine.tolist():
            _, reduces, size = command.rows[row].tolist()
            source, target = self._buffer("out", size), self._buffer("in", size)
            rounds, begin = 0, time.perf_counter()
            while (now := time.perf_counter()) < begin + command.seconds or rounds == 0:
                if reduces:
                    _core.reduce_many("float32", "sum", [target, source], [target])
                else:
                    _core.copy_bytes(target, source)
                rounds += 1
            rates[row] = np.array([rounds * size / (now - begin)])
        self._comm.barrier()
        return rates

    def _distances(self, command: _Command) -> dict[int, Samples]:
        mine = np.flatnonzero(command.rows[:, 0] == self._comm.rank)
        if not len(mine):
            time.sleep(_PROBE_SECONDS)
            return {}
        time.sleep(_PROBE_SECONDS / 4)
        return {int(mine[0]): np.array([probe.core_to_core_ns()])}

    def _buffer(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        """Memory that was written to once: a first touch would be timed with the rest otherwise."""
        held = self._memory.get(name)
        if held is None or len(held) < size:
            held = self._memory[name] = np.empty(max(size, 1), np.uint8)
            held.fill(0)
        return held[:size]


class _Sender:
    """A flow's source: keeps DEPTH messages under way until the time is over, then says so."""

    def __init__(self, comm: Communicator, row: int, dst: int, data: npt.NDArray[np.uint8]) -> None:
        self._comm, self.row, self._dst, self._data = comm, row, dst, data
        self._works: list[Work] = []
        self._end = 0.0
        self._ending = False
        self.over = False

    def start(self, end: float) -> None:
        self._end = end
        for _ in range(DEPTH):
            self._send(self._data)

    def step(self, wait: bool) -> None:
        if wait:
            self._works[0].wait()
        if self._works[0].done():  # one a step: a flow that always has news must not keep others waiting
            self._works.pop(0).wait()
            if not self._ending and time.perf_counter() < self._end:
                self._send(self._data)
            elif not self._ending:
                self._ending = True
                for _ in range(DEPTH):  # one for each receive that is posted
                    self._send(np.ones(1, np.uint8))
        self.over = not self._works

    def _send(self, data: npt.NDArray[np.uint8]) -> None:
        self._works.append(self._comm.send(data, self._dst, tag=self.row, async_=True))


class _Receiver:
    """A flow's destination, which notes when each message came."""

    def __init__(
        self, comm: Communicator, row: int, src: int, buffers: Sequence[npt.NDArray[np.uint8]]
    ) -> None:
        self._comm, self.row, self._src, self._buffers = comm, row, src, list(buffers)
        self._works: list[Work] = []
        self._times: list[float] = []
        self._end = 0.0
        self._ending = False
        self.over = False

    def start(self, end: float) -> None:
        self._end = end
        for buffer in self._buffers:
            self._receive(buffer)

    def step(self, wait: bool) -> None:
        if wait:
            self._works[0].wait()
        if self._works[0].done():
            buffer = self._works.pop(0).result()
            now = time.perf_counter()
            self._ending = self._ending or buffer[0] == 1
            if not self._ending:
                self._times.append(now)
                self._receive(buffer)
        self.over = not self._works

    def rate(self, begin: float) -> float:
        """Bytes/s, but for the first quarter of the time, in which flows start and fill all buffers.

        Of a message that came later, the part counts that its time had in the window.
        """
        times = [begin, *self._times]
        count = np.arange(len(times), dtype=np.float64)
        until = min(self._end, times[-1])  # the sender's clock may have been ahead
        since = begin + (until - begin) / 4
        sent = np.interp(until, times, count) - np.interp(since, times, count)
        return float(sent * len(self._buffers[0]) / (until - since))

    def _receive(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._works.append(self._comm.recv(buffer, self._src, tag=self.row, async_=True))
