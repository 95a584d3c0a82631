"""spawn: what it returns, and how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import pycoll

BOTH = pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])


@BOTH
def test_returns_by_rank(threads):
    offset = 100

    def total(comm, x, scale=1):
        return comm.rank, comm.ranks, float(comm.allreduce(np.array([x + offset]))[0]) * scale

    got = pycoll.spawn(total, 2, (1,), {"scale": 2}, threads=threads)
    assert got == [(0, 2, 404.0), (1, 2, 404.0)]
    assert pycoll.spawn(lambda comm: comm.group, 1, threads=threads, group="mine") == ["mine"]


def test_processes_are_set_up_like_a_launchers(capfd):
    def look(comm):
        print(f"hello from {comm.rank}")
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "EXTRA")
        again = pycoll.init(group="second")  # from that environment
        x = again.allreduce(np.array([1]))[0]
        y = pycoll.empty(3)  # the default group: the one given
        imported = [name for name in ("torch", "matplotlib", "typer") if name in sys.modules]
        return [os.environ[name] for name in names], int(x), y.size, imported, sys.argv

    first, second = pycoll.spawn(look, 2, env={"EXTRA": "yes"})
    assert first[0] == ["0", "0", "2", "2", "127.0.0.1", "yes"]
    assert second[0] == ["1", "1", "2", "2", "127.0.0.1", "yes"]
    assert first[1:] == (2, 3, [], sys.argv)
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "hello from 0", "hello from 1"]


class OwnError(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)
        self.lock = threading.Lock()  # cannot be pickled


@BOTH
def test_first_cause_is_raised_and_ends_the_others(threads):
    def fail(comm):
        if comm.rank == 1:
            raise KeyError("the cause")
        comm.allreduce(np.zeros(1))  # rank 1 never comes

    begin = time.monotonic()
    with pytest.raises(KeyError, match="the cause") as caught:
        pycoll.spawn(fail, 3, threads=threads)
    assert time.monotonic() - begin < 20  # not the group's 300 s
    text = str(caught.value.__cause__)
    assert "on rank 1 of 3" in text
    assert 'raise KeyError("the cause")' in text
    if sys.version_info >= (3, 11):
        assert "rank 1 of 3" in caught.value.__notes__[0]


@BOTH
def test_a_consequence_heard_first_does_not_hide_the_cause(threads):
    def fail(comm):
        if comm.rank == 0:
            comm.abort("for a reason")
            time.sleep(0.2)
            raise ValueError("the cause")
        comm.barrier()

    with pytest.raises(ValueError, match="the cause"):
        pycoll.spawn(fail, 2, threads=threads)


def test_errors_of_the_group_arrive_with_their_class():
    def fail(comm):
        comm.allreduce(np.zeros(1 + comm.rank))

    with pytest.raises(pycoll.Mismatch) as caught:
        pycoll.spawn(fail, 2)
    assert type(caught.value).__module__ == "pycoll"


def test_an_error_that_cannot_be_sent(on_processes):
    def fail(comm):
        raise OwnError(1, 2)

    with pytest.raises(pycoll.Error, match=r"rank 0 raised.*\n[^$]*OwnError"):
        on_processes(1, fail)


def test_a_result_that_cannot_be_sent():
    with pytest.raises(TypeError, match="pickle"):
        pycoll.spawn(lambda comm: comm, 1)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 of 2 was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "rank 1 of 2 was killed by SIGSEGV"),
        (lambda: os._exit(0), "rank 1 of 2 exited with code 0 before it returned"),
    ],
    ids=["SIGKILL", "SIGSEGV", "exit"],
)
def test_a_rank_that_dies_is_named(end, says):
    def run(comm):
        if comm.rank == 1:
            end()
        comm.allreduce(np.zeros(1))

    with pytest.raises(pycoll.PeerLost, match=says) as caught:
        pycoll.spawn(run, 2)
    assert type(caught.value) is pycoll.PeerLost


@BOTH
def test_sys_exit(threads):
    assert pycoll.spawn(lambda comm: sys.exit(0), 1, threads=threads) == [None]
    with pytest.raises(pycoll.Error, match=r"sys.exit\(3\)"):
        pycoll.spawn(lambda comm: sys.exit(3), 1, threads=threads)


@BOTH
def test_deadline(threads):
    def run(comm):
        if comm.rank == 1:
            time.sleep(8)
        return comm.rank

    deadline = 0.5 if threads else 3  # processes must have started by then
    with pytest.raises(pycoll.Timeout, match=f"rank 1 of 2 had not ended after {deadline} s"):
        pycoll.spawn(run, 2, threads=threads, deadline=deadline)


def test_timeout_is_the_groups():
    def run(comm):
        if comm.rank == 1:
            time.sleep(20)
        comm.barrier()

    with pytest.raises(TimeoutError, match=r"rank.* 1"):
        pycoll.spawn(run, 2, timeout=0.5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((None, 2), "NoneType"),
        ((len, 0), "ranks is 0"),
        ((len, "2"), "ranks"),
        ((len, 2, (), None, -1), "timeout"),
        ((len, 1, (threading.Lock(),)), "cannot be sent"),
    ],
    ids=["fn", "zero", "text", "timeout", "unpicklable"],
)
def test_bad_arguments(arguments, says):
    with pytest.raises(pycoll.InvalidArgument, match=says):
        pycoll.spawn(*arguments)


PARENT = """
import pycoll, time, os, sys
def run(comm):
    os.write(1, b'%d\\n' % os.getpid())
    comm.barrier()
    time.sleep(60)
try:
    pycoll.spawn(run, 2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def gone(pid, patience=5.0):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_the_parent(number):
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env)
    with parent:
        children = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(number)
        rest = parent.stdout.read()
    assert ("interrupted" in rest) == (number == signal.SIGINT)
    assert all(gone(child) for child in children)


def test_functions_of_the_main_program_and_its_classes():
    program = """
import pycoll, numpy as np
class Pair:
    def __init__(self, a): self.a = a
def helper(x): return x + 1
def run(comm): return Pair(helper(comm.rank))
got = pycoll.spawn(run, 2)
assert all(isinstance(p, Pair) for p in got), got
print([p.a for p in got])
"""
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")
