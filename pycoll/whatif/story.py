"""What a change did, and why, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from pycoll.bench.units import format_seconds, format_size
from pycoll.whatif.evaluate import Outcome

__all__ = ["change_text", "what_happened"]

_SAME = 0.005  # of the time: less is no change worth a word


def change_text(before: float, after: float) -> str:
    """``+50%``, ``-3.2%``, ``3.4 x``, ``=``"""
    if before == after or (before and abs(after / before - 1) < 5e-5):
        return "="
    if not before:
        return "new"
    ratio = after / before
    if ratio >= 3:
        return f"{ratio:.3g} x"
    percent = 100 * (ratio - 1)
    return f"{percent:+.0f}%" if abs(percent) >= 10 else f"{percent:+.1f}%"


def what_happened(
    before: Outcome, after: Outcome, kept: Outcome | None = None, touched: Iterable[str] = ()
) -> str:
    """A sentence or a few. ``kept`` is the way of before after the change, ``touched`` the links that
    changed."""
    size = format_size(before.size)
    parts = [f"{size}: {_time(before, after)}"]
    if after.ranks != before.ranks:
        parts.append(f"with {after.ranks} ranks in place of {before.ranks}")
    head = ", ".join(parts)
    unchanged = abs(after.time / before.time - 1) < _SAME if before.time else after.time == before.time
    if after.algorithm != before.algorithm:
        why = f"the choice flips from {before.way} to {after.way}{_binds(before, after)}"
        if kept is not None:
            loss = kept.time / after.time
            stay = f"{loss:.2f} times as long"
            if loss < 1 - _SAME:
                stay = (
                    "no longer, but sends more: of ways within a percent the one of fewest transfers is taken"
                )
            elif loss < 1 + _SAME:
                stay = "as long"
            why += f"; {before.way} would take {format_seconds(kept.time)}, {stay}"
    elif unchanged:
        why = _why_not(before, after, set(touched))
    else:
        why = f"{after.algorithm} stays the choice{_binds(before, after)}"
    waiting = after.composition.get("arrival", 0.0) - before.composition.get("arrival", 0.0)
    if waiting > _SAME * after.time:
        why += f"; {format_seconds(waiting)} of it passes before the late rank comes"
    text = f"{head}: {why}."
    if before.bound and abs(after.bound / before.bound - 1) >= _SAME:
        share = f"{after.share:.0%} of that speed is reached, {before.share:.0%} before"
        text += (
            f" No algorithm could now take less than {format_seconds(after.bound)}"
            f" ({after.bound_binding}); {share}."
        )
    return text


def _time(before: Outcome, after: Outcome) -> str:
    if not before.time:
        return f"{format_seconds(before.time)} becomes {format_seconds(after.time)}"
    ratio = after.time / before.time
    spans = f"{format_seconds(before.time)} -> {format_seconds(after.time)}"
    if abs(ratio - 1) < _SAME:
        return f"nothing changes ({spans})"
    if ratio >= 3:
        return f"{ratio:.3g} times as long ({spans})"
    return f"{'slower' if ratio > 1 else 'faster'} by {abs(ratio - 1):.1%} ({spans})"


def _binds(before: Outcome, after: Outcome) -> str:
    if after.binding is None:
        return "; what binds is latency, not a link" if before.binding is not None else ""
    busy = f" (busy {after.busy:.0%} of the time)" if after.busy is not None else ""
    if after.binding == before.binding:
        return f"; {after.binding} binds as before{busy}"
    was = f", where it was {before.binding}" if before.binding is not None else ", where it was latency"
    return f": {after.binding} binds now{busy}{was}"


def _why_not(before: Outcome, after: Outcome, touched: set[str]) -> str:
    if touched and not any(before.loads.get(name) for name in touched):
        return f"no transfer of {before.way} uses what changed"
    if after.binding == before.binding:
        return f"{after.algorithm} is limited by {after.binding or 'latency'}, before and after"
    was, now = (each.binding or "latency" for each in (before, after))
    return f"{after.algorithm} is limited by {now}, where it was {was}"
