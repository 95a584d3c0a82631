"""The last calls of this process, as torch's flight recorder tells them and torch's analysis reads them."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

# Of the format, torch/csrc/distributed/c10d/FlightRecorder.hpp; checked by torch's analysis.
VERSION = "2.10"

SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
TARGET = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")

# torch's analysis takes names of backends that it knows only, and has others for some calls. Of
# all_to_all_single it would have all ranks send as much; of all_to_all, that as much is sent as received.
_KNOWN_BACKEND = "gloo"
_KNOWN_AS = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_reduce_sparse": "all_reduce",
    "all_to_all_single": "all_to_all",
    "gather_single": "gather",
}

Entry = dict[str, Any]


def flight_recorder() -> dict[str, Any]:
    """What this process called last on groups of pycoll, oldest first, and how far each call came.

    Recorded are the last TORCH_FR_BUFFER_SIZE calls (an environment variable, read when the first group is
    made; unset or 0: none, and nothing is spent on it).

    Returns:
        A dict of the format of torch's flight recorder: "entries", a dict a call with the group's and the
        operation's name, sequence numbers, shapes and dtypes, times in nanoseconds since 1970, Python frames
        and "state": "scheduled", "started" or "completed". A call that failed is retired and not completed;
        "error" says why. "pg_config" and "pg_status" tell of the groups, by name and by number. Beyond
        torch's format, messages have "peer" (rank of the group, None until a receive from any rank hears one)
        and "tag".

    Raises:
        RuntimeError: nothing is recorded here: the variable is not set, or there was no group of pycoll yet.
    """
    from pycoll import __version__
    from pycoll.torch import build

    adapter = build.loaded()
    record = adapter.flight_record() if adapter else None
    if record is None:
        raise RuntimeError(
            f"pycoll's flight recorder is off: set {SIZE[0]} (to how many calls to keep, such as 2000) "
            "before the process makes its first group of pycoll"
        )
    rows, groups = record
    begun = _begun(rows)
    return {
        "version": VERSION,
        "comm_lib_version": f"pycoll {__version__}",
        "pg_config": {
            group["name"]: {
                "name": group["name"],
                "desc": group["description"] or "undefined",
                "ranks": str(group["global_ranks"]),
            }
            for group in groups.values()
        },
        "pg_status": {
            str(number): {
                "last_enqueued_collective": group["last_called"],
                "last_started_collective": min(group["last_called"], group["last_completed"] + 1),
                "last_completed_collective": group["last_completed"],
            }
            for number, group in groups.items()
        },
        "entries": [_entry(row, groups[row["group"]], begun.get(row["id"])) for row in rows],
    }


def dump_flight_recorder(path: str | os.PathLike[str] | None = None) -> Path:
    """Write this rank's record where torch's analysis finds it:

        torchfrtrace FOLDER --prefix trace_

    on the files trace_0, trace_1, ... of all ranks says which call is the first that not all ranks made, or
    made differently.

    Where torch's analysis wants it so, the file differs from `flight_recorder`: names begin with "gloo:", for
    it takes only backends that it knows; messages are told as collectives of two ranks, a group for each
    sender, receiver and tag, so that the n-th send is compared with the n-th receive; and receives from any
    rank that have not heard one are left out.

    Args:
        path: without the rank in torch's world, which is appended: "/tmp/trace_" becomes /tmp/trace_0. One
            that ends in ".json" is written as `flight_recorder` has it, in JSON, with the rank before the
            ending. Default: $TORCH_FR_DUMP_TEMP_FILE, $TORCH_NCCL_DEBUG_INFO_TEMP_FILE, or else
            ~/.cache/torch/comm_lib_trace_rank_, as torch's own.

    Returns:
        The file's path.

    Raises:
        RuntimeError: nothing is recorded here; see `flight_recorder`.
        OSError: the file cannot be written.
    """
    record = flight_recorder()
    rank = _global_rank()
    text = os.fspath(path) if path is not None else _target()
    if text.endswith(".json"):
        target = Path(f"{text.removesuffix('.json')}{rank}.json")
        content = json.dumps(record).encode()
    else:
        target, content = Path(f"{text}{rank}"), pickle.dumps(for_analysis(record))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def dump_after_failure() -> None:
    """At the process's exit: dump what was asked for, if a call failed or has not come to its end."""
    if not any(os.environ.get(name) for name in TARGET):
        return
    try:
        if any(entry["state"] != "completed" for entry in flight_recorder()["entries"]):
            dump_flight_recorder()
    except (OSError, RuntimeError):
        pass  # off; or there is nothing better to do with it now


def for_analysis(record: dict[str, Any]) -> dict[str, Any]:
    """The record in the words of torch's analysis; see `dump_flight_recorder`."""
    config = dict(record["pg_config"])
    counts: dict[str, int] = defaultdict(int)
    entries = []
    for entry in record["entries"]:
        if not entry["is_p2p"]:
            ranks = json.loads(config[entry["process_group"][0]]["ranks"])
            entries.append(_collective_for_analysis(entry, len(ranks)))
            continue
        channel = _channel(entry, config)
        if channel is None:
            continue
        config[channel["name"]] = channel
        counts[channel["name"]] += 1
        members = json.loads(channel["ranks"])
        source, destination = (members.index(rank) for rank in _ends(entry, config))
        sends = entry["profiling_name"].endswith(":send")
        ends = f"send {source}->{destination}" if sends else f"recv {destination}<-{source}"
        entries.append({
            **entry,
            "process_group": (channel["name"], channel["desc"]),
            "profiling_name": f"{_KNOWN_BACKEND}:{ends}",
            "collective_seq_id": counts[channel["name"]],
            "p2p_seq_id": counts[channel["name"]],
        })  # fmt: skip
    return {**record, "pg_config": config, "entries": entries}


