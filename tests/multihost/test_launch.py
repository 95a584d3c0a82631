"""Jobs as people start them, over several hosts: torchrun, srun's and mpirun's variables, DDP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import numpy, pycoll
with pycoll.init(timeout=60) as comm:
    x = comm.allreduce(numpy.full(100_000, comm.rank + 1.0))
    print(f"rank {comm.rank} of {comm.ranks}: {x[-1]:g}", flush=True)
"""


def run(lab, command, env=lambda host: {}, patience=120.0):
    """Runs command(host) in every host; their outputs together. Fails where one does not end well in time."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    inherited |= {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    processes = [
        subprocess.Popen(
            lab.command(host, command(host)),
            env={**inherited, **env(host)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in range(lab.hosts)
    ]
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=patience)[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * lab.hosts, "\n".join(outputs)
    return "\n".join(outputs)


def expected(ranks):
    return sorted(f"rank {rank} of {ranks}: {ranks * (ranks + 1) // 2}" for rank in range(ranks))


def said(output):
    return sorted(re.findall(r"rank \d+ of \d+: \d+", output))


def test_slurm(labs):
    lab = labs.get(3)

    def env(host):
        return {
            "SLURM_JOB_ID": "77",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(host),
            "SLURM_LOCALID": "0",
            "SLURM_NTASKS": "3",
            "SLURM_STEP_NUM_NODES": "3",
            "SLURM_STEP_NODELIST": "h[0-2]",
            "PMIX_RANK": str(host),  # as with srun --mpi=pmix
        }

    output = run(lab, lambda host: [sys.executable, "-c", PROGRAM], env)
    assert said(output) == expected(3), output


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["OMPI", "PMI"])
def test_mpi_launchers(labs, launcher):
    lab = labs.get(2)

    def env(host):
        master = {"MASTER_ADDR": lab.ip(0), "MASTER_PORT": "29610"}
        if launcher == "PMI":
            return {"PMI_RANK": str(host), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", **master}
        return {
            "OMPI_COMM_WORLD_RANK": str(host),
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            **master,
        }

    output = run(lab, lambda host: [sys.executable, "-c", PROGRAM], env)
    assert said(output) == expected(2), output


def torchrun(lab, host, port, rendezvous, program, per_host=1):
    if rendezvous == "static":
        where = ["--node-rank", str(host), "--master-addr", lab.ip(0), "--master-port", str(port)]
    else:
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.ip(0)}:{port}", "--rdzv-id", "7"]
        where += ["--local-addr", lab.ip(host)]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(lab.hosts)),
        *("--nproc-per-node", str(per_host), *where, *program),
    ]


@pytest.mark.long
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_torchrun(labs, tmp_path, rendezvous):
    pytest.importorskip("torch")
    lab, program = labs.get(2), tmp_path / "program.py"
    program.write_text(PROGRAM)
    output = run(lab, lambda host: torchrun(lab, host, 29611, rendezvous, [str(program)]))
    assert said(output) == expected(2), output


@pytest.mark.parametrize(
    ("hosts", "rendezvous"), [(2, "c10d"), pytest.param(4, "static", marks=pytest.mark.long)]
)
def test_ddp_trains_to_the_weights_that_gloo_gives(labs, hosts, rendezvous):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    lab = labs.get(hosts)
    program = [str(ROOT / "examples" / "ddp_digits.py"), "--compare", "--epochs", "1"]
    output = run(lab, lambda host: torchrun(lab, host, 29612, rendezvous, program), patience=250)
    assert f"pycoll, {hosts} ranks" in output
    assert "weights differ by at most" in output, output


@pytest.mark.long
@pytest.mark.parametrize("command", ["bench --sizes 4B,1MiB --budget 0.2", "topo probe --quick --budget 5s"])
def test_commands_join_a_job(labs, command):
    lab = labs.get(2)

    def env(host):
        return {
            "SLURM_PROCID": str(host),
            "SLURM_NTASKS": "2",
            "SLURM_JOB_ID": "78",
            "SLURM_NNODES": "2",
            "SLURM_NODELIST": "h[0-1]",
        }

    output = run(lab, lambda host: [sys.executable, "-m", "pycoll.cli", *command.split()], env)
    assert "1 MiB" in output or "links" in output, output
