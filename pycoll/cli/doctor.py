"""`pycoll doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report on this machine and installation: versions, processors, shared memory, the torch backend.

    What stands in the way is named with its remedy. Exit code 1 if there is such a problem; warnings leave it
    at 0.
    """
    import dataclasses

    from pycoll import doctor as doctors

    findings = doctors.examine()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        doctors.print_findings(findings)
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(1)
