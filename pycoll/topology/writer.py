"""A Topology to the text of a topology file, equal nodes and links in ranges where they follow each other."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import yaml

from pycoll.topology.model import Link, Node, Topology
from pycoll.topology.units import format_bandwidth, format_time

__all__ = ["write_yaml"]

_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]*)")


def write_yaml(topology: Topology) -> str:
    """The text; reading it gives an equal topology."""
    classes = _classes(topology.links)
    lines = ["pycoll: 1", f"name: {_text(topology.name)}"]
    if topology.about:
        lines.append(f"about: {_paragraph(topology.about)}")
    if classes:
        lines.append("classes:")
    for kind, (bandwidth, latency) in classes.items():
        figures = f"bandwidth: {format_bandwidth(bandwidth)}, latency: {format_time(latency)}"
        lines.append(f"  {_text(kind)}: {{{figures}}}")
    lines.append("nodes:")
    lines += [f"  - {{{text}}}" for text in _node_lines(topology.nodes)]
    if topology.links:
        lines.append("links:")
    lines += [f"  - {{{_link_line(group, classes)}}}" for group in _link_groups(topology)]
    lines.append("ranks:")
    names = [topology.nodes[index].name for index in topology.ranks]
    lines += [f"  - {_name(text)}" for text in _ranges(names)]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """YAML's double quotes: every text survives them."""
    return str(yaml.dump(text, default_style='"', allow_unicode=True, width=math.inf)).rstrip("\n")


