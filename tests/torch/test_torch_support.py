"""docs/torch.md says what the backend supports: it must be so."""

from __future__ import annotations

from . import support


def test_the_tables_of_the_documentation_are_true():
    assert support.tables() == support.documented(), "run python tests/torch/support.py"
