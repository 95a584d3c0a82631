"""What a group of GPUs decides by: pins (PYCOLL_ALGO), and what ``pycoll tune --device cuda`` measured.

The table is rank 0's, which tells the others when the group is made: all ranks always choose the same. Where
no row covers a size, and where the row's way does not run for a dtype or op, the group's fixed bounds decide.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pycoll.errors import InvalidArgument, Mismatch, Unsupported
from pycoll.gpu import ways
from pycoll.gpu.machine import GpuMachine
from pycoll.gpu.ways import Groups
from pycoll.selection.decisions import Decision, DecisionTable
from pycoll.selection.profile import Profile, for_gpus, wanted_for_gpus

if TYPE_CHECKING:
    from pycoll import cuda
    from pycoll.selection.explanation import Explanation
    from pycoll.topology import Topology

__all__ = ["Selection", "machine_of"]

_COLLECTIVE = "allreduce"
_MODEL_BYTES, _PLACE_BYTES = 128, 64


class Selection:
    """The choices of one rank of a group of GPUs."""

    def __init__(
        self, gpus: cuda.Group, table: DecisionTable, profile: Profile | None, fixed: bool = False
    ) -> None:
        self.groups = Groups(gpus)
        self.table, self.profile = table, profile
        self.fixed = fixed  # one order of additions for all sizes: the fixed bounds alone
        self._chosen: dict[tuple[int, str, str, int], str] = {}
        self._calls: dict[str, ways.Call] = {}

    @classmethod
    def begin(cls, gpus: cuda.Group, asked: object = None) -> Selection:
        """Collective. ``asked``: a profile, its file, False for none, None for what the user set or tuned.

        Raises, on every rank, InvalidArgument for pins and profiles that make no sense here, and Unsupported
        where a pin names NCCL and NCCL cannot be used.
        """
        wanted = _from_rank_0(gpus, lambda: "yes" if wanted_for_gpus(asked, gpus.ranks) else "")
        places = _places(gpus) if wanted else []  # of which a profile must be
        decide = functools.partial(_decide, gpus, asked, places)
        told = json.loads(_from_rank_0(gpus, decide))
        table = _table_of(told["table"])
        profile = None
        if told["profile"] is not None:
            profile = Profile.of_dict(told["profile"], "rank 0's profile")
        made = cls(gpus, table, profile, told["fixed"])
        made._settle()
        return made

    def _settle(self) -> None:
        """What the table's rows need, now: later it might wait for kernels that wait for others."""
        self._settle_nccl()
        for way in dict.fromkeys(row.way for row in self.table.rows):
            if way.startswith("@"):
                self.groups.gpus.prepare(self.table.schedules[way[1:]])
            else:
                ways.kind_of(way).prepare(self.groups, ways.spelled(way, self.groups.gpus.ranks))

    def _settle_nccl(self) -> None:
        """NCCL's group is made now, by all ranks, where a row needs it; without NCCL the rows do without."""
        over = [row for row in self.table.rows if _over_nccl(row.way)]
        if not over:
            return
        try:
            _ = self.groups.nccl
        except Unsupported as error:
            pinned = next((row for row in over if row.basis == "pin"), None)
            if pinned is not None:
                raise Unsupported(f"{pinned.reason}: {error}") from None
            logging.getLogger("pycoll").warning("%s; the profile's next best ways are used", error)
            self.table = _without_nccl(self.table)

    # Choosing

    def choose(self, size: int, dtype: str, op: str, elements: int) -> str:
        """The way for so many bytes; "" where the fixed bounds decide.

        Raises InvalidArgument where a pin names a way that does not run for these arguments.
        """
        key = (size, dtype, op, elements)
        if key not in self._chosen:
            self._chosen[key] = self._choose(*key)
        return self._chosen[key]

    def _choose(self, size: int, dtype: str, op: str, elements: int) -> str:
        row = self.table.find(_COLLECTIVE, size, dtype)
        if row is None:
            return ""
        for way in dict.fromkeys((row.way, *row.others)):
            if self._takes(way, dtype, op, elements):
                return way
            if row.basis == "pin":
                raise InvalidArgument(
                    f"{row.reason}: {way} does not run for {elements} elements of {dtype} with op {op}; "
                    "limit the rule's sizes or dtypes, or give algorithm= in the call"
                )
        return ""

    def _takes(self, way: str, dtype: str, op: str, elements: int) -> bool:
        return way.startswith("@") or ways.kind_of(way).takes(self.groups, way, dtype, op, elements)

    def run(self, way: str, x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
        """Puts a way on a stream. Raises InvalidArgument for one that there is not."""
        call = self._calls.get(way)
        if call is None:
            call = self._calls[way] = self._call(way)
        return call(x, out, op, factor, stream)

    def _call(self, way: str) -> ways.Call:
        if not way.startswith("@"):
            return ways.kind_of(way).call(self.groups, ways.spelled(way, self.groups.gpus.ranks))
        made = self.table.schedules[way[1:]]
        gpus = self.groups.gpus

        def run(x: Any, out: Any, op: str, factor: float, stream: int | None) -> Any:
            return gpus.run(made, x, out, op, factor=factor, stream=stream)

        return run

    def install(self, table: DecisionTable) -> None:
        """Makes another table the one that decides. Collective: the same on all ranks.

        Raises InvalidArgument for a way that there is not, Mismatch where ranks install different tables.
        """
        _check(table)
        gpus = self.groups.gpus
        text = _table_text(table)
        different = 1 if _from_rank_0(gpus, lambda: text) != text else 0
        if gpus._together(lambda: bytes([different])).strip(b"\0"):
            raise Mismatch(f"rank {gpus.rank}: the ranks install different tables; the old one stays")
        self.table = table
        self._chosen.clear()
        self._calls.clear()
        self._settle()

    def explain(self, size: int, dtype: str) -> Explanation:
        """Why what runs for a size runs."""
        from pycoll.gpu.selector import GpuSelector

        gpus = self.groups.gpus
        pinned = DecisionTable(
            [row for row in self.table.rows if row.basis != "measured"], self.table.schedules
        )
        selector = GpuSelector(
            measured=self.profile,
            pins=pinned,
            ranks=gpus.ranks,
            limits=gpus._limit,
            fixed=self.fixed,
            decided=self.table,
        )
        return selector.explain(_COLLECTIVE, size, dtype)


def machine_of(gpus: cuda.Group) -> tuple[GpuMachine, Topology | None]:
    """What the ranks' GPUs are, and how they are wired where the driver says it; collective, and the same on
    all ranks."""
    places = _places(gpus)

    def ask() -> str:
        machine, wiring = _machine(places)
        return json.dumps([dataclasses.asdict(machine), wiring.to_yaml() if wiring else ""])

    machine, text = json.loads(_from_rank_0(gpus, ask))
    from pycoll.topology import Topology

    return GpuMachine(**machine), Topology.from_yaml(text, file="wiring") if text else None


# What rank 0 decides


def _decide(gpus: cuda.Group, asked: object, places: list[tuple[str, str]]) -> str:
    from pycoll.selection import group as selection
    from pycoll.selection.pins import parse_pins

    pins = os.environ.get("PYCOLL_ALGO", "")
    pinned = parse_pins(pins, gpus.ranks, device="cuda") if pins else DecisionTable()
    fixed = selection.flag(selection.DETERMINISTIC)
    if fixed and pinned.rows:
        raise InvalidArgument(
            f"{pinned.rows[0].reason} does not go with {selection.DETERMINISTIC}=1: GPUs then keep to "
            "the kernels and the schedule that add in the order of ranks"
        )
    profile = None if fixed else for_gpus(asked, gpus.ranks, lambda: _machine(places)[0])
    table = pinned if profile is None else profile.decisions().merged_with(pinned)
    return json.dumps(
        {
            "table": json.loads(_table_text(table)),
            "profile": None if profile is None else profile.to_dict(),
            "fixed": fixed,
        }
    )


def _places(gpus: cuda.Group) -> list[tuple[str, str]]:
    """Each rank's GPU: model, and which of the host it is."""
    from pycoll import cuda

    def mine() -> bytes:
        model = cuda.devices()[gpus.device].name
        text = model.encode()[:_MODEL_BYTES].ljust(_MODEL_BYTES, b"\0")
        return text + _place(gpus.device).encode()[:_PLACE_BYTES].ljust(_PLACE_BYTES, b"\0")

    told, each = gpus._together(mine), _MODEL_BYTES + _PLACE_BYTES
    rows = [told[rank * each : (rank + 1) * each] for rank in range(gpus.ranks)]
    return [(_word(row[:_MODEL_BYTES]), _word(row[_MODEL_BYTES:])) for row in rows]


def _place(device: int) -> str:
    """The driver's number or UUID of what is CUDA's GPU `device` in this process."""
    listed = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    return listed[device] if device < len(listed) else str(device)


def _word(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _machine(places: list[tuple[str, str]]) -> tuple[GpuMachine, Topology | None]:
    """Rank 0's business: reading how GPUs are wired may start a program."""
    from pycoll.gpu import links

    models = [model for model, _ in places]
    where = list(dict.fromkeys(place for _, place in places))
    wiring = _wiring(where)
    link = "unknown" if wiring is None else links.summary_of(wiring)
    return GpuMachine.of(models, where, "one gpu" if len(where) == 1 else link), wiring


def _wiring(where: list[str]) -> Topology | None:
    """How the GPUs that ranks use are joined; None where nobody says it, which must not stop a job."""
    from pycoll.errors import Error
    from pycoll.gpu import wiring

    try:
        return wiring.of_places(where)
    except (Error, OSError) as error:
        logging.getLogger("pycoll").info("%s", error)
        return None


def _from_rank_0(gpus: cuda.Group, step: Callable[[], str]) -> str:
    """The text of rank 0's step on every rank; what it raises, on every rank."""
    text = b""

    def run() -> bytes:
        nonlocal text
        text = step().encode() if gpus.rank == 0 else b""
        return len(text).to_bytes(8, "little")

    length = int.from_bytes(gpus._together(run)[:8], "little")
    buffer = np.zeros(length, np.uint8)
    if gpus.rank == 0:
        buffer[:] = np.frombuffer(text, np.uint8)
    gpus._comm.broadcast(buffer, 0)
    return bytes(buffer).decode()


# Tables


def _table_text(table: DecisionTable) -> str:
    return json.dumps(
        {
            "factor": table.factor,
            "rows": [dataclasses.asdict(row) for row in table.rows],
            "schedules": {name: made.to_json() for name, made in table.schedules.items()},
        }
    )


def _table_of(told: dict[str, Any]) -> DecisionTable:
    from pycoll.schedule import Schedule

    rows = [Decision(**{**row, "others": tuple(row["others"])}) for row in told["rows"]]
    schedules = {name: Schedule.from_json(text) for name, text in told["schedules"].items()}
    return DecisionTable(rows, schedules, told["factor"])


def _check(table: DecisionTable) -> None:
    for row in table.rows:
        if row.collective != _COLLECTIVE:
            raise InvalidArgument(f"a table of GPUs is for {_COLLECTIVE}, and a row is for {row.collective}")
        for way in (row.way, *row.others):
            if way.startswith("@"):
                if way[1:] not in table.schedules:
                    raise InvalidArgument(f"a row goes {way}, and the table has no schedule of that name")
            else:
                ways.kind_of(way)


def _over_nccl(way: str) -> bool:
    return not way.startswith("@") and ways.kind_of(way).over_nccl


def _without_nccl(table: DecisionTable) -> DecisionTable:
    """Rows go their next best way that needs no NCCL; a row without one is left to the fixed bounds."""
    rows = []
    for row in table.rows:
        own = [way for way in (row.way, *row.others) if not _over_nccl(way)]
        if own:
            rows.append(dataclasses.replace(row, way=own[0], others=tuple(own[1:])))
    return DecisionTable(rows, table.schedules, table.factor)
