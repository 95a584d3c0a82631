"""A group of ranks, and the collectives that it runs on NumPy arrays and torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycoll import _buffers, _core
from pycoll._buffers import Array, Buffer
from pycoll._calls import Duration, How, Op, Work, op_and_factor, premul_sum, seconds, store
from pycoll._group import Arrival, Group, Memory
from pycoll.errors import InvalidArgument

if TYPE_CHECKING:
    from pycoll.schedule import Schedule

__all__ = ["Arrival", "Communicator", "Memory", "Work", "premul_sum"]


class Communicator(Group):
    """A group of ranks. `pycoll.init` and `pycoll.spawn` make one.

    Every rank must call the same collectives in the same order; who does not gets `Mismatch`, as all others
    do.

    Common parameters of the collectives:

    - `x`: a NumPy array, a torch tensor in host memory, or an object with the buffer protocol or DLPack.
      Of any shape and strides: what is not contiguous is copied, and the result copied back.
    - `out`: where the result goes; any shape with the right number of elements.
    - `op`: "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", or `pycoll.premul_sum(factor)`.
    - `algorithm`: a name of `pycoll.algorithms()`, or a `Schedule`; default: the engine's choice.
    - `pieces`: how many the named algorithm cuts the buffer into; 0 for its default.
    - `async_`: return a `Work` at once.
    - `timeout`: seconds (or a timedelta) until `Timeout`; default: the group's.

    All raise InvalidArgument and Unsupported before anything is sent, Mismatch with the group still usable,
    and PeerLost, Timeout and Aborted, after which the group is not.
    """

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
        """Reduces all ranks' `x` elementwise; every rank gets the result, in `x` or in `out`, which is
        returned."""
        plain = algorithm is None and timeout is None and not async_ and not pieces
        if plain and self._core.run_plain("allreduce", x, out, op, 0):
            return x if out is None else out
        call = self._call("allreduce")
        if out is None:
            output = _buffers.writable(x, call, "x")
            source = output
        else:
            source, output = self._input_and_output(x, out, call, 1, 1)
        how = How(algorithm, pieces, async_, timeout)
        return self._run("allreduce", source, output, source.count, x if out is None else out, how, op=op)

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

        `x` of shape (ranks * k, ...) gives a result of shape (k, ...). With `out`, `x` may have any shape
        whose number of elements `ranks` divides.
        """
        plain = out is not None and algorithm is None and timeout is None and not async_ and not pieces
        if plain and self._core.run_plain("reduce_scatter", x, out, op, 0):
            return out
        call = self._call("reduce_scatter")
        source = _buffers.readable(x, call)
        if out is None:
            out = _buffers.empty_like(x, self._shard_shape(source, call))
        source, output = self._match(source, out, call, 1, self._ranks)
        how = How(algorithm, pieces, async_, timeout)
        return self._run("reduce_scatter", source, output, output.count, out, how, op=op)

    def all_gather(
        self,
        x: Array,
        algorithm: Any = None,
        out: Array | None = None,
        async_: bool = False,
        timeout: Duration | None = None,
        pieces: int = 0,
    ) -> Any:
        """Gives every rank all ranks' `x`, one after the other by rank: `x` of shape (k, ...) gives (ranks *
        k, ...)."""
        plain = out is not None and algorithm is None and timeout is None and not async_ and not pieces
        if plain and self._core.run_plain("all_gather", x, out, "sum", 0):
            return out
        call = self._call("all_gather")
        source = _buffers.readable(x, call)
        if out is None:
            out = _buffers.empty_like(x, self._gathered_shape(source))
        source, output = self._match(source, out, call, self._ranks, 1)
        how = How(algorithm, pieces, async_, timeout)
        return self._run("all_gather", source, output, source.count, out, how)

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
        """Gives every rank the root's `x`, in `x` or in `out`, which is returned. `x` is read at the root
        only."""
        plain = out is None and algorithm is None and timeout is None and not async_ and not pieces
        if plain and self._core.run_plain("broadcast", x, None, "sum", root):
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
        how = How(algorithm, pieces, async_, timeout)
        return self._run("broadcast", source, output, output.count, result, how, root=root)

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
        how = How(algorithm, pieces, async_, timeout)
        return self._run("reduce", source, output, source.count, result, how, op=op, root=root)

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
        """Gives the root all ranks' `x`, one after the other by rank: `x` of shape (k, ...) gives (ranks *
        k, ...).

        Returns the result at the root, None elsewhere. `out` counts at the root only.
        """
        call = self._call("gather")
        source = _buffers.readable(x, call)
        output: Buffer | None = None
        result = None
        if self._is_root(root, call):
            result = _buffers.empty_like(x, self._gathered_shape(source)) if out is None else out
            source, output = self._match(source, result, call, self._ranks, 1)
        how = How(algorithm, pieces, async_, timeout)
        return self._run("gather", source, output, source.count, result, how, root=root)

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

        `x` is read at the root only. `out` may be left out at the root only: the others cannot know its
        shape.
        """
        call = self._call("scatter")
        if not self._is_root(root, call):
            if out is None:
                raise InvalidArgument(
                    f"{call}: out is missing; away from the root nothing else tells the shape and dtype"
                )
            source = None
            output = _buffers.writable(out, call)
        else:
            read = _buffers.readable(x, call)
            if out is None:
                out = _buffers.empty_like(x, self._shard_shape(read, call))
            source, output = self._match(read, out, call, 1, self._ranks)
        how = How(algorithm, pieces, async_, timeout)
        return self._run("scatter", source, output, output.count, out, how, root=root)

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
        plain = out is not None and algorithm is None and timeout is None and not async_ and not pieces
        if plain and self._core.run_plain("all_to_all", x, out, "sum", 0):
            return out
        call = self._call("all_to_all")
        source = _buffers.readable(x, call)
        if source.count % self._ranks:
            raise InvalidArgument(
                f"{call}: x has {source.count} elements, which cannot be cut into {self._ranks} equal blocks"
            )
        if out is None:
            out = _buffers.empty_like(x, source.shape)
        source, output = self._match(source, out, call, 1, 1)
        how = How(algorithm, pieces, async_, timeout)
        return self._run("all_to_all", source, output, source.count // self._ranks, out, how)

    def barrier(self, async_: bool = False, timeout: Duration | None = None, algorithm: Any = None) -> Any:
        """Returns when every rank has called it."""
        if not async_ and timeout is None and algorithm is None:
            return self._core.barrier()
        return self._run("barrier", None, None, 0, None, How(algorithm, 0, async_, timeout))

    # Point to point

    def send(
        self,
        x: Array,
        destination: int,
        tag: int = 0,
        async_: bool = False,
        timeout: Duration | None = None,
    ) -> Any:
        """Sends `x` to one rank, which calls `recv` with the same tag. Messages of one tag arrive in
        order."""
        call = self._call("send")
        source = _buffers.readable(x, call)
        size = source.count * _core.dtype_size(source.dtype)
        work = self._core.send(source.address, size, destination, tag, seconds(timeout), source.owner)
        return self._finish(Work(work, self, None, ()), async_)

    def recv(
        self,
        x: Array,
        source: int | None = None,
        tag: int = 0,
        async_: bool = False,
        timeout: Duration | None = None,
    ) -> Any:
        """Receives into `x`, which may be longer than the message, from one rank or (None) from any; returns
        `x`.

        `Work.source` tells whom an asynchronous one came from.
        """
        call = self._call("recv")
        output = _buffers.writable(x, call, "x")
        size = output.count * _core.dtype_size(output.dtype)
        sender = -1 if source is None else source
        work = self._core.recv(output.address, size, sender, tag, seconds(timeout), output.owner)
        return self._finish(Work(work, self, x, (output,)), async_)

    # How a call comes about

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
                f"{call}: x has shape {source.shape}, whose first length cannot be cut into {self._ranks} "
                "equal "
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
        """The pair (input, output), of which the input has `in_times` a count and the output `out_times`
        that count."""
        output = _buffers.writable(out, call)
        if output.dtype != source.dtype:
            raise InvalidArgument(
                f"{call}: x holds {source.dtype} and out {output.dtype}: they must be the same"
            )
        if output.count * in_times != source.count * out_times:
            wanted = f"{source.count * out_times / in_times:g}"
            raise InvalidArgument(
                f"{call}: out has {output.count} elements, and from x's {source.count} come {wanted}"
            )
        same = output.address == source.address and output.count == source.count
        if not same and _buffers.overlap(source, output):
            source = _buffers.copied(source)
        return source, output

    def _run(
        self,
        kind: str,
        source: Buffer | None,
        output: Buffer | None,
        count: int,
        result: Any,
        how: How,
        op: Op = "sum",
        root: int = 0,
    ) -> Any:
        buffer = source or output
        name, factor = op_and_factor(op, kind)
        schedule, algorithm = self._how(how, kind, root)
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
            algorithm,
            how.pieces,
            seconds(how.timeout),
        )
        outputs = (output,) if output else ()
        if how.async_:
            owners = (source and source.owner, output and output.owner)
            return Work(self._core.submit(*arguments, owners), self, result, outputs)
        self._core.run(*arguments)
        store(outputs)
        return result

    def _finish(self, work: Work, async_: bool) -> Any:
        return work if async_ else work.result()

    def _how(self, how: How, kind: str, root: int) -> tuple[_core.Schedule | None, str]:
        """The schedule to run, or the name of an algorithm that the engine builds itself."""
        algorithm = how.algorithm
        if algorithm is None:
            if how.pieces:
                raise InvalidArgument(
                    f"{self._call(kind)}: pieces={how.pieces} needs an algorithm to go with"
                )
            return None, ""
        if isinstance(algorithm, _core.Schedule):
            if algorithm.collective != kind:
                raise InvalidArgument(
                    f"{self._call(kind)}: algorithm is a schedule for {algorithm.collective}"
                )
            return algorithm, ""  # the engine verifies it when it first sees it
        if not isinstance(algorithm, str):
            raise InvalidArgument(
                f"{self._call(kind)}: algorithm is a {type(algorithm).__name__}: give a name of "
                "pycoll.algorithms(), or a pycoll.Schedule"
            )
        from pycoll import schedule

        if schedule.is_builtin(algorithm):
            return None, algorithm
        return self._build(algorithm, kind, how.pieces, root), ""

    def _build(self, algorithm: str, kind: str, pieces: int, root: int) -> Schedule:
        """The schedule of a user's algorithm, built once for as long as its name means the same function."""
        from pycoll import schedule

        meaning = schedule._registered.get(algorithm)
        key = (algorithm, kind, pieces, root)
        known = self._built.get(key)
        if known is not None and known[0] is meaning:
            return known[1]
        made = schedule.build(algorithm, collective=kind, ranks=self._ranks, pieces=pieces or None, root=root)
        self._built[key] = (meaning, made)
        return made
