"""RESULTS.md is written section by section, each by a program of its own."""

from __future__ import annotations

from pathlib import Path


def write_section(path: Path, section: str, begin: str, end: str) -> None:
    """Puts the section, which starts with its line ``begin`` and ends with ``end``, in the place of the one
    before, or at the end; the rest of the file stays."""
    text = path.read_text() if path.exists() else ""
    if begin in text and end in text:
        before, after = text.split(begin)[0], text.split(end)[1].lstrip("\n")
        text = before + section + after
    else:
        text = text.rstrip("\n") + ("\n\n" if text else "") + section
    path.write_text(text)
