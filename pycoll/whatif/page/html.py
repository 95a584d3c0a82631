"""The document as a page: one file of HTML that works offline, with nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from pycoll.errors import InvalidArgument

__all__ = ["render", "write_page"]

_HERE = Path(__file__).parent
#: In the order in which they are needed.
_SCRIPTS = ("numbers.js", "machine.js", "timeline.js", "charts.js", "live.js", "page.js")


def render(document: dict[str, Any], live: dict[str, Any] | None = None) -> str:
    """The page's HTML. ``live`` are the sliders of a page that is served."""
    parts = {
        "title": escape(document["title"]),
        "style": (_HERE / "page.css").read_text(encoding="utf-8"),
        "script": "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "document": _embedded(document),
        "live": _embedded(live),
    }
    page = (_HERE / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text, 1)
    return page


def _embedded(value: Any) -> str:
    """JSON that no HTML parser takes for an end of its element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_page(path: str | PathLike[str], document: dict[str, Any]) -> None:
    """Writes the page. Raises InvalidArgument where the file cannot be written."""
    try:
        Path(path).write_text(render(document), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"--html {path}: {error.strerror}") from error
