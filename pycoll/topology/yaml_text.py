"""YAML with positions: plain values, and where in the text each of them stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from pycoll.errors import TopologyError

__all__ = ["Place", "YamlText", "read_positions"]

Place: TypeAlias = tuple[str | int, ...]  # ("links", 3, "bandwidth")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_VALUES = 2_000_000


@dataclass(frozen=True)
class YamlText:
    """Plain values of a YAML text, and the line and column of each."""

    file: str
    value: Any
    keys: dict[Place, tuple[int, int]]
    values: dict[Place, tuple[int, int]]

    def where(self, place: Place, *, key: bool = False) -> str:
        """``file:line:column`` of the value at ``place``, or of its key; of what is around it if need be."""
        positions = self.keys | self.values if not key else self.values | self.keys
        while place and place not in positions:
            place = place[:-1]
        line, column = positions.get(place, (1, 1))
        return f"{self.file}:{line}:{column}"


def read_positions(text: str, file: str) -> YamlText:
    """Reads one YAML document. Raises TopologyError for what is no YAML, and for a key that comes twice."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        hint = "; indent with spaces" if "'\\t'" in str(error.problem) else ""
        raise TopologyError(f"{file}{position}: not valid YAML: {error.problem}{hint}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise TopologyError(f"{file}: not valid YAML: {str(error) or 'nested too deeply'}") from error
    if root is None:
        raise TopologyError(f"{file}: empty; a topology file begins with `pycoll: 1`")
    reader = _Reader(file, loader)
    value = reader.read(root, ())
    return YamlText(file, value, reader.keys, reader.values)


class _Reader:
    def __init__(self, file: str, loader: Any) -> None:
        self.file = file
        self.loader = loader
        self.keys: dict[Place, tuple[int, int]] = {}
        self.values: dict[Place, tuple[int, int]] = {}
        self.open: set[int] = set()  # anchors that we are inside of

    def read(self, node: yaml.Node, place: Place) -> Any:
        self.values[place] = _position(node)
        if len(self.values) > _MOST_VALUES:
            raise TopologyError(f"{self.file}: more than {_MOST_VALUES} values; use ranges and templates")
        if id(node) in self.open:
            raise TopologyError(f"{self._where(node)}: an anchor holds itself")
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, place)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(child, (*place, index)) for index, child in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise TopologyError(f"{self._where(key_node)}: a field's name must be text; put it in quotes")
            inside = (*place, key)
            if key in mapping:
                line = self.keys[inside][0]
                raise TopologyError(f"{self._where(key_node)}: {key!r} is here already, on line {line}")
            self.keys[inside] = _position(key_node)
            mapping[key] = self.read(value_node, inside)
        return mapping

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            problem = getattr(error, "problem", None) or error
            raise TopologyError(f"{self._where(node)}: not understood: {problem}") from error

    def _where(self, node: yaml.Node) -> str:
        line, column = _position(node)
        return f"{self.file}:{line}:{column}"


def _position(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
