"""XML with line numbers, and without entities: what the XML importers read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from pycoll.errors import TopologyError

__all__ = ["Element", "parse_xml"]


@dataclass
class Element:
    """An element, its attributes and children, and where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    file: str
    children: list[Element] = field(default_factory=list)

    def error(self, text: str) -> TopologyError:
        """An error about this element."""
        return TopologyError(f"{self.file}:{self.line}: <{self.tag}>: {text}")

    def text(self, name: str, default: str | None = None) -> str:
        """An attribute; TopologyError where it is missing and has no default."""
        value = self.attributes.get(name, default)
        if value is None:
            raise self.error(f"attribute {name} is missing")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number, decimal or 0x hexadecimal."""
        text = self.text(name, None if default is None else str(default))
        try:
            return int(text, 0)
        except ValueError:
            raise self.error(f"{name}={text!r} is not a whole number") from None

    def named(self, tag: str) -> Iterator[Element]:
        """Children of that tag."""
        return (child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """The element and all below it, in the file's order."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_xml(text: str, file: str) -> Element:
    """The root element. Raises TopologyError, with the line, for what is no XML."""
    parser = expat.ParserCreate()
    roots: list[Element] = []
    path: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber, file)
        (path[-1].children if path else roots).append(element)
        path.append(element)
        if len(path) > 100:
            raise element.error("nested too deeply")

    def end(tag: str) -> None:
        path.pop()

    def entity(name: str, *rest: object) -> None:
        raise TopologyError(f"{file}:{parser.CurrentLineNumber}: entities (here {name!r}) are not read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.errors.messages[error.code]
        raise TopologyError(f"{file}:{error.lineno}: not valid XML: {reason}") from error
    return roots[0]
