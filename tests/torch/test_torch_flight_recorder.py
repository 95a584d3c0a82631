"""The flight recorder: what a process called last, in the words that torch's own analysis reads."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from .gang import Gang

SIZE = 100


def _switch_on(size):
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(size)


@pytest.fixture
def recording():
    """Two ranks that record."""
    with Gang(2) as gang:
        gang.call(2, _switch_on, SIZE)
        yield gang


def analysed(folder: Path):
    """What torch's tool makes of the files: its log, and its collectives in their order."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace",
         folder, "--prefix", "trace_", "-o", folder / "result"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, database = pickle.loads((folder / "result").read_bytes())
    return done.stdout + done.stderr, database.collectives


def test_every_call_is_recorded(recording):
    def body():
        from pycoll.torch import flight_recorder

        me = dist.get_rank()
        before = time.time_ns()
        dist.all_reduce(torch.ones(3, 4))
        outs = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
        dist.all_gather(outs, torch.ones(2, dtype=torch.int64), async_op=True).wait()
        dist.all_to_all_single(torch.zeros(4 * me), torch.ones(2), [2 * me, 2 * me], [0, 2])
        if me == 0:
            dist.send(torch.ones(5), 1, tag=7)
        else:
            dist.recv(torch.zeros(5), tag=7)
        dist.barrier()
        pair = dist.new_group([0, 1], group_desc="the pair")
        dist.broadcast(torch.ones(1), 1, group=pair)
        record = flight_recorder()
        return before, time.time_ns(), pair.group_name, record

    for rank, (before, after, pair, record) in enumerate(recording.run(2, body)):
        entries = record["entries"]
        assert [entry["profiling_name"].removeprefix("pycoll:") for entry in entries] == [
            "all_reduce", "all_gather", "all_to_all_single", "recvAnySource" if rank else "send", "barrier",
            "broadcast",
        ]  # fmt: skip
        assert [entry["collective_seq_id"] for entry in entries] == [1, 2, 3, 3, 4, 1]
        assert [entry["p2p_seq_id"] for entry in entries] == [0, 0, 0, 1, 1, 0]
        assert [entry["is_p2p"] for entry in entries] == [False, False, False, True, False, False]
        assert [entry["record_id"] for entry in entries] == list(range(6))
        assert {entry["state"] for entry in entries} == {"completed"}
        assert all(entry["retired"] for entry in entries)
        for entry in entries:
            times = [entry[f"time_{what}_ns"] for what in ("created", "discovered_started")]
            times.append(entry["time_discovered_completed_ns"])
            assert [before, *times, after] == sorted([before, *times, after])
            assert entry["timeout_ms"] == 20_000 or entry["process_group"][0] == pair
        assert entries[0]["input_sizes"] == entries[0]["output_sizes"] == [[3, 4]]
        assert entries[0]["input_dtypes"] == ["Float"]
        assert entries[1]["output_sizes"] == [[2], [2]]
        assert entries[1]["output_dtypes"] == ["Long", "Long"]
        assert entries[2]["input_sizes"] == [[2]]
        assert entries[2]["output_sizes"] == [[4 * rank]]
        assert entries[3]["output_sizes" if rank else "input_sizes"] == [[5]]
        assert (entries[3]["peer"], entries[3]["tag"]) == (1 - rank, 7)
        assert entries[4]["input_sizes"] == []
        assert any(frame["name"] == "body" for frame in entries[0]["frames"])
        assert entries[5]["process_group"] == (pair, "the pair")
        world = entries[0]["process_group"][0]
        assert record["pg_config"][world]["ranks"] == "[0, 1]"
        assert record["pg_status"][str(entries[0]["pg_id"])] == {
            "last_enqueued_collective": 4, "last_started_collective": 4, "last_completed_collective": 4,
        }  # fmt: skip
        json.dumps(record)


def test_states_of_calls_under_way(recording, tmp_path):
    def body(looked):
        from pycoll.torch import flight_recorder

        me = dist.get_rank()
        states = None
        if me == 0:
            works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
            receive = dist.irecv(torch.zeros(4), 1)
            states = [entry["state"] for entry in flight_recorder()["entries"]]
            looked.touch()
            dist.barrier()
        else:
            while not looked.exists():
                time.sleep(0.01)
            works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
            receive = dist.isend(torch.zeros(4), 0)
            dist.barrier()
        for work in [*works, receive]:
            work.wait()
        return states, {entry["state"] for entry in flight_recorder()["entries"]}

    (early, late), (_, other) = recording.run(2, body, tmp_path / "looked")
    assert early == ["started", "scheduled", "scheduled", "started"]
    assert late == other == {"completed"}


