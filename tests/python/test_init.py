"""init: the environment, the ways to meet, and what ranks learn when one does not come, raises or dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import pytest

import pycoll
from pycoll import bootstrap

from .job import Job, free_address


def in_threads(*calls):
    """Calls each in a thread of its own; what each returned, or the error it raised."""
    results = [None] * len(calls)

    def run(i):
        try:
            results[i] = calls[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def total(comm):
    with comm:
        return float(comm.allreduce(np.array([comm.rank + 1.0]))[0])


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def _empty(self, monkeypatch):
        for name in list(os.environ):
            if name.startswith(("OMPI_", "PMI_", "MASTER_")) or name in ("RANK", "WORLD_SIZE"):
                monkeypatch.delenv(name)

    def test_nothing_set_means_one_rank(self):
        with pycoll.init() as comm:
            assert (comm.rank, comm.ranks, comm.group, comm.timeout) == (0, 1, "default", 300.0)
            assert repr(comm) == '<pycoll.Communicator "default", rank 0 of 1>'
            assert comm.allreduce(np.array([4]))[0] == 4
            assert not comm.closed
        assert comm.closed
        comm.close()
        with pytest.raises(pycoll.InvalidArgument, match="closed"):
            comm.barrier()

    @pytest.mark.parametrize(
        ("environment", "says"),
        [
            ({"RANK": "1"}, "RANK but not WORLD_SIZE"),
            ({"WORLD_SIZE": "2"}, "WORLD_SIZE but not RANK"),
            ({"RANK": "0", "WORLD_SIZE": "2"}, "not MASTER_ADDR and MASTER_PORT"),
            ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "but not MASTER_PORT"),
            ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
            ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "rank 2 of 2"),
            ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "MASTER_ADDR"),
            (
                {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "x"},
                'address is "h:x"',
            ),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
    )
    def test_incomplete(self, monkeypatch, environment, says):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(pycoll.InvalidArgument, match=says):
            pycoll.init()

    def test_one_rank_needs_no_address(self, monkeypatch):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert total(pycoll.init()) == 1

    def test_of_a_launcher(self, start_job):
        host, port = free_address().split(":")

        def run(rank):
            os.environ.update(RANK=str(rank), WORLD_SIZE="3", MASTER_ADDR=host, MASTER_PORT=port)
            first = pycoll.init(timeout=30)
            second = pycoll.init(timeout=30, group="another")  # at the same address, one after the other
            assert pycoll.empty(1).size == 1
            results = [float(c.allreduce(np.array([rank + 1.0]))[0]) for c in (first, second)]
            return results, "torch" in sys.modules

        outcomes = start_job(3, run, init=False).outcomes()
        assert [o.value for o in outcomes.values()] == [([6, 6], False)] * 3
        assert all((o.code, o.output) == (0, "") for o in outcomes.values())  # silent, though never closed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"rank": 0}, "together"),
        ({"rank": 0, "ranks": 2}, "where the ranks meet"),
        ({"rank": 2, "ranks": 2, "address": "h:1"}, "rank 2 of 2"),
        ({"rank": 0, "ranks": 2, "address": "h:1", "store": object()}, "not both"),
        ({"rank": 0, "ranks": 2, "address": "localhost"}, "host:port"),
        ({"rank": 0, "ranks": 2, "address": "localhost:70000"}, "65535"),
        ({"rank": 0, "ranks": 2, "store": {}}, "dict without a method 'set'"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, says):
    with pytest.raises(pycoll.InvalidArgument, match=says):
        pycoll.init(**arguments)


class TestAddress:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost", "[::1]", "tcp://127.0.0.1", socket.gethostname()]
    )
    def test_meets(self, host):
        address = f"{host}:{free_address().split(':')[1]}"
        try:
            socket.getaddrinfo(host.removeprefix("tcp://").strip("[]"), 1)
            if "::1" in host:
                with socket.socket(socket.AF_INET6) as probe:
                    probe.bind(("::1", 0))
        except OSError:
            return  # this machine has no such name, or no IPv6
        results = in_threads(
            *[lambda r=r: total(pycoll.init(20, rank=r, ranks=3, address=address)) for r in (0, 1, 2)]
        )
        assert results == [6, 6, 6]

    def test_missing_ranks_are_named_on_all(self):
        address = free_address()
        begin = time.monotonic()
        errors = in_threads(
            *[lambda r=r: pycoll.init(1.0, rank=r, ranks=4, address=address) for r in (0, 1, 3)]
        )
        assert time.monotonic() - begin < 10
        assert all(isinstance(error, pycoll.Timeout) for error in errors), errors
        assert all("rank 2" in str(error) and address in str(error) for error in errors), errors

    def test_rank_0_missing(self):
        address = free_address()
        with pytest.raises(pycoll.Timeout, match="did not reach rank 0") as caught:
            pycoll.init(timedelta(seconds=0.5), rank=1, ranks=2, address=address)
        assert f"Tried 127.0.0.1 port {address.split(':')[1]}: [Errno 111]" in str(caught.value)

    def test_unknown_host(self, monkeypatch):
        monkeypatch.setattr("pycoll._tcp._RESOLVE_PATIENCE", 0.1)
        with pytest.raises(pycoll.Error, match=r'"no-such-host.invalid" is no name'):
            pycoll.init(20, rank=1, ranks=2, address="no-such-host.invalid:5000")

    def test_address_in_use(self, monkeypatch):
        monkeypatch.setattr("pycoll._tcp._ADDRESS_IN_USE_PATIENCE", 0.1)
        with socket.create_server(("127.0.0.1", 0)) as other:
            where = f"127.0.0.1:{other.getsockname()[1]}"
            with pytest.raises(pycoll.Error, match="another job"):
                pycoll.init(20, rank=0, ranks=2, address=where)

    def test_strangers_and_wrong_ranks_are_turned_away(self):
        address = free_address()
        where = ("127.0.0.1", int(address.split(":")[1]))

        def strangers():
            time.sleep(0.3)
            with socket.create_connection(where) as http, socket.create_connection(where):
                http.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                http.settimeout(5)
                assert http.recv(100) == b""  # turned away, without an answer
                time.sleep(0.5)

        def another_group():
            time.sleep(0.3)
            pycoll.init(1.5, "other", rank=1, ranks=2, address=address)

        def late():
            time.sleep(1)
            return total(pycoll.init(20, rank=1, ranks=2, address=address))

        results = in_threads(
            lambda: total(pycoll.init(20, rank=0, ranks=2, address=address)), strangers, another_group, late
        )
        assert (results[0], results[1], results[3]) == (3, None, 3)
        assert isinstance(results[2], pycoll.Timeout)
        assert 'group "other" of 2 ranks' in str(results[2])
        assert 'group "default" of 2 ranks' in str(results[2])

    def test_ranks_that_count_differently_are_told_before_the_timeout(self, monkeypatch):
        monkeypatch.setattr("pycoll._tcp._REFUSAL_PATIENCE", 0.2)
        address, start = free_address(), time.monotonic()
        here, there = in_threads(
            lambda: pycoll.init(60, rank=0, ranks=2, address=address),
            lambda: pycoll.init(60, rank=1, ranks=3, address=address),
        )
        assert time.monotonic() - start < 20
        assert isinstance(here, pycoll.Aborted)
        assert "rank 1" in str(here)
        assert "of 3 ranks" in str(here)
        assert isinstance(there, pycoll.InvalidArgument)
        assert "WORLD_SIZE" in str(there)

    def test_a_second_process_of_one_rank_is_told_before_the_timeout(self, monkeypatch):
        monkeypatch.setattr("pycoll._tcp._REFUSAL_PATIENCE", 0.2)
        address, late = free_address(), threading.Event()

        def last():
            assert late.wait(30)
            return total(pycoll.init(60, rank=2, ranks=3, address=address))

        def of_rank_1():
            try:
                return total(pycoll.init(60, rank=1, ranks=3, address=address))
            except pycoll.InvalidArgument as error:
                late.set()
                return error

        *sums, second = sorted(
            in_threads(
                lambda: total(pycoll.init(60, rank=0, ranks=3, address=address)), of_rank_1, of_rank_1, last
            ),
            key=lambda result: isinstance(result, Exception),
        )
        assert sums == [6.0, 6.0, 6.0]
        assert isinstance(second, pycoll.InvalidArgument)
        assert "two processes" in str(second)

    def test_a_rank_that_raises_is_named_at_once(self, monkeypatch):
        create = pycoll.Communicator.create

        def sometimes(rank, ranks, all_gather, *rest):
            if rank == 2:
                raise RuntimeError("no disk left")
            return create(rank, ranks, all_gather, *rest)

        monkeypatch.setattr(bootstrap.Communicator, "create", sometimes)
        address = free_address()

        def join(rank):
            time.sleep(0.5 * (rank == 1))  # comes when rank 0 has heard of it already
            return pycoll.init(30, rank=rank, ranks=3, address=address)

        begin = time.monotonic()
        errors = in_threads(*[lambda r=r: join(r) for r in range(3)])
        assert time.monotonic() - begin < 10
        assert isinstance(errors[2], RuntimeError)
        for error in errors[:2]:
            assert isinstance(error, pycoll.Aborted)
            assert "rank 2" in str(error)
            assert "no disk left" in str(error)

    @pytest.mark.parametrize("victim", [0, 1])
    def test_a_rank_that_dies_while_the_group_is_made(self, start_job, victim):
        def run(rank, address):
            all_gather = pycoll._tcp.meet(address, rank, 3, "default", 30).all_gather
            all_gather(b"")
            if rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            all_gather(b"")

        job = start_job(3, run, free_address(), init=False)
        begin = time.monotonic()
        outcomes = job.outcomes()
        assert time.monotonic() - begin < 20
        for rank, outcome in outcomes.items():
            if rank == victim:
                assert outcome.code == -signal.SIGKILL
            else:
                assert outcome.error == "PeerLost", outcome
                assert f"rank {victim} was lost" in outcome.text

    def test_again_at_the_same_address_after_kill(self, start_job):
        address = free_address()

        def stuck(comm):
            comm.barrier()
            comm.recv(np.zeros(1), 1 - comm.rank)

        first = start_job(2, stuck, address=address)
        time.sleep(1.0)
        for rank in (0, 1):
            first.signal(rank, signal.SIGKILL)
        second = start_job(2, total, address=address)  # at once
        assert [o.value for o in second.outcomes().values()] == [3, 3]
        assert [o.code for o in first.outcomes().values()] == [-9, -9]

    def test_two_jobs_at_once(self, start_job):
        def many(comm):
            return [float(comm.allreduce(np.array([comm.rank + i]))[0]) for i in range(200)]

        jobs = [start_job(2, many) for _ in range(2)]
        for job in jobs:
            for outcome in job.outcomes().values():
                assert outcome.value == [1 + 2 * i for i in range(200)]


class Store:
    """The least that init needs of a store."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition()

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        return self.values[key]

    def wait(self, keys, timeout):
        with self.changed:
            if not self.changed.wait_for(
                lambda: all(key in self.values for key in keys), timeout.total_seconds()
            ):
                raise RuntimeError("wait timeout")

    def check(self, keys):
        return all(key in self.values for key in keys)


