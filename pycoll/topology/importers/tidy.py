"""Nodes and links in the order in which a file says them shortest: like beside like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pycoll.topology.model import Link, Node

__all__ = ["tidied"]


def tidied(nodes: Sequence[Node], links: Sequence[Link]) -> tuple[list[Node], list[Link], dict[int, int]]:
    """The same graph with nodes by the stem of their names, and full-duplex links by sort and ends.

    ``links`` come in pairs, a link and its way back. Also returned: old index of a node -> new index.
    """

    def stem(name: str) -> str:
        return re.sub(r"\d+$", "", name)

    stems = list(dict.fromkeys(stem(node.name) for node in nodes))
    order = sorted(range(len(nodes)), key=lambda index: stems.index(stem(nodes[index].name)))
    moved = {old: new for new, old in enumerate(order)}
    kinds = list(dict.fromkeys(link.kind for link in links))

    def rank(pair: tuple[Link, Link]) -> tuple[int, int, int]:
        ends = (nodes[pair[0].source].name, nodes[pair[0].target].name)
        return kinds.index(pair[0].kind), stems.index(stem(ends[0])), stems.index(stem(ends[1]))

    pairs = sorted(zip(links[::2], links[1::2], strict=True), key=rank)
    sorted_links = [
        replace(link, source=moved[link.source], target=moved[link.target]) for pair in pairs for link in pair
    ]
    return [nodes[index] for index in order], sorted_links, moved
