"""Reading what a schedule is made of: rows of transfers, and JSON."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll import _core
from pycoll._core import InvalidArgument, ScheduleError

FORMAT_VERSION = 1
FIELDS = ("round", "src", "dst", "piece", "reduce")
AROUND = ("preceding", "following")  # of parts only

TransferArray = npt.NDArray[np.void]
"""A NumPy structured array with the fields round, src, dst, piece (int32) and reduce (bool)."""

Transfers = TransferArray | Iterable[Sequence[Any]]
"""Such an array, or rows (round, src, dst, piece, reduce); reduce is a bool, 0, 1, "copy" or "reduce"."""


def integer(name: str, value: object) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name} must be an integer, not {value!r}") from None
    if not -(2**31) <= number < 2**31:
        raise InvalidArgument(f"{name} is {number}, which does not fit 32 bits")
    return number


def param_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(param_text(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows_of(transfers: Transfers) -> npt.NDArray[np.int32]:
    """A row (round, src, dst, piece, reduce) a transfer."""
    if isinstance(transfers, np.ndarray) and transfers.dtype.names is not None:
        missing = [field for field in FIELDS if field not in transfers.dtype.names]
        if missing:
            needed = ", ".join(FIELDS)
            raise ScheduleError(f"transfers: the array lacks the field {missing[0]!r}; it needs {needed}")
        transfers = transfers[list(FIELDS)].tolist()
    rows = [_row(index, transfer) for index, transfer in enumerate(transfers)]
    return np.array(rows, dtype=np.int32).reshape(len(rows), len(FIELDS))


def _row(index: int, transfer: object) -> tuple[int, ...]:
    try:
        values: tuple[Any, ...] = tuple(transfer)  # type: ignore[arg-type]
    except TypeError:
        values = ()
    if isinstance(transfer, str) or len(values) != len(FIELDS):
        raise ScheduleError(f"transfers[{index}]: must be ({', '.join(FIELDS)}), not {transfer!r}")
    row = []
    for field, value in zip(FIELDS[:-1], values[:-1], strict=True):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool | np.bool_):
            raise ScheduleError(f"transfers[{index}]: {field} must be an integer, not {value!r}")
        if not -(2**31) <= number < 2**31:
            raise ScheduleError(f"transfers[{index}]: {field} is {number}, which does not fit 32 bits")
        row.append(number)
    action = values[-1]
    actions = {"copy": 0, "reduce": 1, 0: 0, 1: 1}  # False and True are keys 0 and 1
    if not isinstance(action, str | bool | int | np.bool_ | np.integer) or action not in actions:
        wanted = "true, false, 'copy' or 'reduce'"
        raise ScheduleError(f"transfers[{index}]: reduce must be {wanted}, not {action!r}")
    return (*row, actions[action])


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ScheduleError(f"field {name!r} appears twice")
        fields[name] = value
    return fields


def read_json(text: str) -> dict[str, Any]:
    """The fields of a schedule's JSON, checked; ScheduleError names the one that is wrong."""
    try:
        document = json.loads(text, object_pairs_hook=_unique_fields)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ScheduleError("a schedule is a JSON object with the fields pycoll_schedule, collective, ...")
    kinds = {
        "pycoll_schedule": int,
        "algorithm": str,
        "collective": str,
        "ranks": int,
        "pieces": int,
        "root": int,
        "params": dict,
        "transfers": list,
    }
    for name, kind in kinds.items():
        if name not in document:
            raise ScheduleError(f"field {name!r} is missing")
        value = document[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = {int: "an integer", str: "text", dict: "an object", list: "a list"}[kind]
            raise ScheduleError(f"field {name!r} must be {wanted}, not {json.dumps(value)[:40]}")
    for name in document:
        if name not in kinds and name not in AROUND:
            known = ", ".join((*kinds, *AROUND))
            raise ScheduleError(f"there is no field {name!r}; the fields are {known}")
    for name in AROUND:
        if not isinstance(document.get(name, []), list):
            raise ScheduleError(f"field {name!r} must be a list, not {json.dumps(document[name])[:40]}")
    if document["pycoll_schedule"] != FORMAT_VERSION:
        raise ScheduleError(
            f"field 'pycoll_schedule' is {document['pycoll_schedule']}: this version of pycoll reads "
            f"format {FORMAT_VERSION}"
        )
    for name, value in document["params"].items():
        if not isinstance(value, str):
            raise ScheduleError(f"field 'params': {name!r} must be text, not {json.dumps(value)[:40]}")
    for name in ("transfers", *AROUND):
        for index, row in enumerate(document.get(name, [])):
            if not isinstance(row, list):
                raise ScheduleError(f"{name}[{index}]: must be a list, not {json.dumps(row)[:40]}")
    return document


def write_json(schedule: _core.Schedule) -> str:
    head = {
        "pycoll_schedule": FORMAT_VERSION,
        "algorithm": schedule.algorithm,
        "collective": schedule.collective,
        "ranks": schedule.ranks,
        "pieces": schedule.pieces,
        "root": schedule.root,
        "params": schedule.params,
    }
    fields = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    fields.append(_transfer_list("transfers", schedule.transfers))
    fields += [
        _transfer_list(name, getattr(schedule, name)) for name in AROUND if len(getattr(schedule, name))
    ]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _transfer_list(name: str, transfers: TransferArray) -> str:
    names = ('"copy"', '"reduce"')
    rows = ",\n".join(f"    [{r}, {s}, {d}, {p}, {names[a]}]" for r, s, d, p, a in transfers.tolist())
    return f'  "{name}": [\n{rows}\n  ]' if rows else f'  "{name}": []'
