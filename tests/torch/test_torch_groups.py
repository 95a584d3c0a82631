"""Groups and processes: subgroups, making and leaving groups, exits, restarts, what `import torch` loads."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from .gang import Gang


def python(text: str) -> tuple[int, str]:
    """Exit code and stderr of a program."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def test_subgroups(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
        mine = odds if me % 2 else evens
        t = torch.tensor([float(me)])
        dist.all_reduce(t, group=mine)
        assert t.item() == (4.0 if me % 2 else 2.0)
        outs = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(outs, torch.tensor([float(me)]), group=mine)
        assert [o.item() for o in outs] == ([1.0, 3.0] if me % 2 else [0.0, 2.0])
        t = torch.tensor([float(me)])
        dist.broadcast(t, 2 if me % 2 == 0 else 3, group=mine)  # a global rank
        assert t.item() == (3.0 if me % 2 else 2.0)
        # Disjoint halves make their groups at once, without the others.
        pair = [0, 1] if me < 2 else [2, 3]
        local = dist.new_group(pair, use_local_synchronization=True)
        t = torch.tensor([float(me)])
        dist.all_reduce(t, group=local)
        assert t.item() == float(sum(pair))
        alone = dist.new_group([me], use_local_synchronization=True)
        dist.all_reduce(t, group=alone)
        for group in (mine, local, alone):
            dist.destroy_process_group(group)
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == world

    ranks(4, body)


def test_many_groups_leave_nothing_behind(ranks, tmp_path):
    """One store for all of them, as under torchrun."""

    def body():
        me = dist.get_rank()
        dist.destroy_process_group()
        store = dist.FileStore(str(tmp_path / "store"), 2)

        def descriptors():
            return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                          if os.path.lexists(f"/proc/self/fd/{fd}"))  # fmt: skip

        def one_round():
            dist.init_process_group("pycoll", store=store, rank=me, world_size=2)
            t = torch.ones(1000)
            dist.all_reduce(t)
            assert t[0] == 2
            dist.destroy_process_group()

        one_round()
        before, threads, shm = descriptors(), len(os.listdir("/proc/self/task")), os.listdir("/dev/shm")
        for _ in range(20):
            one_round()
        assert len(descriptors()) == len(before)
        deadline = time.monotonic() + 5  # a thread that has left its group may take a moment to end
        while len(os.listdir("/proc/self/task")) > threads and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/task")) <= threads
        assert os.listdir("/dev/shm") == shm

    ranks(2, body, breaks_group=True)


def test_a_group_dropped_without_destroy_frees_itself(ranks):
    def body():
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        backend = group._get_backend(torch.device("cpu"))
        assert backend.name() == "pycoll"
        del group, backend

    ranks(2, body, breaks_group=True)


# Forks a process a rank and ending, each of which ends as a Python program does. Prints exit codes; what
# ranks write to stdout or stderr goes to files.
ENDINGS_PROGRAM = """
import os, sys, traceback, torch, torch.distributed as dist
directory = os.environ["DIRECTORY"]
children = {}
for name in ENDINGS:
    for rank in range(2):
        children[name, rank] = os.fork()
        if children[name, rank] == 0:
            break
    else:
        continue
    break
else:
    for (name, rank), pid in children.items():
        print(name, rank, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sep="|", flush=True)
    os._exit(0)
output = os.open(f"{directory}/{name}.{rank}", os.O_CREAT | os.O_WRONLY)
os.dup2(output, 1), os.dup2(output, 2)
if name == "detail":  # torch's own checks around the backend
    dist.set_debug_level(dist.DebugLevel.DETAIL)
store = dist.FileStore(f"{directory}/{name}.store", 2)
dist.init_process_group("pycoll", store=store, rank=rank, world_size=2)
assert dist.get_backend() == "pycoll"
t = torch.ones(100)
dist.all_reduce(t)
work = dist.all_reduce(t, async_op=True)
exec(ENDINGS[name])
"""
ENDINGS = {
    "destroy": "work.wait(); dist.destroy_process_group()",
    "no destroy": "work.wait()",
    "under way": "",
    "callback under way": "work.get_future().then(lambda f: f.value()[0] * 2)",
    "raises": "work.wait(); assert rank == 0, 'my own fault'",
    "detail": "work.wait(); dist.barrier(); dist.all_gather([t.clone(), t.clone()], t); assert t[0] == 4",
}


