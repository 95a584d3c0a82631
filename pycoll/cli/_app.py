"""The root of the command `pycoll`: the application that every command enters itself in, and its errors."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    name="pycoll",
    help="Collective communication that is fast, checked, and can say why.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def fail(message: str, code: int = 2) -> NoReturn:
    """Prints one sentence on stderr and exits."""
    typer.secho(f"pycoll: {message}", fg="red", err=True)
    sys.exit(code)


def split(text: str) -> list[str]:
    """The parts of a comma-separated list, without blanks and empty ones."""
    return [part for part in (part.strip() for part in text.split(",")) if part]


def _show_version(asked: bool) -> None:
    if asked:
        from pycoll import __version__

        typer.echo(f"pycoll {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    pass
