"""Launchers' variables: who is who, where the ranks meet, and what is said where they make no sense."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import pycoll
from pycoll import _network, launchers

SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "node[03-05,9]",
    "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.7",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-h0-1234@1",
    "PMIX_RANK": "2",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "h0",
    "MASTER_PORT": "29577",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, "", None, None)),
        (TORCHRUN, (3, 4, "torchrun", 1, 2)),
        (SRUN, (5, 8, "Slurm", 1, None)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, (5, 8, "Slurm", 1, 8)),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "6"}, (5, 6, "Slurm", 1, None)),
        ({**SRUN, "PMIX_RANK": "5"}, (5, 8, "Slurm", 1, None)),
        ({**SRUN, "PMI_RANK": "4", "PMI_SIZE": "8"}, (4, 8, "an MPI launcher (PMI)", None, None)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2, "Slurm", None, None)),
        (MPIRUN, (2, 4, "Open MPI", 0, 2)),
        (HYDRA, (1, 2, "an MPI launcher (PMI)", 1, 2)),
        ({**MPIRUN, **TORCHRUN}, (3, 4, "torchrun", 1, 2)),  # mpirun starts one torchrun a host
        ({**SRUN, **TORCHRUN}, (3, 4, "torchrun", 1, 2)),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, (0, 1, "", None, None)),  # in salloc's shell
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "ENVIRONMENT": "BATCH"},
            (0, 1, "", None, None),
        ),  # sbatch's script itself
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "ENVIRONMENT": "BATCH", **MPIRUN},
            (2, 4, "Open MPI", 0, 2),
        ),
    ],
)
def test_place(environment, expected):
    assert launchers.place(environment) == expected


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RANK": "1"}, "RANK but not WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE but not OMPI_COMM_WORLD_RANK"),
        ({"PMI_RANK": "1"}, "PMI_RANK but not PMI_SIZE"),
        ({"SLURM_PROCID": "1"}, "SLURM_PROCID but not SLURM_STEP_NUM_TASKS or SLURM_NTASKS"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1.*looked at: WORLD_SIZE, OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM"),
        ({**HYDRA, "PMI_SIZE": "two"}, "PMI_SIZE='two', which is no number"),
        ({**HYDRA, "PMI_RANK": "2"}, "rank 2 of 2 ranks, say PMI_RANK and PMI_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "rank 0 of 0 ranks"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "contradicts itself: LOCAL_RANK=2, LOCAL_WORLD_SIZE=2"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8, WORLD_SIZE=4"),
    ],
)
def test_what_makes_no_sense_is_refused(environment, says):
    with pytest.raises(pycoll.InvalidArgument, match=says):
        launchers.place(environment)


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        (TORCHRUN, "h0"),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, "127.0.0.1"),
        (SRUN, "node03"),
        ({**SRUN, "SLURM_STEP_NODELIST": "", "SLURM_NODELIST": "gpu-a7,node3"}, "gpu-a7"),
        ({**SRUN, "SLURM_STEP_NODELIST": ""}, "192.0.2.7"),
        ({**SRUN, **MPIRUN}, "node03"),  # mpirun in a batch job
        ({**SRUN, "MASTER_ADDR": "elsewhere"}, "elsewhere"),
        (HYDRA, "127.0.0.1"),
        ({**MPIRUN, "MASTER_ADDR": "10.0.0.1"}, "10.0.0.1"),
        ({**MPIRUN, "MASTER_ADDR": "fd00::1"}, "[fd00::1]"),
        ({**TORCHRUN, "MASTER_ADDR": "fd00::1"}, "[fd00::1]"),
    ],
)
def test_where_the_ranks_meet(environment, host):
    address = launchers.meeting_point(launchers.place(environment), environment)
    assert address.rpartition(":")[0] == host


def test_ports():
    def port(environment):
        address = launchers.meeting_point(launchers.place(environment), environment)
        return int(address.rpartition(":")[2])

    assert port(TORCHRUN) == 29577
    assert port(HYDRA) == 29500
    assert port({**HYDRA, "MASTER_PORT": "1234"}) == 1234
    jobs = [port({**SRUN, "SLURM_JOB_ID": str(number)}) for number in range(100)]
    assert all(15000 <= number < 29000 for number in jobs)
    assert len(set(jobs)) > 90
    assert port(SRUN) == port({**SRUN, "SLURM_PROCID": "6"})  # the same on all ranks
    assert port({**SRUN, "SLURM_STEP_ID": "1"}) != port(SRUN)  # two srun at once in one job
    with pytest.raises(pycoll.InvalidArgument, match='address is "h0:x", by MASTER_ADDR and MASTER_PORT'):
        port({**TORCHRUN, "MASTER_PORT": "x"})


def test_an_unknown_meeting_point_lists_what_was_looked_at():
    with pytest.raises(pycoll.InvalidArgument, match="MASTER_ADDR, SLURM_STEP_NODELIST") as caught:
        launchers.meeting_point(launchers.place(MPIRUN), MPIRUN)
    assert "Open MPI started rank 2 of 4" in str(caught.value)
    assert "mpirun -x MASTER_ADDR" in str(caught.value)


def test_mpi_tells_where_the_ranks_meet(monkeypatch):
    world = SimpleNamespace(size=4, rank=2, bcast=lambda told: "10.0.0.1:4321")
    mpi = SimpleNamespace(Is_initialized=lambda: True, Is_finalized=lambda: False, COMM_WORLD=world)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    assert launchers.meeting_point(launchers.place(MPIRUN), MPIRUN) == "10.0.0.1:4321"
    world.size = 1  # another MPI than the launcher's
    with pytest.raises(pycoll.InvalidArgument, match="does not say on which host"):
        launchers.meeting_point(launchers.place(MPIRUN), MPIRUN)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node[03-05,9],gpu1", "node03"),
        ("node[9],gpu[1-2]", "node9"),
        ("a-b[12,14]-ib,c", "a-b12-ib"),
        ("rack[1-2]node[05-06]", "rack1node05"),
        ("h.example.org,i", "h.example.org"),
    ],
)
def test_first_host(nodes, first):
    assert launchers.first_host(nodes) == first


class TestSettings:
    def test_defaults(self):
        assert _network.settings("h0", environment={}) == ("h0", "", 1, 4.0, 30.0)

    def test_all_set(self):
        environment = {
            "PYCOLL_IFNAME": "ib",
            "PYCOLL_LANES": "4",
            "PYCOLL_SILENCE": "2.5",
            "PYCOLL_CONNECT_TIMEOUT": "60",
            "PYCOLL_NETWORK": "UCX",
        }
        assert _network.settings("", 300.0, environment) == ("", "ib", 4, 2.5, 60.0)

    def test_connecting_obeys_the_groups_timeout(self):
        assert _network.settings("", 5.0, {}).connect_timeout == 5.0

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("PYCOLL_LANES", "0"),
            ("PYCOLL_LANES", "65"),
            ("PYCOLL_LANES", "two"),
            ("PYCOLL_LANES", "-1"),
            ("PYCOLL_SILENCE", "0"),
            ("PYCOLL_SILENCE", "nan"),
            ("PYCOLL_SILENCE", "4 s"),
            ("PYCOLL_CONNECT_TIMEOUT", "-3"),
            ("PYCOLL_NETWORK", "smoke"),
            ("PYCOLL_IFNAME", "eth0,eth1"),
        ],
    )
    def test_bad_values_are_refused_by_name(self, name, value, monkeypatch):
        monkeypatch.setenv(name, value)
        for variable in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(variable, raising=False)
        with pytest.raises(pycoll.InvalidArgument, match=f"{name}='{value}'"):
            pycoll.init()

    @pytest.mark.parametrize(
        ("address", "host"),
        [("h0:1", "h0"), ("tcp://h0:1", "h0"), ("[fd00::1]:1", "fd00::1"), (None, ""), ("", "")],
    )
    def test_host_of(self, address, host):
        assert _network.host_of(address) == host

    def test_own_address_skips_loopback(self, monkeypatch):
        monkeypatch.delenv("PYCOLL_IFNAME", raising=False)
        monkeypatch.setattr(_network, "resolve", lambda name: ["127.0.1.1"])
        here = [("lo", "127.0.0.1"), ("eth0", "192.0.2.1"), ("ib0", "198.51.100.1")]
        monkeypatch.setattr(_network, "interface_addresses", lambda: here)
        assert _network.own_address() == "192.0.2.1"
        monkeypatch.setenv("PYCOLL_IFNAME", "ib")
        assert _network.own_address() == "198.51.100.1"
        monkeypatch.setenv("PYCOLL_IFNAME", "wlan0")
        with pytest.raises(pycoll.Error, match=r"PYCOLL_IFNAME=wlan0.*eth0 192\.0\.2\.1"):
            _network.own_address()


@pytest.mark.parametrize(
    "numbers",
    [
        lambda rank: {"SLURM_PROCID": rank, "SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_ID": "9"},
        lambda rank: {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "a@1",
        },
    ],
    ids=["slurm", "openmpi"],
)
def test_a_job_without_an_address_meets(numbers):
    program = (
        "import numpy, pycoll\n"
        "with pycoll.init(timeout=60) as comm:\n"
        "    print(comm.ranks, int(comm.allreduce(numpy.array([comm.rank + 1]))[0]))\n"
    )
    ours = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    unique = str(os.getpid())  # so that other jobs on this machine have another port
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={
                **inherited,
                **numbers(str(rank)),
                "SLURM_JOB_ID": unique,
                "PYTHONPATH": ":".join(sys.path),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=100)[0] for process in processes] == ["2 3\n"] * 2