class TestStore:
    def test_meets_again_and_again(self):
        store = Store()
        for group in ("a", "a", "b"):

            def join(rank, group=group):
                return total(pycoll.init(20, group, rank=rank, ranks=2, store=store))

            assert in_threads(lambda j=join: j(0), lambda j=join: j(1)) == [3, 3]

    def test_missing_ranks_are_named(self):
        store = Store()
        errors = in_threads(
            *[lambda r=r: pycoll.init(0.5, "m", rank=r, ranks=3, store=store) for r in (0, 2)]
        )
        assert all(isinstance(error, pycoll.Timeout) and "rank 1" in str(error) for error in errors), errors

    def test_a_rank_that_raises_is_named_at_once(self, monkeypatch):
        create = pycoll.Communicator.create

        def sometimes(rank, *rest):
            if rank == 1:
                raise RuntimeError("no disk left")
            return create(rank, *rest)

        monkeypatch.setattr(bootstrap.Communicator, "create", sometimes)
        store = Store()
        errors = in_threads(*[lambda r=r: pycoll.init(30, "r", rank=r, ranks=2, store=store) for r in (0, 1)])
        assert isinstance(errors[0], pycoll.Aborted)
        assert "rank 1" in str(errors[0])
        assert "no disk left" in str(errors[0])

    def test_of_torch(self):
        distributed = pytest.importorskip("torch.distributed")
        port = int(free_address().split(":")[1])
        server = distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)

        def join(rank):
            store = distributed.TCPStore("127.0.0.1", port, is_master=False)
            return total(pycoll.init(20, "t", rank=rank, ranks=2, store=store))

        assert in_threads(lambda: join(0), lambda: join(1)) == [3, 3]
        with pytest.raises(pycoll.Timeout, match="rank 1"):
            pycoll.init(0.5, "u", rank=0, ranks=2, store=server)


def test_under_torchrun(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy, pycoll, os\n"
        "comm = pycoll.init(timeout=60)\n"
        "x = comm.allreduce(numpy.array([comm.rank + 1]))\n"
        f"open(r'{tmp_path}/' + str(comm.rank), 'w').write(f'{{comm.ranks}} {{x[0]}}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2 3", "2 3"]


def test_job_harness_reports_errors():
    def fail(comm):
        raise ValueError(f"on {comm.rank}")

    job = Job(2, fail)
    try:
        assert [(o.error, o.text) for o in job.outcomes().values()] == [
            ("ValueError", "on 0"),
            ("ValueError", "on 1"),
        ]
    finally:
        job.end()
