"""The errors that pycoll raises. Each says what happened, to whom, and what to do."""

from __future__ import annotations

from pycoll._core import (
    Aborted,
    Error,
    InvalidArgument,
    Mismatch,
    PeerLost,
    ScheduleError,
    Timeout,
    TopologyError,
    Unsupported,
)

__all__ = [
    "Aborted",
    "Error",
    "InvalidArgument",
    "Mismatch",
    "PeerLost",
    "ScheduleError",
    "Timeout",
    "TopologyError",
    "Unsupported",
]
