"""A group of ranks, and the collectives that it runs on NumPy arrays and torch tensors."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from pycoll import _buffers, _core
from pycoll._buffers import Array, Buffer
from pycoll.errors import Aborted, Error, InvalidArgument, Mismatch, PeerLost, Timeout

#: Seconds, or a timedelta.
Duration = float | timedelta

#: "sum", "avg", "prod", "min", "max", "band", "bor", "bxor"; `premul_sum(factor)`; or torch's ReduceOp.
Op = Any

OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
_TORCH_OPS = {"product": "prod"}  # the only name of torch's that differs by more than case


class PremulSum(NamedTuple):
    """The reduce operator that multiplies this rank's contribution by `factor`, then sums."""

    name: str
    factor: float


def premul_sum(factor: Any) -> PremulSum:
    """The operator "each rank's contribution times a factor, summed". The factor: a number or a one-element array."""
    return PremulSum("premul_sum", float(factor))


class Memory(NamedTuple):
    """Bytes that a group costs this rank."""

    shared: int  #: this rank's part of the group's shared memory: staging and control
    private: int  #: scratch of schedules
    allocated: int  #: buffers made by `Communicator.empty`


class Arrival(NamedTuple):
    """When each rank reached one collective."""

    sequence: int
    lateness: list[float]  #: seconds after the first rank, by rank


class Work:
    """An asynchronous call. Its buffers live at least as long as it runs, also when the Work is dropped.

    Until `wait`, `result` or a true `done` returns, inputs must not be written and outputs not be read.
    """

    __slots__ = ("_buffers", "_core", "_result")

    def __init__(self, core: _core.Work, result: Any, buffers: Sequence[Buffer]) -> None:
        self._core = core
        self._result = result
        self._buffers = buffers

    def done(self) -> bool:
        """Whether the call has ended, well or not. Never blocks."""
        if not self._core.done():
            return False
        if self.exception() is None:
            self._store()
        return True

    def wait(self, timeout: Duration | None = None) -> None:
        """Returns when the call is complete.

        Raises:
            Timeout: after `timeout` seconds, which aborts the group: its other ranks must not wait for ever either.
            Error: what the call itself failed with.
        """
        self._core.wait(seconds(timeout))
        self._store()

    def result(self, timeout: Duration | None = None) -> Any:
        """What the synchronous call would return; waits for it like `wait`."""
        self.wait(timeout)
        return self._result

    def exception(self) -> Error | None:
        """What the call failed with; None while it runs and after success. Never blocks."""
        try:
            self._core.raise_error()
        except Error as error:
            return error
        return None

    @property
    def source(self) -> int:
        """The rank that sent what a `recv` received; meaningful once that is done."""
        return self._core.source

    def _store(self) -> None:
        _store(self._buffers)
        self._buffers = ()