def test_the_oldest_make_room():
    def body():
        from pycoll.torch import flight_recorder

        for _ in range(10):
            dist.all_reduce(torch.ones(1))
        return [
            (entry["record_id"], entry["collective_seq_id"], entry["state"])
            for entry in flight_recorder()["entries"]
        ]

    with Gang(2) as gang:
        gang.call(2, _switch_on, 4)
        for found in gang.run(2, body):
            assert found == [(i, i + 1, "completed") for i in range(6, 10)]


def test_off_unless_asked_for(ranks):
    def body():
        from pycoll.torch import dump_flight_recorder, flight_recorder

        dist.all_reduce(torch.ones(1))
        for call in (flight_recorder, dump_flight_recorder):
            with pytest.raises(RuntimeError, match="off: set TORCH_FR_BUFFER_SIZE"):
                call()

    ranks(2, body)


def test_torchs_analysis_finds_nothing_where_nothing_is_wrong(recording, tmp_path):
    """Every kind of call, with sizes that differ by rank and messages in any order."""

    def body(target):
        from pycoll.torch import dump_flight_recorder

        me, world = dist.get_rank(), dist.get_world_size()
        t, row, flat = torch.ones(4), torch.ones(2), torch.ones(4)
        dist.all_reduce(t)
        dist.broadcast(t, 1)
        dist.reduce(t, 0)
        dist.all_gather([torch.ones(2) for _ in range(world)], row)
        dist.all_gather([torch.ones(r + 1) for r in range(world)], torch.ones(me + 1))
        dist.all_gather_single(flat, row)
        dist.all_gather_coalesced(
            [[torch.ones(2), torch.ones(3)] for _ in range(world)], [row, torch.ones(3)]
        )
        dist.reduce_scatter(row, [torch.ones(2) for _ in range(world)])
        dist.reduce_scatter(torch.ones(me + 1), [torch.ones(r + 1) for r in range(world)])
        dist.reduce_scatter_single(row, flat)
        dist.all_to_all([torch.ones(me + 1), torch.ones(me + 1)], [torch.ones(1), torch.ones(2)])
        dist.all_to_all_single(flat, t)
        dist.all_to_all_single(torch.ones(8 * me), t, [4 * me] * 2, [0, 4])
        dist.gather(row, [torch.ones(2) for _ in range(world)] if me == 0 else None, dst=0)
        dist.scatter(row, [torch.ones(2) for _ in range(world)] if me == 0 else None, src=0)
        dist.all_reduce(torch.eye(3).to_sparse())
        dist.all_reduce_coalesced([t, row])
        dist.barrier()
        # Each rank's calls in another order, and a receive from any.
        calls = [
            lambda: dist.isend(torch.ones(3 + me), 1 - me, tag=1),
            lambda: dist.isend(torch.ones(5), 1 - me),
            lambda: dist.irecv(torch.ones(4 - me), 1 - me, tag=1),
            lambda: dist.irecv(torch.ones(5)),
        ]
        for work in [call() for call in (calls if me else reversed(calls))]:
            work.wait()
        pair = dist.new_group([1, 0], sort_ranks=False) if me < 2 else None
        dist.all_reduce(torch.ones(6), group=pair)
        return str(dump_flight_recorder(target))

    target = str(tmp_path / "trace_")
    assert recording.run(2, body, target) == [f"{target}0", f"{target}1"]
    said, collectives = analysed(tmp_path)
    names = [call.collective_name.removeprefix("gloo:") for call in collectives]
    assert len(names) == 18 + 4 + 1, names
    assert names.count("all_gather_v") == names.count("reduce_scatter_v") == 1
    assert sorted(name for name in names if name[:4] in ("send", "recv")) == [
        "recv 0<-1", "recv 0<-1", "send 0->1", "send 0->1",
    ]  # fmt: skip
    for call in collectives:
        assert call.pass_check, (call.collective_name, call.type_of_mismatch)
        assert call.collective_state == "completed"
        assert call.missing_ranks is None
    assert "error" not in said.lower()
    assert "Not all ranks" not in said


