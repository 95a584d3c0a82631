"""All that a page shows, as plain values: what is embedded in it as JSON, and what ``--json`` prints beside
``--html``."""

from __future__ import annotations

import math
from typing import Any

from pycoll.whatif.check import known_check
from pycoll.whatif.compare import Comparison
from pycoll.whatif.each import Harms
from pycoll.whatif.evaluate import Evaluator, Outcome
from pycoll.whatif.iteration import Steps
from pycoll.whatif.page.picture import picture
from pycoll.whatif.page.timeline import timeline
from pycoll.whatif.scale import Scale
from pycoll.whatif.sweep import Sweep

__all__ = ["document_of"]

#: Of machines of up to so many ranks the curve has more points than sizes were asked for.
_SMALL = 64
_CURVE = tuple(1 << power for power in range(10, 31, 2))
_MOST_TIMELINES = 6


def document_of(
    comparison: Comparison | None = None,
    *,
    harms: Harms | None = None,
    sweep: Sweep | None = None,
    steps: Steps | None = None,
    scale: Scale | None = None,
    timelines: bool = True,
    curve: bool = True,
) -> dict[str, Any]:
    """The parts that were computed, with pictures of the comparison.

    Without ``curve`` time is shown at the comparison's sizes only.
    """
    from pycoll import __version__

    parts = (comparison, steps, harms, sweep)
    found: dict[str, Any] = {
        "pycoll": __version__,
        "title": _title(comparison, harms, sweep, steps),
        "changes": list(next((part.changes for part in parts if part is not None), ())),
        "checked": None,
        "comparison": None,
        "curve": None,
        "picture": None,
        "timelines": None,
        "harms": harms and _finite({**harms.to_dict(), "which": [row.which for row in harms.rows]}),
        "sweep": sweep and sweep.to_dict(),
        "scale": scale and scale.to_dict(),
        "steps": steps and steps.to_dict(),
    }
    if comparison is not None:
        found.update(_compared(comparison, timelines, curve))
        known = known_check(comparison.before.topology)
        found["checked"] = known.sentence if known is not None else None
    return found


def _title(
    comparison: Comparison | None,
    harms: Harms | None,
    sweep: Sweep | None,
    steps: Steps | None,
) -> str:
    if comparison is not None:
        return f"{comparison.collective} on {comparison.before.topology.name}"
    if steps is not None:
        return f"{steps.before.workload} on {steps.before.machine}"
    one = harms if harms is not None else sweep
    return f"{one.collective} on {one.machine}" if one is not None else "what if"


def _compared(comparison: Comparison, timelines: bool, curve: bool) -> dict[str, Any]:
    rows = [row for row in comparison.rows if row.before is not None or row.after is not None]
    single = not comparison.changes
    before, after = comparison.before, None if single else comparison.after
    per_row: list[tuple[Outcome | None, Outcome | None]] = [(row.before, row.after) for row in rows]
    shown: dict[str, Any] = {"comparison": _finite(comparison.to_dict())}
    shown["picture"] = picture(
        before.topology,
        after.topology if after is not None else None,
        [outcome.loads if outcome is not None else {} for outcome, _ in per_row],
        [outcome.loads if outcome is not None else {} for _, outcome in per_row],
    )
    if timelines:
        one, other = Evaluator(before), Evaluator(after) if after is not None else None
        made: list[dict[str, Any] | None] = []
        for number, (first, second) in enumerate(per_row):
            if number >= _MOST_TIMELINES:
                made.append(None)
                continue
            made.append(
                {
                    "before": timeline(one, first) if first is not None else None,
                    "after": timeline(other, second) if other is not None and second is not None else None,
                }
            )
        shown["timelines"] = made
    if comparison.algorithm != "all":
        shown["curve"] = _curve(comparison, curve)
    return shown


def _curve(comparison: Comparison, more: bool) -> list[dict[str, Any]]:
    """Time and bound by size; on small machines at more sizes than were asked for."""
    rows = list(comparison.rows)
    small = max(len(side.topology.ranks) for side in (comparison.before, comparison.after)) <= _SMALL
    if more and small and comparison.collective != "barrier":
        asked = {row.size for row in rows}
        sizes = [size for size in _CURVE if size not in asked]
        rows += comparison.again(sizes).rows
    found = []
    for row in sorted(rows, key=lambda row: row.size):
        point: dict[str, Any] = {"size_bytes": row.size}
        for side, outcome in (("before", row.before), ("after", row.after)):
            if outcome is not None:
                point |= {
                    f"{side}_s": outcome.time,
                    f"{side}_bound_s": outcome.bound,
                    f"{side}_way": outcome.way,
                }
        found.append(point)
    return found


def _finite(value: Any) -> Any:
    """JSON has no infinity: null in its place."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