class Communicator:
    """A group of ranks. `pycoll.init` and `pycoll.spawn` make one.

    Every rank must call the same collectives in the same order; who does not gets `Mismatch`, as all others do.

    Common parameters of the collectives:

    - `x`: a NumPy array, a torch tensor in host memory, or an object with the buffer protocol or DLPack. Of any shape
      and strides: what is not contiguous is copied, and the result copied back.
    - `out`: where the result goes; any shape with the right number of elements.
    - `op`: "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", or `pycoll.premul_sum(factor)`.
    - `algorithm`: a name of `pycoll.algorithms()`, or a `Schedule`; default: the engine's choice. `pieces`: how many
      the named algorithm cuts the buffer into, 0 for its default.
    - `async_`: return a `Work` at once.
    - `timeout`: seconds (or a timedelta) until `Timeout`; default: the group's.

    All raise InvalidArgument and Unsupported before anything is sent, Mismatch with the group still usable, and
    PeerLost, Timeout and Aborted, after which the group is not.
    """

    def __init__(self, core: _core.Communicator, group: str) -> None:
        self._core = core
        self._group = group
        self._rank = core.rank
        self._ranks = core.ranks
        self._closed = False
        self._verified: weakref.WeakSet[Any] = weakref.WeakSet()
        self._built: dict[tuple[str, str, int, int], Any] = {}
        _open_groups.add(self)

    @classmethod
    def create(
        cls,
        rank: int,
        ranks: int,
        all_gather: Callable[[bytes], list[bytes]],
        group: str = "default",
        timeout: Duration = 300.0,
    ) -> Communicator:
        """Makes a group with any means to meet: `all_gather` gets this rank's bytes and returns all ranks', by rank.

        Called by all ranks alike. `pycoll.init` is this with a ready-made way to meet.
        """
        limit = seconds(timeout)
        if limit is None:
            raise InvalidArgument(f"{group}: timeout must be a number of seconds or a timedelta")
        return cls(_core.Communicator.create(rank, ranks, all_gather, group, limit), group)

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
        return self._core.timeout

    @timeout.setter
    def timeout(self, value: Duration) -> None:
        limit = seconds(value)
        if limit is None:
            raise InvalidArgument(f"{self._group}: timeout must be a number of seconds or a timedelta")
        self._core.timeout = limit

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

    # Collectives

    def allreduce(
        self,
        x: Array,
        op: Op = "sum",
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Reduces all ranks' `x` elementwise; every rank gets the result, in `x` or in `out`, which is returned."""
        if (
            out is None
            and algorithm is None
            and timeout is None
            and not async_
            and not pieces
            and self._core.allreduce_plain(x, op)
        ):
            return x
        call = self._call("allreduce")
        if out is None:
            output = _buffers.writable(x, call, "x")
            source = output
        else:
            source, output = self._input_and_output(x, out, call, 1, 1)
        return self._run(
            "allreduce",
            source,
            output,
            source.count,
            x if out is None else out,
            op=op,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def reduce_scatter(
        self,
        x: Array,
        op: Op = "sum",
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Reduces all ranks' `x`, and gives rank r the r-th of `ranks` equal shards of the result.

        `x` of shape (ranks * k, ...) gives a result of shape (k, ...). With `out`, `x` may have any shape whose number
        of elements `ranks` divides.
        """
        call = self._call("reduce_scatter")
        source = _buffers.readable(x, call)
        if out is None:
            out = _buffers.empty_like(x, self._shard_shape(source, call))
        source, output = self._match(source, out, call, 1, self._ranks)
        return self._run(
            "reduce_scatter",
            source,
            output,
            output.count,
            out,
            op=op,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def all_gather(
        self,
        x: Array,
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Gives every rank all ranks' `x`, one after the other by rank: `x` of shape (k, ...) gives (ranks * k, ...)."""
        call = self._call("all_gather")
        source = _buffers.readable(x, call)
        if out is None:
            out = _buffers.empty_like(x, self._gathered_shape(source))
        source, output = self._match(source, out, call, self._ranks, 1)
        return self._run(
            "all_gather",
            source,
            output,
            source.count,
            out,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def broadcast(
        self,
        x: Array | None,
        root: int = 0,
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Gives every rank the root's `x`, in `x` or in `out`, which is returned. `x` is read at the root only."""
        if (
            out is None
            and algorithm is None
            and timeout is None
            and not async_
            and not pieces
            and self._core.broadcast_plain(x, root)
        ):
            return x
        call = self._call("broadcast")
        at_root = self._is_root(root, call)
        result = x if out is None else out
        source: Buffer | None = None
        if at_root and out is None:
            source = _buffers.readable(x, call)
            output = source
        elif at_root:
            source, output = self._input_and_output(x, out, call, 1, 1)
        else:
            output = _buffers.writable(result, call, "x" if out is None else "out")
        return self._run(
            "broadcast",
            source,
            output,
            output.count,
            result,
            root=root,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def reduce(
        self,
        x: Array,
        op: Op = "sum",
        root: int = 0,
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Reduces all ranks' `x` to the root, in `x` or in `out`. The others' `x` stays as it was.

        Returns the result at the root, None elsewhere.
        """
        call = self._call("reduce")
        output: Buffer | None = None
        result = None
        if not self._is_root(root, call):
            source = _buffers.readable(x, call)
        elif out is None:
            source = output = _buffers.writable(x, call, "x")
            result = x
        else:
            source, output = self._input_and_output(x, out, call, 1, 1)
            result = out
        return self._run(
            "reduce",
            source,
            output,
            source.count,
            result,
            op=op,
            root=root,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def gather(
        self,
        x: Array,
        root: int = 0,
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Gives the root all ranks' `x`, one after the other by rank: `x` of shape (k, ...) gives (ranks * k, ...).

        Returns the result at the root, None elsewhere. `out` counts at the root only.
        """
        call = self._call("gather")
        source = _buffers.readable(x, call)
        output: Buffer | None = None
        result = None
        if self._is_root(root, call):
            result = _buffers.empty_like(x, self._gathered_shape(source)) if out is None else out
            source, output = self._match(source, result, call, self._ranks, 1)
        return self._run(
            "gather",
            source,
            output,
            source.count,
            result,
            root=root,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def scatter(
        self,
        x: Array | None,
        root: int = 0,
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Gives rank r the r-th of `ranks` equal parts of the root's `x`: (ranks * k, ...) gives (k, ...).

        `x` is read at the root only. `out` may be left out at the root only: the others cannot know its shape.
        """
        call = self._call("scatter")
        if not self._is_root(root, call):
            if out is None:
                raise InvalidArgument(f"{call}: out is missing; away from the root nothing else tells the shape and dtype")
            source = None
            output = _buffers.writable(out, call)
        else:
            read = _buffers.readable(x, call)
            if out is None:
                out = _buffers.empty_like(x, self._shard_shape(read, call))
            source, output = self._match(read, out, call, 1, self._ranks)
        return self._run(
            "scatter",
            source,
            output,
            output.count,
            out,
            root=root,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def all_to_all(
        self,
        x: Array,
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Sends the r-th of `ranks` equal blocks of `x` to rank r; the result's s-th block comes from rank s.

        The result has the shape of `x`, in `out` or in a new array; `out=x` is allowed.
        """
        call = self._call("all_to_all")
        source = _buffers.readable(x, call)
        if source.count % self._ranks:
            raise InvalidArgument(
                f"{call}: x has {source.count} elements, which cannot be cut into {self._ranks} equal blocks"
            )
        if out is None:
            out = _buffers.empty_like(x, source.shape)
        source, output = self._match(source, out, call, 1, 1)
        return self._run(
            "all_to_all",
            source,
            output,
            source.count // self._ranks,
            out,
            algorithm=algorithm,
            pieces=pieces,
            async_=async_,
            timeout=timeout,
        )

    def barrier(self, async_: bool = False, timeout: Duration | None = None, algorithm: Any = None) -> Any:
        """Returns when every rank has called it."""
        return self._run("barrier", None, None, 0, None, algorithm=algorithm, async_=async_, timeout=timeout)

    # Point to point

    def send(
        self,
        x: Array,
        destination: int,
        tag: int = 0,
        async_: bool = False,
        timeout: Duration | None = None,
    ) -> Any:
        """Sends `x` to one rank, which calls `recv` with the same tag. Messages of one tag arrive in order."""
        call = self._call("send")
        source = _buffers.readable(x, call)
        size = source.count * _core.dtype_size(source.dtype)
        work = self._core.send(source.address, size, destination, tag, seconds(timeout), source.owner)
        return self._finish(Work(work, None, ()), async_)

    def recv(
        self,
        x: Array,
        source: int | None = None,
        tag: int = 0,
        async_: bool = False,
        timeout: Duration | None = None,
    ) -> Any:
        """Receives into `x`, which may be longer than the message, from one rank or (None) from any; returns `x`.

        `Work.source` tells whom an asynchronous one came from.
        """
        call = self._call("recv")
        output = _buffers.writable(x, call, "x")
        size = output.count * _core.dtype_size(output.dtype)
        sender = -1 if source is None else source
        work = self._core.recv(output.address, size, sender, tag, seconds(timeout), output.owner)
        return self._finish(Work(work, x, (output,)), async_)

    # Memory

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """An uninitialised array in shared memory. A collective whose buffers all lie there copies nothing on its way.

        A torch tensor where `dtype` is torch's, a NumPy array otherwise. Its memory is freed with the last array that
        refers to it, also after the group is closed. A local call: ranks need not make the same ones.
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
        """When each rank reached the last collectives (up to 1024), oldest first: who is late, by how much."""
        return [Arrival(sequence, lateness) for sequence, lateness in self._core.arrivals()]

    def chosen_algorithm(
        self, collective: str, count: int, dtype: Any = "float32", op: Op = "sum", root: int = 0
    ) -> str:
        """The algorithm that the engine would run for `count` elements (of the whole buffer for allreduce, reduce and
        broadcast; of one shard or block for the others)."""
        call = self._call(collective)
        name, _ = _op_and_factor(op, call)
        return self._core.chosen_algorithm(collective, _buffers.dtype_name(dtype, call), name, root, count)

    # The end

    def abort(self, reason: str = "aborted by the user") -> None:
        """Ends the group on every rank: whoever waits in it, and whoever calls it later, gets `Aborted`."""
        self._core.abort(reason)

    def close(self) -> None:
        """Leaves the group. Not collective, and harmless when repeated; happens by itself when the process ends."""
        self._closed = True
        self._core.close()
        _open_groups.discard(self)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The others may be waiting for a collective that this rank, having failed, will never call.
        if error is not None and not isinstance(error, (Mismatch, PeerLost, Timeout, Aborted)):
            try:
                self.abort(f"rank {self._rank} raised {kind.__name__ if kind else 'an error'}: {error}")
            except (Aborted, InvalidArgument):
                pass  # over already
        self.close()

    # How a call comes about

    def _call(self, name: str) -> str:
        return f'{name} on rank {self._rank} of {self._ranks} in group "{self._group}"'

    def _is_root(self, root: int, call: str) -> bool:
        if not 0 <= root < self._ranks:
            raise InvalidArgument(f"{call}: root is {root}, and there are ranks 0 to {self._ranks - 1}")
        return root == self._rank

    def _gathered_shape(self, source: Buffer) -> tuple[int, ...]:
        if not source.shape:
            return (self._ranks,)
        return (self._ranks * source.shape[0], *source.shape[1:])

    def _shard_shape(self, source: Buffer, call: str) -> tuple[int, ...]:
        if not source.shape or source.shape[0] % self._ranks:
            raise InvalidArgument(
                f"{call}: x has shape {source.shape}, whose first length cannot be cut into {self._ranks} equal "
                "parts: pad it, or give out="
            )
        return (source.shape[0] // self._ranks, *source.shape[1:])

    def _input_and_output(
        self, x: Array, out: Array, call: str, out_times: int, in_times: int
    ) -> tuple[Buffer, Buffer]:
        return self._match(_buffers.readable(x, call), out, call, out_times, in_times)

    def _match(
        self, source: Buffer, out: Array, call: str, out_times: int, in_times: int
    ) -> tuple[Buffer, Buffer]:
        """The pair (input, output), of which the input has `in_times` a count and the output `out_times` that count."""
        output = _buffers.writable(out, call)
        if output.dtype != source.dtype:
            raise InvalidArgument(f"{call}: x holds {source.dtype} and out {output.dtype}: they must be the same")
        if output.count * in_times != source.count * out_times:
            wanted = f"{source.count * out_times / in_times:g}"
            raise InvalidArgument(
                f"{call}: out has {output.count} elements, and from x's {source.count} come {wanted}"
            )
        if output.address != source.address and _buffers.overlap(source, output):
            source = _buffers.copied(source)
        elif output.address == source.address and out_times != in_times and self._ranks > 1:
            source = _buffers.copied(source)
        return source, output

    def _run(
        self,
        kind: str,
        source: Buffer | None,
        output: Buffer | None,
        count: int,
        result: Any,
        *,
        op: Op = "sum",
        root: int = 0,
        algorithm: Any = None,
        pieces: int = 0,
        async_: bool = False,
        timeout: Duration | None = None,
    ) -> Any:
        buffer = source or output
        name, factor = _op_and_factor(op, kind)
        schedule, named = self._how(algorithm, kind, pieces, root)
        arguments = (
            kind,
            buffer.dtype if buffer else "uint8",
            name,
            factor,
            root,
            source.address if source else 0,
            output.address if output else 0,
            count,
            schedule,
            named,
            pieces,
            seconds(timeout),
        )
        outputs = (output,) if output else ()
        if async_:
            owners = (source and source.owner, output and output.owner)
            return Work(self._core.submit(*arguments, owners), result, outputs)
        self._core.run(*arguments)
        _store(outputs)
        return result

    def _finish(self, work: Work, async_: bool) -> Any:
        return work if async_ else work.result()

    def _how(self, algorithm: Any, kind: str, pieces: int, root: int) -> tuple[Any, str]:
        """The schedule to run, verified, or the name of an algorithm that the engine builds itself."""
        if algorithm is None:
            if pieces:
                raise InvalidArgument(f"{self._call(kind)}: pieces={pieces} needs an algorithm to go with")
            return None, ""
        if not isinstance(algorithm, str):
            return self._verify(algorithm, kind), ""
        from pycoll import schedule

        if schedule.is_builtin(algorithm):
            return None, algorithm
        key = (algorithm, kind, pieces, root)
        if key not in self._built:
            self._built[key] = schedule.build(
                algorithm, collective=kind, ranks=self._ranks, pieces=pieces or None, root=root
            )
        return self._verify(self._built[key], kind), ""

    def _verify(self, schedule: Any, kind: str) -> Any:
        from pycoll.schedule import Schedule

        if not isinstance(schedule, Schedule):
            raise InvalidArgument(
                f"{self._call(kind)}: algorithm is a {type(schedule).__name__}: give a name of pycoll.algorithms(), or "
                "a pycoll.Schedule"
            )
        if schedule not in self._verified:
            schedule.verify()
            self._verified.add(schedule)
        return schedule


_open_groups: weakref.WeakSet[Communicator] = weakref.WeakSet()
_owner = os.getpid()


@atexit.register
def _leave_groups() -> None:
    """So that peers see a rank that ended, not one that was lost, and threads end before the interpreter does."""
    if os.getpid() != _owner:
        return
    for group in list(_open_groups):
        group.close()


def seconds(timeout: Duration | None) -> float | None:
    """A timeout as a number; InvalidArgument unless positive."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgument(f"timeout is {timeout!r}: it must be a positive number of seconds, or a timedelta")
    return float(timeout)


def _store(buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
        if buffer.store is not None:
            buffer.store()


def _op_and_factor(op: Op, call: str) -> tuple[str, float]:
    if isinstance(op, tuple) and len(op) == 2 and op[0] == "premul_sum":
        return "premul_sum", float(op[1])
    name = op if isinstance(op, str) else str(getattr(op, "name", op)).lower()
    name = _TORCH_OPS.get(name, name)
    if name not in OPS:
        raise InvalidArgument(f"{call}: there is no reduce operator {op!r}; there are {', '.join(OPS)}")
    if name == "premul_sum":
        raise InvalidArgument(f"{call}: premul_sum needs a factor: op=pycoll.premul_sum(factor)")
    return name, 1.0
