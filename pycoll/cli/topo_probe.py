"""`pycoll topo probe`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from pycoll.cli.bench import job_size

if TYPE_CHECKING:
    from pycoll.communicator import Communicator
    from pycoll.topology.fit import Fit
    from pycoll.topology.matrix import LinkMatrix
    from pycoll.topology.probe import ProbeOptions


def probe(
    ranks: Annotated[
        Optional[int],  # noqa: UP045  typer reads it at run time, on Python 3.10 too
        typer.Option(
            "--ranks",
            "-n",
            help="Processes to start. Default: one a processor, 2 to 8. Not in a launcher's job.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="Write the fitted topology file here: machine.yaml."),
    ] = None,
    matrix_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--matrix", "-m", help="Write all that was measured here: matrix.json."),
    ] = None,
    budget: Annotated[
        str,
        typer.Option("--budget", "-b", help="Time that it may take: 30s, 500 ms, or a number of seconds."),
    ] = "30s",
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure everything once, and nothing again until it has settled.")
    ] = False,
    name: Annotated[str, typer.Option(help="What to call the machine in the topology file.")] = "",
    refit: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--fit", help="Measure nothing: fit a topology to a file that --matrix wrote."),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="cpu, or cuda: copies between the GPUs that this process sees, in one process, and how "
            "they are wired as the driver tells it (nvidia-ml-py, or nvidia-smi). It takes cupy."
        ),
    ] = "cpu",
    sample_above: Annotated[
        int, typer.Option(min=2, help="With more ranks than this, a sample of pairs is measured, not all.")
    ] = 24,
    timeout: Annotated[float, typer.Option(help="Seconds that a single step may take.")] = 60.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print matrix, topology, findings and fit as JSON.")
    ] = False,
) -> None:
    """Measure the links between ranks, and fit a topology file to them.

    Starts the ranks itself; under torchrun, srun or mpirun it joins the job instead, on one host or many.

    Measured are latency and bandwidth of every pair **alone**; what pairs get while **all exchange at once**;
    what the ranks of a cluster get that all send out of it, and one rank that sends to several, or receives
    from them; how fast ranks copy and add. Everything is repeated until it has settled or the budget is over.
    With many ranks, clusters are found from few latencies, and pairs inside and between them sampled.

    Clusters become switches. What several flows share, as they get less together than each alone, becomes the
    bandwidth of a link: the way out of a cluster, or a switch's inside. Printed are the matrix, a sentence
    for each finding, and how far the simulator on the fitted topology is from what was measured.

    With --device cuda the GPUs of this host are measured: every pair alone and all at once, by copies from
    GPU to GPU. What the driver says of NVLinks, NVSwitches and PCIe becomes the graph, and the measurements
    the bandwidth of each kind of link; where the driver says nothing, the graph is fitted as for processes.

    Exit code: 0; 1 if a rank died or the budget was too small for every pair; 2 for a request that makes no
    sense.

    Examples:

        pycoll topo probe --ranks 4 -o machine.yaml

        torchrun --nnodes 4 --nproc-per-node 8 ... --no-python pycoll topo probe -o cluster.yaml -m links.json

        pycoll topo probe --device cuda -o gpus.yaml

        pycoll topo probe --fit links.json --name "cluster, today" -o cluster.yaml
    """
    from pycoll.errors import InvalidArgument
    from pycoll.topology.matrix import LinkMatrix
    from pycoll.topology.probe import ProbeOptions

    options = ProbeOptions(budget=_seconds(budget), sample_above=sample_above, quick=quick)
    for path in (output, matrix_file):
        if path is not None:
            _require_writable(path)
    if device not in ("cpu", "cuda"):
        raise InvalidArgument(f"--device is cpu or cuda, not {device!r}")
    if device == "cuda" and (ranks is not None or job_size() is not None):
        raise InvalidArgument(
            "--device cuda: one process measures all GPUs that it sees: no --ranks, no launcher"
        )
    if device == "cuda" and refit is None:
        _probe_gpus(options, name, output, matrix_file, as_json)
        return
    if refit is not None:
        try:
            matrix: LinkMatrix | None = LinkMatrix.load(refit)
        except OSError as error:
            raise InvalidArgument(f"{refit} cannot be read: {error.strerror}") from error
    else:
        matrix = _measure(ranks, options, timeout)
    if matrix is None:
        return  # a rank other than 0
    if matrix_file is not None:
        _write(matrix_file, matrix.to_json())  # before the fit, so that nothing is measured in vain
    from pycoll.topology.fit import fit

    _report(matrix, fit(matrix, name), output, matrix_file, as_json)


def _probe_gpus(
    options: ProbeOptions, name: str, output: Path | None, matrix_file: Path | None, as_json: bool
) -> None:
    from pycoll.bench.progress import progress_bar
    from pycoll.gpu.probe import fitted, probe_gpus

    with progress_bar(sys.stderr.isatty()) as show:
        matrix, wired = probe_gpus(options, show)
    if matrix_file is not None:
        _write(matrix_file, matrix.to_json())
    if isinstance(wired, str):
        typer.secho(f"{wired}; the graph is fitted to the measurements", fg="yellow", err=True)
    found = fitted(matrix, None if isinstance(wired, str) else wired, name)
    _report(matrix, found, output, matrix_file, as_json)


def _report(
    matrix: LinkMatrix, fitted: Fit, output: Path | None, matrix_file: Path | None, as_json: bool
) -> None:
    if output is not None:
        _write(output, fitted.topology.to_yaml())
    _tell(matrix, fitted, as_json)
    if not as_json:
        for path in (output, matrix_file):
            if path is not None:
                typer.echo(f"wrote {path}")
        if output is None:
            typer.echo("The topology was not kept: give -o FILE.yaml.")


def _measure(ranks: int | None, options: ProbeOptions, timeout: float) -> LinkMatrix | None:
    import pycoll
    from pycoll.bench.environment import usable_cpus
    from pycoll.errors import InvalidArgument

    joined = job_size()
    if joined is not None:
        if ranks not in (None, joined):
            raise InvalidArgument(f"--ranks {ranks}: this job has {joined} ranks already; leave --ranks out")
        with pycoll.init(timeout=timeout) as comm:
            return _run_rank(comm, options, sys.stderr.isatty())
    count = min(max(usable_cpus(), 2), 8) if ranks is None else ranks
    if count < 2:
        raise InvalidArgument(
            f"--ranks {count}: a probe measures links between ranks, so it needs at least 2"
        )
    matrix: LinkMatrix = pycoll.spawn(
        _run_rank, ranks=count, args=(options, sys.stderr.isatty()), timeout=timeout
    )[0]
    return matrix


def _run_rank(comm: Communicator, options: ProbeOptions, progress: bool) -> LinkMatrix | None:
    from pycoll.bench.progress import progress_bar
    from pycoll.topology.probe import probe as measure

    with progress_bar(progress and comm.rank == 0) as show:
        return measure(comm, options, show)


def _tell(matrix: LinkMatrix, fitted: Fit, as_json: bool) -> None:
    from pycoll.topology.findings import findings, print_probe

    if not as_json:
        from rich.console import Console

        print_probe(matrix, fitted, Console())
        return
    report: dict[str, Any] = {
        "matrix": json.loads(matrix.to_json()),
        "topology": fitted.topology.to_yaml(),
        "findings": findings(matrix, fitted),
        "fit": [quality._asdict() for quality in fitted.quality],
    }
    typer.echo(json.dumps(report, indent=1))


def _seconds(text: str) -> float:
    from pycoll.errors import InvalidArgument
    from pycoll.topology.units import parse_time

    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_time(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"--budget {text}: {error}") from error


def _require_writable(path: Path) -> None:
    """Before anything is measured."""
    from pycoll.errors import InvalidArgument

    if not path.parent.is_dir():
        raise InvalidArgument(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise InvalidArgument(f"{path} cannot be written: it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidArgument(f"{path} cannot be written: permission denied")


def _write(path: Path, text: str) -> None:
    from pycoll.errors import Error

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Error(f"{path} cannot be written: {error.strerror}") from error
