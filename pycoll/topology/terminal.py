"""A topology in the terminal: a tree of groups, and a table of the sorts of links."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.console import Group as Rows
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from pycoll.topology.model import Topology
from pycoll.topology.summary import Group, GroupLinks, Summary, summarize
from pycoll.topology.units import format_bandwidth, format_time

__all__ = ["print_topology"]


def print_topology(topology: Topology, console: Console) -> None:
    """Prints name, tree of groups, and sorts of links."""
    summary = summarize(topology)
    console.print(Text(topology.name, style="bold"))
    if topology.about:
        console.print(Text(topology.about, style="dim"))
    console.print()
    for tree in _trees(topology, summary):
        console.print(tree)
    if summary.links:
        console.print()
        console.print(_table(summary))


def _trees(topology: Topology, summary: Summary) -> list[RenderableType]:
    shown: set[int] = set()
    trees = []
    for root in summary.roots():
        tree = Tree(_title(topology, summary.groups[root]), guide_style="dim")
        _grow(tree, topology, summary, root, shown)
        trees.append(tree)
    return [Rows(*trees)]


def _grow(tree: Tree, topology: Topology, summary: Summary, group: int, shown: set[int]) -> None:
    shown.add(group)
    for links in summary.inside(group):
        tree.add(Text.assemble(("among each other", "italic"), "  ", _joined(summary, links)))
    for links in summary.below(group):
        below = summary.groups[links.lower]
        title = _title(topology, below) if links.lower not in shown else Text(below.name)
        if links.lower in shown:
            title.append(" (above)", "dim")
        branch = tree.add(Text.assemble(title, "  ", _joined(summary, links)))
        if links.lower not in shown:
            _grow(branch, topology, summary, links.lower, shown)


def _title(topology: Topology, group: Group) -> Text:
    count = len(group.members)
    text = Text(group.name, style="bold cyan" if group.kind == "device" else "bold")
    what = group.kind if count == 1 else f"{count:,} {group.kind}es" if group.kind == "switch" else None
    text.append(f"  {what or f'{count:,} devices'}", "default")
    if group.kind == "device":
        live = {index: rank for rank, index in enumerate(topology.ranks)}
        ranks = [live[member] for member in group.members if member in live]
        text.append(f", {_ranks(ranks)}", "default")
        node = topology.nodes[group.members[0]]
        if node.ports:
            text.append(f", {node.ports} port{'s' if node.ports > 1 else ''}", "default")
        if node.forwards:
            text.append(", forwards", "default")
    return text


def _ranks(ranks: list[int]) -> str:
    if not ranks:
        return "no ranks"
    if ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
    return f"{len(ranks)} ranks"


def _joined(summary: Summary, links: GroupLinks) -> Text:
    """``128 links, 2 each, 32 a leaf  48 GB/s  200 ns  uplink``"""
    text = Text(f"{links.links:,} link{'s' if links.links > 1 else ''}", style="default")
    if links.lower != links.upper and links.links > 1:
        text.append(f", {_count(links.per_lower)} a {_stem(summary.groups[links.lower].name)}")
        text.append(f", {_count(links.per_upper)} a {_stem(summary.groups[links.upper].name)}")
    elif links.links > 1:
        text.append(f", {_count(links.per_lower)} a node")
    if not links.duplex:
        text.append(", one way", "yellow")
    text.append(f"  {format_bandwidth(links.bandwidth)}", "green")
    text.append(f"  {format_time(links.latency)}", "magenta")
    if links.kind:
        text.append(f"  {links.kind}", "dim")
    return text


def _count(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def _stem(name: str) -> str:
    """``leaf`` of ``su[0-3].leaf[0-7]``"""
    bare = "".join(part.split("]")[-1] for part in name.split("[")).split(".")
    return next((part.rstrip("-_0123456789") for part in reversed(bare) if part.rstrip("-_0123456789")), name)


def _table(summary: Summary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("links of")
    table.add_column("number", justify="right")
    table.add_column("bandwidth", justify="right")
    table.add_column("latency", justify="right")
    table.add_column("between")
    kinds: dict[tuple[str, float, float], list[GroupLinks]] = {}
    for links in summary.links:
        kinds.setdefault((links.kind, links.bandwidth, links.latency), []).append(links)
    for (kind, bandwidth, latency), group in sorted(kinds.items(), key=lambda item: -item[0][1]):
        ends = [f"{summary.groups[g.lower].name} - {summary.groups[g.upper].name}" for g in group]
        shown = ends[:3] + ([f"and {len(ends) - 3} more"] if len(ends) > 3 else [])
        table.add_row(
            kind or "(no class)",
            f"{sum(g.links for g in group):,}",
            format_bandwidth(bandwidth),
            format_time(latency),
            "\n".join(shown),
        )
    return table
