"""Choices that were simulated before, kept in files: a large machine takes a second a choice.

A file a topology and version of pycoll, under the cache folder. What cannot be read or written is as if
it were not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pycoll.topology import Topology


class ChoiceCache:
    """The ways chosen on one topology, by what was asked."""

    def __init__(self, topology: Topology) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.path = Path(cache, "pycoll", "choices", f"{fingerprint(topology)}.json")
        self._ways: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(self.path.read_text(encoding="utf-8"))
            self._ways = {str(key): str(way) for key, way in known.items()}

    def get(self, *asked: object) -> str | None:
        return self._ways.get(_key(asked))

    def put(self, way: str, *asked: object) -> None:
        self._ways[_key(asked)] = way
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self._ways, indent=1), encoding="utf-8")
            part.replace(self.path)


def fingerprint(topology: Topology) -> str:
    """Sixteen hexadecimal digits: the machine's nodes, links and ranks, pycoll, and its algorithms."""
    from pycoll import __version__
    from pycoll.schedule import algorithms
    from pycoll.selection.candidates import GRID, MOST_TRANSFERS
    from pycoll.selection.models import Network

    about = (
        topology.nodes,
        topology.links,
        topology.ranks,
        (__version__, sorted(algorithms()), GRID, MOST_TRANSFERS, Network.BUDGET),
    )
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _key(asked: tuple[object, ...]) -> str:
    return "/".join(map(str, asked))
