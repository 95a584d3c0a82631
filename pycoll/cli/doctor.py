"""`pycoll doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    network: Annotated[
        bool, typer.Option("--network", help="Look only at what jobs of several hosts need.")
    ] = False,
) -> None:
    """Report on this machine and installation: versions, processors, shared memory, network, torch backend.

    In a job (`srun pycoll doctor`, `torchrun ... --no-python pycoll doctor`), or with MASTER_ADDR and
    MASTER_PORT set, it also looks whether the host where the ranks meet can be reached; one rank of each host
    speaks.

    What stands in the way is named with its remedy. Exit code 1 if there is such a problem; warnings leave it
    at 0.
    """
    import dataclasses

    from pycoll import doctor as doctors

    if doctors.another_speaks_for_this_host():
        return
    findings = doctors.examine(network_only=network)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        doctors.print_findings(findings)
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(1)
