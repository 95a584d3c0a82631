"""The topologies that come with pycoll, by name."""

from __future__ import annotations

import difflib
import re
from os import PathLike, fspath
from pathlib import Path

import pycoll
from pycoll.errors import TopologyError

__all__ = ["bundled", "find"]


def bundled() -> dict[str, Path]:
    """Name -> file of every topology that comes with pycoll, in the order of their names."""
    return {path.stem: path for path in sorted(_folder().glob("*.yaml"), key=_natural)}


def _natural(path: Path) -> list[str]:
    """4 before 16"""
    return [part.zfill(8) if part.isdecimal() else part for part in re.split(r"(\d+)", path.stem)]


def _folder() -> Path:
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "CMakeLists.txt").is_file():
        return checkout / "topologies"
    folders = [Path(place) / "topologies" for place in pycoll.__path__]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def find(source: str | PathLike[str]) -> Path:
    """The file that a path or a bundled name means. Raises TopologyError where there is neither."""
    text = fspath(source)
    path = Path(text)
    if path.is_file():
        return path
    if path.is_dir():
        raise TopologyError(f"{text} is a folder; name a topology file in it")
    known = bundled()
    by_name = {name.replace("_", "-"): file for name, file in known.items()}
    if file := by_name.get(text.replace("_", "-").lower()):
        return file
    if path.suffix.lower() in (".yaml", ".yml") or "/" in text:
        raise TopologyError(f"{text}: there is no such file (`pycoll topo list` prints the bundled names)")
    near = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise TopologyError(f"there is no file and no bundled topology {text!r}{hint} (see `pycoll topo list`)")
