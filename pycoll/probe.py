"""How far apart this process's processors are, measured.

On a virtual machine, and on a server with several sockets, the same two ranks may run on cores that share a
cache or on cores that do not, and that alone changes a collective's time by up to ten times. So a measurement
is worth little without a note of the state it was taken in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

State = Literal["near", "far", "mixed", "unknown"]

#: A cache line travels between two cores under one shared cache in 20 to 45 ns, and between sockets, or
#: between cores whose host has moved them apart, in 90 ns and more.
NEAR_BELOW_NS = 70.0


def core_to_core_ns(cpu_a: int = -1, cpu_b: int = -1) -> float:
    """Nanoseconds that a cache line takes from one processor to the other, one way.

    The median over batches of a line bounced between two threads pinned to the two processors (default: the
    first two that this process may use). Takes about 5 ms. NaN where there is only one processor.

    Raises:
        InvalidArgument: a processor that this process may not use, or twice the same.
    """
    from pycoll import _core

    return float(_core.core_to_core_ns(cpu_a, cpu_b))


def state_of(nanoseconds: float) -> State:
    """The state that a probe's answer means: `near`, `far`, or `unknown` for NaN (one processor)."""
    if math.isnan(nanoseconds):
        return "unknown"
    return "near" if nanoseconds < NEAR_BELOW_NS else "far"


def state_between(probes: Iterable[float]) -> State:
    """The state of a measurement that these probes surround: `mixed` where they do not agree."""
    states = {state_of(nanoseconds) for nanoseconds in probes}
    return states.pop() if len(states) == 1 else "mixed"
