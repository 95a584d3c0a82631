"""Functions and values for other processes."""

from __future__ import annotations

import io
from collections import ChainMap
from types import CodeType
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]

_reduce_code = cloudpickle.CloudPickler.dispatch_table[CodeType]


def _code(code: CodeType) -> tuple[Any, ...]:
    """cloudpickle leaves out where code came from; a traceback on a rank must say it, and show the line."""
    make, arguments = _reduce_code(code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in arguments)


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _code}, cloudpickle.CloudPickler.dispatch_table)


def dumps(value: Any) -> bytes:
    """Pickled; functions and classes of the main program by value. `pickle.loads` reads it."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()
