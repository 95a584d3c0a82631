"""Simulations in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pycoll.bench.units import format_size

if TYPE_CHECKING:
    from pycoll.simulation import CriticalTransfer, Simulation

_SHOWN_LINKS = 4
_SHOWN_TRANSFERS = 3


def summary(simulation: Simulation) -> list[tuple[str, str]]:
    """Lines of a name and a text."""
    schedule, time = simulation.schedule, simulation.time
    hashed = f" (paths by hash, seed {simulation.seed})" if simulation.routing == "hash" else ""
    lines = [
        (
            "schedule",
            f"{schedule.algorithm}: {schedule.collective}, {schedule.ranks} ranks, {schedule.pieces} pieces, "
            f"{format_size(round(simulation.size))} on {simulation.topology.name}{hashed}",
        ),
        (
            "time",
            f"{seconds_text(time)}; algbw {simulation.algbw / 1e9:.4g} GB/s, "
            f"busbw {simulation.busbw / 1e9:.4g} GB/s",
        ),
        ("made of", made_of(simulation)),
    ]
    if time > 0 and schedule.ranks > 1:
        ends = (int(np.argmin(simulation.rank_times)), int(np.argmax(simulation.rank_times)))
        first, last = (f"{seconds_text(float(simulation.rank_times[r]))} (rank {r})" for r in ends)
        lines.append(("ranks done", f"from {first} to {last}"))
    limits = {name: f"{seconds / time:.1%}" for name, seconds in simulation.critical_links.items()}
    if limits:
        limits[next(iter(limits))] += " of the time"
        lines.append(("limited by", _first_few(limits)))
    busy = {name: f"{share:.1%}" for name, share in simulation.link_busy.items()}
    if busy:
        lines.append(("busiest links", _first_few(busy)))
    path = simulation.critical_path
    if path:
        shown = path[-_SHOWN_TRANSFERS:]
        text = f"{len(path)} transfers" + ("; the last ones:" if len(path) > len(shown) else ":")
        lines.append(("critical path", text))
        lines += [("", str(row)) for row in shown]
    return lines


def _first_few(texts: dict[str, str]) -> str:
    shown = [f"{name} {text}" for name, text in texts.items()][:_SHOWN_LINKS]
    more = len(texts) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def made_of(simulation: Simulation) -> str:
    """The composition in words."""
    composition = simulation.composition
    parts = [
        ("waiting for ranks to come", composition.arrival),
        ("overhead", composition.overhead),
        ("bandwidth", composition.bandwidth),
        ("latency", composition.latency),
        ("addition", composition.addition),
    ]
    shown = [
        f"{seconds_text(part)} {name} ({part / simulation.time:.1%})" for name, part in parts if part > 0
    ]
    return ", ".join(shown) or "nothing"


def explained(row: CriticalTransfer) -> str:
    """Why a transfer did not start earlier."""
    other = f"transfer {row.waited_for}"
    return {
        "nothing": "waited for nothing",
        "arrival": "waited for its ranks to come",
        "data": f"waited for data of {other}",
        "reading": f"waited until {other} had left, which read the buffer that the data was to go to",
        "turn": f"waited for its turn after {other}, of the same ranks",
        "send port": f"waited for rank {row.src}'s send port, held by {other}",
        "receive port": f"waited for rank {row.dst}'s receive port, held by {other}",
        "send order": f"waited for {other} to start, which rank {row.src} sends first",
        "receive order": f"waited for {other} to start, which rank {row.dst} receives first",
    }[row.reason]


def seconds_text(seconds: float) -> str:
    """ "940.5 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0 s"