_PLAIN = re.compile(r"[A-Za-z](?:[A-Za-z0-9 _.,/()-]*[A-Za-z0-9_)])?", re.ASCII)
_WORDS_OF_YAML = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _text(text: str) -> str:
    """Quotes only where YAML needs them, or where it would read a truth or a null."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML else _quoted(text)


def _name(text: str) -> str:
    """As :func:`_text`, inside brackets and braces."""
    return _text(text) if "," not in text else _quoted(text)


def _paragraph(text: str) -> str:
    """Folded over several lines, where that changes nothing."""
    words = text.split(" ")
    if all(words) and text.isprintable() and not any(word.split() != [word] for word in words):
        lines = textwrap.wrap(text, 108, break_long_words=False, break_on_hyphens=False)
        return ">-\n" + "\n".join(f"  {line}" for line in lines)
    return _quoted(text)


def _split(name: str) -> tuple[str, int] | None:
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def _ranges(names: Iterable[str]) -> Iterator[str]:
    """Names with consecutive numbers as one pattern, in order."""
    run: list[str] = []
    for name in names:
        if run and not _follows(run[-1], name):
            yield _pattern(run)
            run = []
        run.append(name)
    if run:
        yield _pattern(run)


def _follows(name: str, after: str) -> bool:
    first, second = _split(name), _split(after)
    return first is not None and second is not None and second == (first[0], first[1] + 1)


def _pattern(run: list[str]) -> str:
    first, last = _split(run[0]), _split(run[-1])
    if len(run) == 1 or first is None or last is None:
        return run[0]
    return f"{first[0]}[{first[1]}-{last[1]}]"


def _node_lines(nodes: tuple[Node, ...]) -> Iterator[str]:
    run: list[Node] = []
    for node in nodes:
        if run and not (
            _follows(run[-1].name, node.name) and replace(node, name="") == replace(run[-1], name="")
        ):
            yield _node_line(run)
            run = []
        run.append(node)
    if run:
        yield _node_line(run)


def _node_line(run: list[Node]) -> str:
    node = run[0]
    fields = [f"name: {_name(_pattern([each.name for each in run]))}", f"kind: {node.kind}"]
    if node.ports:
        fields.append(f"ports: {node.ports}")
    if node.overhead:
        fields.append(f"overhead: {format_time(node.overhead)}")
    if node.forwards:
        fields.append("forwards: true")
    rates = {"copy": node.copy_rate, "reduce": node.reduce_rate}
    inside = [f"{name}: {format_bandwidth(rate)}" for name, rate in rates.items() if math.isfinite(rate)]
    if inside:
        fields.append(f"intra: {{{', '.join(inside)}}}")
    return ", ".join(fields)


def _classes(links: Iterable[Link]) -> dict[str, tuple[float, float]]:
    """The figures that most links of a kind have; the others state theirs."""
    figures: dict[str, Counter[tuple[float, float]]] = {}
    for link in links:
        if link.kind:
            figures.setdefault(link.kind, Counter())[link.bandwidth, link.latency] += 1
    return {kind: count.most_common(1)[0][0] for kind, count in figures.items()}


@dataclass(frozen=True)
class _Group:
    left: str
    right: str
    duplex: bool
    count: int
    bandwidth: float
    latency: float
    kind: str

    def like(self, other: _Group) -> bool:
        return replace(self, left="", right="") == replace(other, left="", right="")


def _link_groups(topology: Topology) -> Iterator[_Group]:
    groups: list[_Group] = []
    for group in _counted(_duplex(topology)):
        if groups and not _extends(groups, group):
            yield _merged(groups)
            groups = []
        groups.append(group)
    if groups:
        yield _merged(groups)


def _duplex(topology: Topology) -> Iterator[_Group]:
    """A link and its way back as one, where the one follows the other and their figures are equal."""
    links, index = topology.links, 0
    while index < len(links):
        link = links[index]
        back = links[index + 1] if index + 1 < len(links) else None
        turned = replace(link, source=link.target, target=link.source)
        duplex = back is not None and replace(back, name="") == replace(turned, name="")
        left, right = topology.nodes[link.source].name, topology.nodes[link.target].name
        yield _Group(left, right, duplex, 1, link.bandwidth, link.latency, link.kind)
        index += 2 if duplex else 1


def _counted(groups: Iterable[_Group]) -> Iterator[_Group]:
    last: _Group | None = None
    for group in groups:
        if last is not None and replace(last, count=1) == group and last.count < 1024:
            last = replace(last, count=last.count + 1)
            continue
        if last is not None:
            yield last
        last = group
    if last is not None:
        yield last


def _extends(groups: list[_Group], group: _Group) -> bool:
    """Whether a link goes on in the way the run began: one end fixed, or both ends counting alike."""
    last = groups[-1]
    if not last.like(group):
        return False
    ways = {_way(before, after) for before, after in zip(groups, [*groups[1:], group], strict=True)}
    return len(ways) == 1 and None not in ways


def _way(before: _Group, after: _Group) -> str | None:
    left, right = _follows(before.left, after.left), _follows(before.right, after.right)
    if left and before.right == after.right:
        return "left"
    if right and before.left == after.left:
        return "right"
    first, second = _split(before.left), _split(before.right)
    return "both" if left and right and first and second and first[1] == second[1] else None


def _merged(groups: list[_Group]) -> _Group:
    first = groups[0]
    if len(groups) == 1:
        return first
    left, right = _pattern([g.left for g in groups]), _pattern([g.right for g in groups])
    way = _way(groups[0], groups[1])
    if way == "left":
        return replace(first, left=left)
    if way == "right":
        return replace(first, right=right)
    stem = _split(first.right)
    assert stem is not None
    return replace(first, left=left.replace("[", "[i=", 1), right=f"{stem[0]}[i]")


def _link_line(group: _Group, classes: dict[str, tuple[float, float]]) -> str:
    left, right = _name(group.left), _name(group.right)
    fields = [f"between: [{left}, {right}]"] if group.duplex else [f"from: {left}", f"to: {right}"]
    usual: tuple[float | None, float | None] = (None, None)
    if group.kind:
        fields.append(f"class: {_name(group.kind)}")
        usual = classes[group.kind]
    if group.bandwidth != usual[0]:
        fields.append(f"bandwidth: {format_bandwidth(group.bandwidth)}")
    if group.latency != usual[1]:
        fields.append(f"latency: {format_time(group.latency)}")
    if group.count > 1:
        fields.append(f"count: {group.count}")
    return ", ".join(fields)
