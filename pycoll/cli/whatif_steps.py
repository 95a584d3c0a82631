"""`pycoll whatif --workload`: the step that is meant, before and after changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycoll.cli._app import split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pycoll import Topology
    from pycoll.whatif import Change, Steps, Workload


def work_of(workload: str, given: Mapping[str, str | int]) -> tuple[Workload, float | None]:
    """The workload of a file, a model's name, or traces between commas, and the seconds that these show.

    ``given`` are fields of it that are not to be as the file says, where they are not empty or 0.
    """
    from dataclasses import replace

    from pycoll import InvalidArgument
    from pycoll.bench.units import parse_size
    from pycoll.whatif import Workload

    changed: dict[str, Any] = {name: value for name, value in given.items() if value}
    traces = split(workload)
    measured = None
    if all(each.endswith((".json", ".json.gz")) for each in traces):
        from pycoll.whatif.kineto import read_traces

        if changed:
            raise InvalidArgument(f"--{next(iter(changed))}: the step of a trace is as it was run")
        trace = read_traces(traces)
        work, measured = trace.workload, trace.measured
    else:
        work = Workload.load(workload)
    if "bucket" in changed:
        changed["bucket"] = parse_size(changed["bucket"])
    return replace(work, **changed), measured


def steps_of(
    machine: Topology, work: tuple[Workload, float | None], changes: list[Change], algorithm: str
) -> Steps:
    """A step of the workload before and after the changes."""
    from pycoll.whatif import Steps, iterate
    from pycoll.whatif.compare import start_of
    from pycoll.whatif.iteration import iterate_in

    before = iterate_in(start_of(machine, changes), work[0], algorithm)
    after = iterate(machine, work[0], changes, algorithm) if changes else None
    return Steps(before, after, tuple(str(change) for change in changes), work[1])
