"""Which way an all_reduce of CUDA tensors goes in the torch backend: `pycoll.cuda.Group`'s table of pins and
measurements, as text for the compiled adapter, which runs the kernels itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pycoll.errors import Unsupported

if TYPE_CHECKING:
    from pycoll.selection.decisions import Decision

__all__ = ["place_of", "table"]

_ELSEWHERE = (
    "does not run in the torch backend: pycoll.cuda.Group has it"
    ' (NCCL\'s own: init_process_group("cpu:pycoll,cuda:nccl"))'
)


def place_of(device: int) -> str:
    """What rank 0 is told of this rank's GPU `device`: its model, and which of the host it is."""
    from pycoll import cuda
    from pycoll.gpu import selection

    return f"{cuda.devices()[device].name}\n{selection._place(device)}"


def table(places: Sequence[str]) -> str:
    """Rank 0's table, from :func:`place_of` of every rank: a row a line of `begin end dtypes basis ways
    reason`, with tabs between; sizes are bytes, `end` is empty where there is none, and ways are in order of
    preference.

    Raises InvalidArgument for pins and profiles that make no sense here, Unsupported where a pin names a way
    that the backend does not run.
    """
    from pycoll.gpu import selection
    from pycoll.selection.profile import wanted_for_gpus

    ranks = len(places)
    gpus: Any = SimpleNamespace(ranks=ranks)  # all that is asked of a group
    split = [tuple(place.split("\n", 1)) for place in places] if wanted_for_gpus(None, ranks) else []
    told = json.loads(selection._decide(gpus, None, split))  # type: ignore[arg-type]
    merged = selection._table_of(told["table"]).merged_with()
    return "".join(
        f"{line}\n" for row in merged.rows if row.collective == "allreduce" for line in _line(row, ranks)
    )


def _line(row: Decision, ranks: int) -> Iterator[str]:
    from pycoll.gpu import ways

    own = [way for way in dict.fromkeys((row.way, *row.others)) if _runs(way)]
    if row.basis == "pin" and row.way not in own:
        raise Unsupported(f"{row.reason}: {row.way} {_ELSEWHERE}")
    if own:
        spelled = ",".join(ways.spelled(way, ranks) for way in own)
        end = "" if row.end is None else str(row.end)
        yield "\t".join((str(row.begin), end, row.dtypes, row.basis, spelled, " ".join(row.reason.split())))


def _runs(way: str) -> bool:
    """Kernels for small buffers, and schedules of the registry; no file's, no NVLS, nothing over NCCL."""
    from pycoll.gpu import ways

    if way.startswith("@"):
        return False
    kind = ways.kind_of(way)
    return not kind.over_nccl and not isinstance(kind, ways.Switch)
