"""The topology file: YAML text to a Topology. docs/topology.md shows the format by example."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from pycoll.errors import TopologyError
from pycoll.topology import document
from pycoll.topology.document import Document, LinkClass, LinkGroup, NodeGroup
from pycoll.topology.model import Link, Node, Topology
from pycoll.topology.patterns import MOST_NAMES, Pattern, assignments, parse_pattern
from pycoll.topology.yaml_text import Place, YamlText, read_positions

__all__ = ["read_yaml"]

_MOST_ERRORS = 10


def read_yaml(text: str, file: str = "topology", *, connected: bool = True) -> Topology:
    """The topology that a file's text describes; ``connected`` refuses ranks that cannot reach each other.

    Raises TopologyError: ``file:line:column: field: what is wrong; what to write``, a line an error.
    """
    source = read_positions(text, file)
    parsed = _validate(source)
    try:
        topology = _Builder(parsed).topology(text)
        if connected:
            _check_connected(topology)
    except _Located as error:
        raise TopologyError(f"{source.where(error.place)}: {_dotted(error.place)}: {error}") from error
    return topology


def _check_connected(topology: Topology) -> None:
    try:
        topology.check()
    except TopologyError as error:
        raise _Located(("links",), str(error)) from error


# ---- fields


def _validate(source: YamlText) -> Document:
    value = source.value
    if not isinstance(value, dict):
        raise TopologyError(f"{source.where(())}: not a topology file: it should begin with `pycoll: 1`")
    version = value.get("pycoll")
    if version is None:
        raise TopologyError(f"{source.where(())}: pycoll: missing; the first line should be `pycoll: 1`")
    if version != document.VERSION or isinstance(version, bool):
        raise TopologyError(
            f"{source.where(('pycoll',))}: pycoll: this is format {version!r}, and this pycoll reads format "
            f"{document.VERSION}; update pycoll, or write `pycoll: {document.VERSION}`"
        )
    try:
        # A list of two names is a pair; JSON, unlike Python, has no other way to write one.
        return Document.model_validate(_with_pairs(value))
    except ValidationError as error:
        lines = [_sentence(source, details) for details in error.errors(include_url=False)]
        hidden = len(lines) - _MOST_ERRORS
        lines = lines[:_MOST_ERRORS] + ([f"... and {hidden} more errors"] if hidden > 0 else [])
        raise TopologyError("\n".join(lines)) from error


def _with_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: tuple(item) if key == "between" and isinstance(item, list) else _with_pairs(item)
            for key, item in value.items()
        }
    return [_with_pairs(item) for item in value] if isinstance(value, list) else value


def _sentence(source: YamlText, error: Any) -> str:
    place = tuple(part for part in error["loc"] if part != "str" and not str(part).startswith("list["))
    kind, given = error["type"], error["input"]
    name = str(place[-1])
    if kind == "missing":
        text = "the second of the two names is missing" if isinstance(place[-1], int) else "missing"
    elif kind == "extra_forbidden":
        known = _fields_at(place)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        text = f"there is no such field; {hint}"
    elif kind == "string_type":
        text = f"must be text, not {given!r}" + (
            "" if isinstance(given, (dict, list)) else "; put it in quotes"
        )
    elif kind == "too_long" and "between" in place:
        text = 'takes two names; write ranges for more: between: ["h[0-7]", tor0]'
    elif kind == "tuple_type":
        text = 'takes a list of two names: between: ["h[0-7]", tor0]'
    elif kind in ("model_type", "dict_type"):
        text = f"must hold fields, `field: value`, not {given!r}"
    elif kind == "list_type":
        text = f"must be a list, an item a line that begins with `- `, not {given!r}"
    elif kind == "literal_error":
        text = f"must be {error['ctx']['expected']}, not {given!r}"
    else:
        text = error["msg"].removeprefix("Value error, ")
        text = text[0].lower() + text[1:]
    where = source.where(place, key=kind == "extra_forbidden")
    return f"{where}: {_dotted(place)}: {text}"


def _fields_at(place: Place) -> list[str]:
    """Names of the fields that may stand where an unknown one does."""
    models: dict[str, type[BaseModel]] = {
        "nodes": NodeGroup,
        "links": LinkGroup,
        "classes": LinkClass,
        "templates": document.Template,
        "intra": document.Intra,
    }
    within: type[BaseModel] = Document
    for part in place[:-1]:
        within = models.get(str(part), within)
    return [info.alias or name for name, info in within.model_fields.items()]


def _dotted(place: Place) -> str:
    """``links[3].bandwidth``"""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "file"


# ---- nodes and links


class _Located(TopologyError):
    """An error that knows the field that it is about."""

    def __init__(self, place: Place, text: str) -> None:
        super().__init__(text)
        self.place = place


@dataclass
class _Part:
    """Nodes and links written out: of the file as a whole, or of one template."""

    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)


class _Builder:
    def __init__(self, parsed: Document) -> None:
        self.parsed = parsed
        self.templates: dict[str, _Part] = {}
        self.open: list[str] = []  # templates that we are inside of

    def topology(self, text: str) -> Topology:
        parsed = self.parsed
        whole = self._part(parsed.nodes, parsed.links, ())
        ranks = list(self._ranks(whole))
        return Topology(
            parsed.name, tuple(whole.nodes), tuple(whole.links), tuple(ranks), about=parsed.about, text=text
        )

    def _ranks(self, whole: _Part) -> Iterator[int]:
        if self.parsed.ranks is None:
            devices = [index for index, node in enumerate(whole.nodes) if node.kind == "device"]
            if not devices:
                raise _Located(("nodes",), "there is no device for a rank to live on; switches only forward")
            yield from devices
            return
        seen: dict[int, Place] = {}
        for number, text in enumerate(self.parsed.ranks):
            place: Place = ("ranks", number)
            for name in _names(text, place):
                index = _find(whole, name, place)
                if whole.nodes[index].kind != "device":
                    raise _Located(place, f"{name} is a switch; ranks live on devices")
                if index in seen:
                    raise _Located(place, f"{name} has a rank already, from {_dotted(seen[index])}")
                seen[index] = place
                yield index

    def _part(self, nodes: list[NodeGroup], links: list[LinkGroup], place: Place) -> _Part:
        part = _Part()
        for number, group in enumerate(nodes):
            self._add_nodes(part, group, (*place, "nodes", number))
        for number, link_group in enumerate(links):
            self._add_links(part, link_group, (*place, "links", number))
        return part

    def _add_nodes(self, part: _Part, group: NodeGroup, place: Place) -> None:
        if (group.name is None) == (group.use is None):
            raise _Located(place, "write either name, or use and as")
        if group.use is not None:
            self._add_instances(part, group, place)
            return
        if group.instances is not None:
            raise _Located((*place, "as"), "goes with use: write `use: TEMPLATE` in place of name")
        assert group.name is not None
        if group.kind == "switch":
            for unfit in ("ports", "overhead", "forwards", "intra"):
                if unfit in group.model_fields_set:
                    raise _Located((*place, unfit), "is a device's; a switch only forwards")
        intra = group.intra or document.Intra.model_validate({})
        for name in _names(group.name, (*place, "name")):
            node = Node(
                name,
                group.kind,
                group.ports,
                group.overhead,
                intra.copy_rate,
                intra.reduce_rate,
                group.forwards,
            )
            _add_node(part, node, (*place, "name"))

    def _add_instances(self, part: _Part, group: NodeGroup, place: Place) -> None:
        unfit = group.model_fields_set - {"use", "instances", "source"}
        if unfit:
            name = sorted(unfit)[0]
            raise _Located((*place, name), "does not go with use; write it in the template")
        if group.instances is None:
            raise _Located(place, 'use needs a name for what it makes: write as: "s[0-3]"')
        assert group.use is not None
        template = self._template(group.use, (*place, "use"))
        for name in _names(group.instances, (*place, "as")):
            first = len(part.nodes)
            for node in template.nodes:
                renamed = Node(**{**vars(node), "name": f"{name}.{node.name}"})
                _add_node(part, renamed, (*place, "as"))
            for link in template.links:
                moved = Link(
                    link.source + first, link.target + first, link.bandwidth, link.latency, link.kind
                )
                _add_link(part, moved, place)

    def _template(self, name: str, place: Place) -> _Part:
        known = self.parsed.templates
        if name not in known:
            raise _Located(place, f"there is no template {name!r}{_nearest(name, known)}")
        if name in self.open:
            raise _Located(place, f"template {name!r} uses itself: {' > '.join([*self.open, name])}")
        if name not in self.templates:
            self.open.append(name)
            template = known[name]
            self.templates[name] = self._part(template.nodes, template.links, ("templates", name))
            self.open.pop()
        return self.templates[name]

    def _add_links(self, part: _Part, group: LinkGroup, place: Place) -> None:
        bandwidth, latency = self._figures(group, place)
        forward_only = group.source_nodes is not None
        for source, target in _pairs(part, group, place):
            for _ in range(group.count):
                _add_link(part, Link(source, target, bandwidth, latency, group.link_class or ""), place)
                if not forward_only:
                    back = Link(target, source, bandwidth, latency, group.link_class or "")
                    _add_link(part, back, place)

    def _figures(self, group: LinkGroup, place: Place) -> tuple[float, float]:
        given = LinkClass.model_validate({})
        if group.link_class is not None:
            known = self.parsed.classes
            if group.link_class not in known:
                hint = _nearest(group.link_class, known)
                raise _Located((*place, "class"), f"there is no class {group.link_class!r}{hint}")
            given = known[group.link_class]
        bandwidth = given.bandwidth if group.bandwidth is None else group.bandwidth
        latency = given.latency if group.latency is None else group.latency
        if bandwidth is None:
            raise _Located(place, "bandwidth is missing, here and in the class: write bandwidth: 25 GB/s")
        if latency is None:
            raise _Located(place, "latency is missing, here and in the class: write latency: 2 us, or 0 s")
        return bandwidth, latency


def _pairs(part: _Part, group: LinkGroup, place: Place) -> Iterator[tuple[int, int]]:
    """Ends of the links that a group stands for, in order."""
    given = {
        "between": group.between,
        "from": group.source_nodes,
        "among": group.among,
        "ring": group.ring,
        "chain": group.chain,
    }
    forms = [name for name, value in given.items() if value is not None]
    if group.target_nodes is not None and group.source_nodes is None:
        raise _Located((*place, "to"), "goes with from; between is for links of both directions")
    if len(forms) != 1:
        what = f"says both {forms[0]} and {forms[1]}" if forms else "does not say what it joins"
        raise _Located(place, f"{what}; write one of between, from and to, among, ring, chain")
    form = forms[0]
    if form in ("between", "from"):
        if form == "from" and group.target_nodes is None:
            raise _Located(place, "from needs to: write to: NAME")
        left, right = group.between or (group.source_nodes, group.target_nodes)
        places = ((*place, "between", 0), (*place, "between", 1))
        if form == "from":
            places = ((*place, "from"), (*place, "to"))
        assert left is not None
        assert right is not None
        yield from _products(part, parse_pattern(left), parse_pattern(right), places)
        return
    text = given[form]
    assert isinstance(text, str)
    yield from _within(part, form, parse_pattern(text), (*place, form))


def _products(
    part: _Part, left: Pattern, right: Pattern, places: tuple[Place, Place]
) -> Iterator[tuple[int, int]]:
    for values in _assignments(places[0], left, right):
        sources = [_find(part, name, places[0]) for name in left.names(values)]
        targets = [_find(part, name, places[1]) for name in right.names(values)]
        for source, target in itertools.product(sources, targets):
            if source == target:
                name = part.nodes[source].name
                raise _Located(
                    places[1],
                    f"{name} would be linked to itself; among joins nodes of one group to each other",
                )
            yield source, target


def _within(part: _Part, form: str, pattern: Pattern, place: Place) -> Iterator[tuple[int, int]]:
    for values in _assignments(place, pattern):
        members = [_find(part, name, place) for name in pattern.names(values)]
        if len(members) < 2:
            raise _Located(
                place,
                f'a range without a name is what {form} runs over: write "gpu[0-7]", not {pattern.text!r}',
            )
        if form == "among":
            yield from itertools.combinations(members, 2)
            continue
        yield from itertools.pairwise(members)
        if form == "ring" and len(members) > 2:  # of two, the way back is the link itself
            yield members[-1], members[0]


def _assignments(place: Place, *patterns: Pattern) -> Iterator[dict[str, str]]:
    try:
        yield from assignments(*patterns)
    except TopologyError as error:
        if isinstance(error, _Located):
            raise
        raise _Located(place, str(error)) from error


def _names(text: str, place: Place) -> list[str]:
    pattern = parse_pattern(text)
    return [name for values in _assignments(place, pattern) for name in pattern.names(values)]


def _add_node(part: _Part, node: Node, place: Place) -> None:
    if node.name in part.index:
        raise _Located(place, f"there is a node called {node.name!r} already; names must differ")
    part.index[node.name] = len(part.nodes)
    part.nodes.append(node)
    if len(part.nodes) > MOST_NAMES:
        raise _Located(place, f"the topology has more than {MOST_NAMES} nodes")


def _add_link(part: _Part, link: Link, place: Place) -> None:
    part.links.append(link)
    if len(part.links) > 4 * MOST_NAMES:
        raise _Located(place, f"the topology has more than {4 * MOST_NAMES} links")


def _find(part: _Part, name: str, place: Place) -> int:
    index = part.index.get(name)
    if index is None:
        raise _Located(place, f"there is no node {name!r}{_nearest(name, part.index)}")
    return index


def _nearest(name: str, known: dict[str, Any]) -> str:
    if not known:
        return "; there are none"
    near = difflib.get_close_matches(name, list(known)[:20_000], n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(list(known)[:6])}"