WRONG = {
    "sizes": (lambda: dist.all_reduce(torch.ones(100)), lambda: dist.all_reduce(torch.ones(200)),
              "SIZE_OR_SYNTAX_MISMATCH"),
    "dtypes": (lambda: dist.all_reduce(torch.ones(8)), lambda: dist.all_reduce(torch.ones(8).double()),
               "COLLECTIVE_DTYPE_MISMATCH"),
    "kinds": (lambda: dist.all_reduce(torch.ones(8)), lambda: dist.broadcast(torch.ones(8), 0),
              "COLLECTIVE_TYPE_MISMATCH"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_torchs_analysis_finds_what_differs(recording, tmp_path, what):
    zero, one, kind = WRONG[what]

    def body(target):
        from pycoll.torch import dump_flight_recorder, flight_recorder

        for _ in range(3):
            dist.all_reduce(torch.ones(4))
        with pytest.raises(dist.DistBackendError):
            (zero if dist.get_rank() == 0 else one)()
        dump_flight_recorder(target)
        return flight_recorder()["entries"][-1]

    for entry in recording.run(2, body, str(tmp_path / "trace_")):
        assert (entry["state"], entry["retired"]) == ("started", True)
        assert "rank 0" in entry["error"]
        assert "rank 1" in entry["error"]
    said, collectives = analysed(tmp_path)
    assert [call.pass_check for call in collectives[:4]] == [True, True, True, False]
    assert collectives[3].collective_seq_id == 4
    assert "Collective sequence number: 4 has errors" in said
    assert f"Culprit rank 1; Error type: {kind}" in said


def test_torchs_analysis_finds_who_did_not_come(recording, tmp_path):
    def body(target):
        from pycoll.torch import dump_flight_recorder

        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == 0:
            with pytest.raises(dist.DistBackendError, match="timed out"):
                dist.all_reduce(torch.ones(5))
        else:
            time.sleep(2)
        dump_flight_recorder(target)

    recording.run(2, body, str(tmp_path / "trace_"), timeout=1.0)
    said, collectives = analysed(tmp_path)
    assert "Not all ranks joining collective, sequence number: 2" in said
    assert "missing ranks: {1}" in said
    assert collectives[0].pass_check


def test_json(recording, tmp_path):
    def body(target):
        from pycoll.torch import dump_flight_recorder

        dist.all_reduce(torch.ones(4))
        return str(dump_flight_recorder(target))

    paths = recording.run(2, body, str(tmp_path / "folder" / "trace.json"))
    assert paths == [str(tmp_path / "folder" / f"trace{rank}.json") for rank in range(2)]
    for path in paths:
        record = json.loads(Path(path).read_text())
        assert record["entries"][0]["profiling_name"] == "pycoll:all_reduce"


PROGRAM = """
    import os, sys, torch, torch.distributed as dist
    me = int(os.environ["RANK"])
    dist.init_process_group("pycoll", init_method="file://" + sys.argv[1], rank=me, world_size=2)
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if me == 1:
        dist.destroy_process_group()
        sys.exit(0)
    dist.all_reduce(torch.ones(7))
"""


def test_a_process_that_fails_leaves_its_record(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "10",
                   "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")}  # fmt: skip
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "store")]
    processes = [
        subprocess.Popen(program, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 0], said
    assert not (tmp_path / "trace_1").exists()  # nothing failed there
    entries = pickle.loads((tmp_path / "trace_0").read_bytes())["entries"]
    assert [entry["state"] for entry in entries] == ["completed"] * 3 + ["started"]
    assert "rank 1" in entries[3]["error"]
    assert entries[3]["input_sizes"] == [[7]]


def test_groups_of_one_name_are_told_apart(recording, tmp_path):
    """As where a job leaves its groups and makes them again."""

    def body(store):
        from pycoll.torch import flight_recorder

        dist.all_reduce(torch.ones(1))
        me = dist.get_rank()
        dist.destroy_process_group()
        dist.distributed_c10d._world.group_count = 0
        dist.init_process_group(
            "pycoll", store=dist.FileStore(store, 2), rank=me, world_size=2, timeout=timedelta(seconds=20)
        )
        dist.all_reduce(torch.ones(1))
        return [entry["process_group"][0] for entry in flight_recorder()["entries"]]

    for first, second in recording.run(2, body, str(tmp_path / "store"), breaks_group=True):
        assert second == f"{first} #2"
