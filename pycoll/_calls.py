"""What all calls of a group have in common: durations, reduce operators, and work in progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from pycoll import _core
from pycoll._buffers import Buffer
from pycoll.errors import Error, InvalidArgument

#: Seconds, or a timedelta.
Duration = float | timedelta

#: "sum", "avg", "prod", "min", "max", "band", "bor", "bxor"; `premul_sum(factor)`; or torch's ReduceOp.
Op = Any

OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
_TORCH_OPS = {"product": "prod"}  # the only name of torch's that differs by more than case


class How(NamedTuple):
    """How a call is to run: the parameters that all collectives share."""

    algorithm: Any = None
    pieces: int = 0
    async_: bool = False
    timeout: Duration | None = None


class PremulSum(NamedTuple):
    """The reduce operator that multiplies this rank's contribution by `factor`, then sums."""

    name: str
    factor: float


def premul_sum(factor: Any) -> PremulSum:
    """The operator "each rank's contribution times a factor, summed". `factor`: a number, or an array or
    tensor of one element."""
    return PremulSum("premul_sum", _number(factor))


def _number(factor: Any) -> float:
    try:
        return float(factor.item() if hasattr(factor, "item") else factor)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgument(
            f"premul_sum: factor is {factor!r}: it must be one number, or an array of one element"
        ) from None


class Work:
    """An asynchronous call. Its buffers live at least as long as it runs, also when the Work is dropped.

    Until `wait`, `result` or a true `done` returns, inputs must not be written and outputs not be read.
    """

    __slots__ = ("_buffers", "_core", "_group", "_result")

    def __init__(self, core: _core.Work, group: object, result: Any, buffers: Sequence[Buffer]) -> None:
        self._core = core
        self._group = group  # a group that nobody refers to is closed, and its work ended
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
            Timeout: after `timeout` seconds, which aborts the group: its other ranks must not wait for ever
            either. Error: what the call itself failed with.
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
        store(self._buffers)
        self._buffers = ()


def seconds(timeout: Duration | None) -> float | None:
    """A timeout as a number; InvalidArgument unless positive."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgument(
            f"timeout is {timeout!r}: it must be a positive number of seconds, or a timedelta"
        )
    return float(timeout)


def store(buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
        if buffer.store is not None:
            buffer.store()


def op_and_factor(op: Op, call: str) -> tuple[str, float]:
    if isinstance(op, tuple) and len(op) == 2 and op[0] == "premul_sum":
        return "premul_sum", _number(op[1])
    name = op if isinstance(op, str) else str(getattr(op, "name", op)).lower()
    name = _TORCH_OPS.get(name, name)
    if name not in OPS:
        raise InvalidArgument(f"{call}: there is no reduce operator {op!r}; there are {', '.join(OPS)}")
    if name == "premul_sum":
        raise InvalidArgument(f"{call}: premul_sum needs a factor: op=pycoll.premul_sum(factor)")
    return name, 1.0
