"""Which nodes and links a name means, as people write them: "tor0-spine1", "leaf*", "rack0", "spine".

A node is meant by its name, by a shell pattern or a range over names (``h[0-7]``), by a group that it is in
(``s3`` is all of ``s3.gpu0``, ``s3.nic0``, ...), by the last part of its name, or by its sort (``spine`` is
every ``spine0``, ``su1.spine2``). The first of these that matches anything is what is meant.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pycoll.bounds import compact
from pycoll.errors import TopologyError
from pycoll.topology import Topology

__all__ = ["cable", "cables", "links_meant", "nodes_meant", "short"]

_RANGE = re.compile(r"\[([\d,\s-]*\d[\d,\s-]*)\]")
_MOST = 220  # characters of a list of names that still help


def cable(topology: Topology, index: int) -> str:
    """The name of a link without its direction: ``tor0-spine1``, ``leaf0-spine0#1``."""
    link = topology.links[index]
    low, high = sorted((link.source, link.target))
    _, sign, number = link.name.rpartition("#")
    return f"{topology.nodes[low].name}-{topology.nodes[high].name}" + (f"#{number}" if sign else "")


def cables(topology: Topology) -> dict[str, list[int]]:
    """Name of each link without its direction -> the directed links that it is, in the topology's order."""
    found: dict[str, list[int]] = {}
    for index in range(len(topology.links)):
        found.setdefault(cable(topology, index), []).append(index)
    return found


def nodes_meant(topology: Topology, text: str) -> list[int]:
    """Indices of the nodes that a name means. Raises TopologyError, nearest names first, for none."""
    found = _nodes(topology, text)
    if not found:
        groups = sorted({part for node in topology.nodes for part in _groups(node.name)})
        raise _no_match("node", topology, text, [node.name for node in topology.nodes], groups)
    return found


def links_meant(topology: Topology, text: str) -> list[int]:
    """Indices of the directed links that a name means.

    ``a->b`` is one direction; ``a<->b`` and ``a-b`` are both; ``a-b#1`` the second of parallel links. A name
    of one node is all its links, a class of links (``ndr``) all links of that class. Raises TopologyError,
    nearest names first, where nothing is meant.
    """
    ends, sign, number = text.rpartition("#")
    if not (sign and number.isdecimal()):
        ends, number = text, ""
    for way in _readings(ends):
        found = [
            index
            for index in _between(topology, *way)
            if not number or topology.links[index].name.endswith(f"#{number}")
        ]
        if found:
            return found
    if not number and "->" not in text:
        kinds = [i for i, link in enumerate(topology.links) if link.kind and fnmatchcase(link.kind, text)]
        if kinds:
            return kinds
        touched = set(_nodes(topology, text))
        found = [i for i, link in enumerate(topology.links) if {link.source, link.target} & touched]
        if found:
            return found
    kinds_known = sorted({link.kind for link in topology.links if link.kind})
    raise _no_match("link", topology, text, list(cables(topology)), kinds_known)


def _readings(text: str) -> Iterable[tuple[str, str, bool]]:
    """The ends that a text may name, and whether both directions are meant; a name may hold a hyphen."""
    for arrow, both in (("<->", True), ("->", False)):
        if arrow in text:
            left, right = text.split(arrow, 1)
            yield left.strip(), right.strip(), both
            return
    for match in re.finditer("-(?![^[]*])", text):  # not within a range
        yield text[: match.start()], text[match.end() :], True


def _between(topology: Topology, left: str, right: str, both: bool) -> list[int]:
    lefts, rights = set(_nodes(topology, left)), set(_nodes(topology, right))
    return [
        index
        for index, link in enumerate(topology.links)
        if (link.source in lefts and link.target in rights)
        or (both and link.source in rights and link.target in lefts)
    ]


def _nodes(topology: Topology, text: str) -> list[int]:
    wanted = _alternatives(text.strip())
    names = [node.name for node in topology.nodes]
    for meant in (
        lambda name, each: name == each,
        fnmatchcase,
        lambda name, each: any(fnmatchcase(group, each) for group in _groups(name)),
        lambda name, each: fnmatchcase(name.rpartition(".")[2], each),
        lambda name, each: name.rpartition(".")[2].rstrip("-_0123456789") == each,
    ):
        found = [index for index, name in enumerate(names) if any(meant(name, each) for each in wanted)]
        if found:
            return found
    return []


def _groups(name: str) -> list[str]:
    """``su0.s1`` and ``su0`` of ``su0.s1.gpu2``."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _alternatives(text: str) -> list[str]:
    """``h[0-2]`` is h0, h1, h2."""
    pieces = _RANGE.split(text)
    choices: list[Sequence[str]] = []
    for number, piece in enumerate(pieces):
        if number % 2 == 0:
            choices.append([piece])
            continue
        values: list[str] = []
        for span in piece.split(","):
            first, _, last = span.strip().partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()):
                return [text]
            width = len(first) if first.startswith("0") else 0
            values += [f"{value:0{width}d}" for value in range(int(first), int(last or first) + 1)]
        choices.append(values)
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _no_match(what: str, topology: Topology, text: str, names: list[str], more: list[str]) -> TopologyError:
    near = difflib.get_close_matches(text, more + names, n=4, cutoff=0.45)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    sorts = f" ({'classes' if what == 'link' else 'groups'}: {short(more)})" if more else ""
    return TopologyError(
        f"no {what} of topology {topology.name!r} matches {text!r}{hint}; there are {short(names)}{sorts}"
    )


def short(names: Iterable[str], most: int = _MOST) -> str:
    """Names with ranges in place of numbers that run on, cut off where they are too many to read."""
    text = compact(names)
    return text if len(text) <= most else text[: text.rfind(",", 0, most)] + ", ..."
