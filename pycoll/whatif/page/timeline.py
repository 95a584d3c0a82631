"""A run as a timeline: what each rank sends when, and how busy each link is over time; as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.simulation import Simulation
from pycoll.topology import Topology
from pycoll.whatif.evaluate import Evaluator, Outcome

__all__ = ["timeline"]

_MOST_ROWS = 64  # ranks shown
_MOST_LINKS = 32  # links shown, the busiest
_MOST_DETAIL = 6_000  # transfers shown one by one; of more, how much ranks send over time
_MOST_TRANSFERS = 4_000_000  # of more, nothing
_MOST_EXACT = 300_000  # of more, all of a transfer's bytes count for the middle of its time
_PARTS = 180  # of the time


def timeline(evaluator: Evaluator, outcome: Outcome) -> dict[str, Any] | None:
    """Of the outcome's way; None where it was only estimated, or has too many transfers."""
    schedule = evaluator.schedule(outcome.way, outcome.collective)
    if outcome.estimated or len(schedule.transfers) > _MOST_TRANSFERS:
        return None
    run = evaluator.run(schedule, outcome.collective, outcome.size)
    simulation, topology = run.simulation, evaluator.topology
    lanes = simulation.schedule.ranks // len(topology.ranks)
    rows = _rows(len(topology.ranks))
    transfers = simulation.schedule.transfers
    senders = transfers["src"] // lanes
    found: dict[str, Any] = {
        "way": outcome.way,
        "time_s": simulation.time,
        "ranks": [
            {
                "rank": rank,
                "device": topology.nodes[topology.ranks[rank]].name,
                "comes_s": float(simulation.start[rank * lanes]),
                "done_s": float(simulation.rank_times[rank * lanes : (rank + 1) * lanes].max()),
            }
            for rank in rows
        ],
        "ranks_of_all": len(topology.ranks),
        "transfers": None,
        "sent": None,
        "links": [],
    }
    if len(transfers) <= _MOST_DETAIL and len(rows) == len(topology.ranks):
        found["transfers"] = _detail(simulation, simulation.link_names, lanes)
    elif simulation.time:
        found["sent"] = _sent(simulation, senders, len(topology.ranks), rows)
    found["part_s"] = simulation.time / _PARTS
    if lanes == 1 and simulation.time:
        found.update(_links(simulation, topology))
    return found


def _rows(ranks: int) -> list[int]:
    if ranks <= _MOST_ROWS:
        return list(range(ranks))
    return [index * (ranks - 1) // (_MOST_ROWS - 1) for index in range(_MOST_ROWS)]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _detail(simulation: Simulation, names: list[str], lanes: int) -> dict[str, Any]:
    """Columns, in order of the schedule; ``critical`` are the transfers that the time is made of, in order.

    ``names`` are those of the links.
    """
    transfers, arrays = simulation.schedule.transfers, simulation.arrays
    used = [names[index] for index in arrays["link"].tolist()]
    number = {name: index for index, name in enumerate(dict.fromkeys(used))}
    return {
        "round": transfers["round"].tolist(),
        "src": (transfers["src"] // lanes).tolist(),
        "dst": (transfers["dst"] // lanes).tolist(),
        "piece": transfers["piece"].tolist(),
        "adds": transfers["reduce"].astype(int).tolist(),
        "start_s": [_short(value) for value in arrays["start"].tolist()],
        "end_s": [_short(value) for value in arrays["end"].tolist()],
        "limited_by": [number[name] for name in used],
        "links": list(number),
        "bytes": simulation.size / simulation.schedule.pieces,
        "critical": [row.transfer for row in simulation.critical_path],
        "reasons": [row.reason for row in simulation.critical_path],
    }


def _flow(simulation: Simulation, key: npt.NDArray[np.intp], keys: int) -> npt.NDArray[np.float64]:
    """Bytes that flow in each of the equal parts of the time, a row a key; transfers have keys."""
    piece = simulation.size / simulation.schedule.pieces
    starts, ends = simulation.byte_starts, simulation.arrays["end"]
    if len(key) > _MOST_EXACT:
        part = np.minimum(((starts + ends) / 2 * (_PARTS / simulation.time)).astype(np.intp), _PARTS - 1)
        counts = np.bincount(key * _PARTS + part, minlength=keys * _PARTS)
        return np.asarray(counts.reshape(keys, _PARTS) * piece, dtype=np.float64)
    lasting = np.maximum(ends - starts, 1e-15)
    edges = np.linspace(0.0, simulation.time, _PARTS + 1)
    until = [np.bincount(key, np.clip((edge - starts) / lasting, 0.0, 1.0), keys) for edge in edges]
    return np.asarray(np.diff(np.stack(until, axis=1), axis=1) * piece, dtype=np.float64)


def _sent(
    simulation: Simulation, senders: npt.NDArray[np.intp], ranks: int, rows: list[int]
) -> dict[str, Any]:
    """How much each rank sends in each part of the time, to be added and to be kept: shares of the most that
    any does."""
    adds = simulation.schedule.transfers["reduce"].astype(bool)
    flow = _flow(simulation, senders.astype(np.intp) + ranks * adds, 2 * ranks)
    kept, added = flow[:ranks], flow[ranks:]
    most = float((kept + added).max()) or 1.0
    return {
        "most_bytes_per_s": most * _PARTS / simulation.time,
        "kept": [[round(value, 3) for value in (kept[rank] / most).tolist()] for rank in rows],
        "added": [[round(value, 3) for value in (added[rank] / most).tolist()] for rank in rows],
    }


def _links(simulation: Simulation, topology: Topology) -> dict[str, Any]:
    """The busiest links, and the share of what each could carry in each part of the time."""
    shown = list(simulation.link_busy.items())[:_MOST_LINKS]
    row_of = {name: row for row, (name, _) in enumerate(shown)}
    index_of = {index: row_of[link.name] for index, link in enumerate(topology.links) if link.name in row_of}
    transfers, ranks = simulation.schedule.transfers, len(topology.ranks)
    pairs, pair_of = np.unique(
        transfers["src"].astype(np.intp) * ranks + transfers["dst"], return_inverse=True
    )
    flow = _flow(simulation, pair_of, len(pairs))
    carried = np.zeros((len(shown), _PARTS))
    for pair, bytes_ in zip(pairs.tolist(), flow, strict=True):
        _, shares = topology.native.route(pair // ranks, pair % ranks, simulation.routing, simulation.seed)
        for link, share in shares:
            if link in index_of:
                carried[index_of[link]] += bytes_ * share
    could = np.array([0.0] * len(shown))
    for index, row in index_of.items():
        could[row] = topology.links[index].bandwidth
    busy = np.minimum(1.0, carried / (could[:, None] * simulation.time / _PARTS))
    return {
        "links": [
            {"name": name, "busy": _short(share), "over_time": [round(value, 3) for value in row]}
            for (name, share), row in zip(shown, busy.tolist(), strict=True)
        ],
        "links_of_all": len(simulation.link_busy),
    }
