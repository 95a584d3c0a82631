"""Inputs whose sums, products and means are exact, distinct for rank and element; and what must come out."""

from __future__ import annotations

from typing import Any

import numpy as np


def contribution(rank: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Rank's elements: small, and different from the other ranks'."""
    elements = np.arange(count)
    if np.dtype(dtype) == np.bool_:
        return (elements + rank) % 3 == 0
    values = (elements * 3 + rank * 5) % 7 + 1
    if np.dtype(dtype).kind == "c":
        return (values + 1j * (values % 3)).astype(dtype)
    return values.astype(dtype)


def reduced(op: str, contributions: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The reduction, computed far from any rounding."""
    dtype = contributions[0].dtype
    if dtype == np.bool_:
        wide = np.stack(contributions)
        return wide.all(axis=0) if op in ("prod", "min", "band") else wide.any(axis=0)
    wide = np.stack([c.astype(np.complex128 if dtype.kind == "c" else np.float64) for c in contributions])
    result = {"sum": wide.sum, "prod": wide.prod, "min": wide.min, "max": wide.max, "avg": wide.sum}[op](
        axis=0
    )
    if op == "avg":
        result = result / len(contributions)
        if dtype.kind in "iu":
            result = np.trunc(result)
    return result.astype(dtype)