def _collective_for_analysis(entry: Entry, ranks: int) -> Entry:
    """Lists of tensors become the one buffer that they are to torch's analysis."""
    name = entry["profiling_name"].split(":")[1]
    inputs, outputs = entry["input_sizes"], entry["output_sizes"]
    known = _KNOWN_AS.get(name, name)
    if name == "all_gather":
        uneven = any(sizes != inputs[0] for sizes in outputs)
        outputs = _as_one(outputs)
        known, inputs = ("all_gather_v", outputs) if uneven else (known, inputs)
    elif name == "reduce_scatter":
        uneven = any(sizes != outputs[0] for sizes in inputs)
        inputs = _as_one(inputs)
        known, outputs = ("reduce_scatter_v", inputs) if uneven else (known, outputs)
    elif known == "all_to_all":
        inputs, outputs = _as_one(inputs), _as_one(outputs)
    elif name == "all_gather_into_tensor_coalesced" and len(outputs) > len(inputs):
        outputs = [_as_one(outputs[i : i + ranks])[0] for i in range(0, len(outputs), ranks)]
    return {
        **entry,
        "profiling_name": f"{_KNOWN_BACKEND}:{known}",
        "input_sizes": inputs,
        "output_sizes": outputs,
    }


def _as_one(tensors: list[list[int]]) -> list[list[int]]:
    return [[sum(math.prod(sizes) for sizes in tensors)]]


def _ends(entry: Entry, config: dict[str, Any]) -> tuple[int, int]:
    """Source and destination of a message, in torch's world."""
    ranks = json.loads(config[entry["process_group"][0]]["ranks"])
    me, other = ranks[entry["rank"]], ranks[entry["peer"]]
    return (me, other) if entry["profiling_name"].endswith(":send") else (other, me)


def _channel(entry: Entry, config: dict[str, Any]) -> dict[str, str] | None:
    """What stands for a message's sender, receiver and tag in "pg_config"; None where they are not known."""
    if entry["peer"] is None:
        return None
    source, destination = _ends(entry, config)
    group, description = entry["process_group"]
    tag = f" tag {entry['tag']}" if entry["tag"] else ""
    return {
        "name": f"{group} {source}->{destination}{tag}",
        "desc": f"{description}, messages {source}->{destination}{tag}",
        "ranks": str(sorted({source, destination})),
    }


def _begun(rows: list[Entry]) -> dict[int, int]:
    """When calls that are not over began, by their number: messages when they were called, collectives after
    those before them in their group."""
    over_until: dict[int, int] = defaultdict(int)  # by group
    busy = set()
    begun = {}
    for row in rows:
        group = row["group"]
        if row["is_message"]:
            begun[row["id"]] = row["created"]
        elif row["retired"]:
            begun[row["id"]] = max(row["created"], over_until[group])
            over_until[group] = max(over_until[group], row["completed"])
        elif group not in busy:
            busy.add(group)
            begun[row["id"]] = max(row["created"], over_until[group])
    return begun


def _entry(row: Entry, group: dict[str, Any], begun: int | None) -> Entry:
    completed = row["completed"] or None
    entry = {
        "record_id": row["id"],
        "pg_id": row["group"],
        "process_group": (group["name"], group["description"] or "undefined"),
        "rank": group["rank"],
        "collective_seq_id": row["collective"],
        "p2p_seq_id": row["message"],
        "op_id": row["id"],
        "is_p2p": row["is_message"],
        "profiling_name": row["name"],
        "input_sizes": [sizes for _, sizes in row["inputs"]],
        "input_dtypes": [dtype for dtype, _ in row["inputs"]],
        "output_sizes": [sizes for _, sizes in row["outputs"]],
        "output_dtypes": [dtype for dtype, _ in row["outputs"]],
        "time_created_ns": row["created"],
        "time_discovered_started_ns": begun,
        "time_discovered_completed_ns": completed,
        "state": "completed" if completed else "started" if begun else "scheduled",
        "retired": row["retired"],
        "timeout_ms": row["timeout_ms"],
        "thread_id": row["thread"],
        "frames": [{"name": name, "filename": file, "line": line} for name, file, line in row["frames"]],
    }
    if completed and begun:
        entry["duration_ms"] = (completed - begun) / 1e6
    if row["error"]:
        entry["error"] = row["error"]
    if row["is_message"]:
        entry["peer"] = row["peer"] if row["peer"] >= 0 else None
        entry["tag"] = row["tag"]
    return entry


def _target() -> str:
    for name in TARGET:
        if os.environ.get(name):
            return os.environ[name]
    return str(Path("~/.cache/torch/comm_lib_trace_rank_").expanduser())


def _global_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))