def test_processes_end_cleanly_and_silently(tmp_path):
    """With or without destroy, also with a work under way."""
    done = subprocess.run(
        [sys.executable, "-c", f"ENDINGS = {ENDINGS!r}\n{ENDINGS_PROGRAM}"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DIRECTORY": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    codes = {
        (name, int(rank)): int(code)
        for name, rank, code in (line.split("|") for line in done.stdout.split("\n")[:-1])
    }
    for name in ENDINGS:
        for rank in range(2):
            output = (tmp_path / f"{name}.{rank}").read_text()
            if (name, rank) == ("raises", 1):
                assert codes[name, rank] == 1
                assert "AssertionError: my own fault" in output
            else:
                assert codes[name, rank] == 0, (name, output)
                assert output == "" or name == "detail", name


def test_import_torch_loads_nothing_heavy():
    text = """
        import sys, torch
        assert "pycoll" in torch.distributed.Backend.backend_list
        loaded = [m for m in sys.modules if m.startswith("pycoll")]
        assert loaded == ["pycoll", "pycoll.torch"], loaded
        assert "cpu" in torch.distributed.Backend.default_device_backend_map
        assert torch.distributed.Backend.default_device_backend_map["cpu"] == "gloo"
    """
    code, err = python(text)
    assert code == 0, err


def test_autoload_never_breaks_import_torch():
    text = """
        import pycoll.torch, warnings
        def broken(): raise OSError("no")
        pycoll.torch.register = broken
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        assert any("pycoll could not register" in str(w.message) for w in caught), caught
        assert torch.ones(1).item() == 1
    """
    code, err = python(text)
    assert code == 0, err


def test_restart_after_a_kill_and_two_jobs_at_once(tmp_path):
    """kill -9 in mid-run leaves nothing that stops the next job at the same address; jobs do not meet."""
    address = tmp_path / "store"

    def body(mine):
        for _ in range(200):
            t = torch.full((1000,), float(mine))
            dist.all_reduce(t)
            assert t[0] == 2 * mine
        return mine

    with Gang(2) as job:
        job.call(2, _join_at, address)
        for process in job.processes:
            process.kill()
    with Gang(2) as job, Gang(2) as other:
        job.call(2, _join_at, address)
        other.call(2, _join_at, tmp_path / "other")
        for gang, value in ((job, 1), (other, 3)):
            gang.send(2, body, value)
        assert job.collect(2) == [1, 1]
        assert other.collect(2) == [3, 3]


def _join_at(address):
    store = dist.FileStore(str(address), 2)
    dist.init_process_group(
        "pycoll", store=store, rank=int(os.environ["RANK"]), world_size=2, timeout=timedelta(seconds=20)
    )


def test_split_group_of_torch(ranks):
    """Before torch 2.15 it refuses without an accelerator; either way the group it splits is as it was."""
    splits_on_cpu = "parent_device_types" in inspect.getsource(dist.split_group)
    if not splits_on_cpu and torch.accelerator.is_available():
        pytest.skip("there is an accelerator")

    def body():
        me = dist.get_rank()
        if splits_on_cpu:
            for halves in ([[0, 1], [2]], [[2, 0]], [[2], [1, 0]]):
                mine = next((half for half in halves if me in half), None)
                part = dist.split_group(split_ranks=halves, timeout=timedelta(seconds=15))
                if mine is None:
                    assert part is dist.GroupMember.NON_GROUP_MEMBER
                    continue
                assert dist.get_process_group_ranks(part) == mine
                t = torch.tensor([float(me)])
                dist.all_reduce(t, group=part)
                assert t.item() == sum(mine)
                gathered = [None] * len(mine)
                dist.all_gather_object(gathered, me, group=part)
                assert gathered == mine
                dist.destroy_process_group(part)
        else:
            with pytest.raises(RuntimeError, match=r"No device associated|does not support splitting"):
                dist.split_group(split_ranks=[[0, 1, 2]])
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == 3.0

    ranks(3, body)


def test_splitting_merging_and_shrinking(ranks, tmp_path):
    """As torch's C++ calls them."""

    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        group = dist.group.WORLD
        for halves in ([[0, 1], [2, 3]], [[0, 1, 2]], [[0, 3], [1, 2]], [[0, 1], [2, 3]]):
            mine = next((half for half in halves if me in half), halves[0])
            part = group.split_group(mine, timeout=timedelta(seconds=15))
            assert (part is None) == (me not in mine)
            if part is None:
                continue
            assert (part.rank(), part.size()) == (mine.index(me), len(mine))
            t = torch.tensor([float(me)])
            part.allreduce([t]).wait()
            assert t.item() == sum(mine)
            if part.rank() == 0:
                part.send([t], 1, 0).wait()
            elif part.rank() == 1:
                part.recv([t], 0, 0).wait()
        backend = group._get_backend(torch.device("cpu"))
        assert backend.supports_splitting
        if me != 2:
            rest = backend.shrink([2])
            assert (rest.rank(), rest.size()) == ([0, 1, 3].index(me), world - 1)
            t = torch.tensor([float(me)])
            rest.allreduce([t], dist.AllreduceOptions()).wait()
            assert t.item() == 4.0
            world = dist.shrink_group([2])  # becomes torch's default group
            t = torch.tensor([float(me)])
            dist.all_reduce(t)
            assert (t.item(), world.size(), dist.get_world_size()) == (4.0, 3, 3)

    ranks(4, body, breaks_group=True)
