"""What every answer of a what-if can do: be printed, and become CSV or a data frame."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

from pycoll.errors import Unsupported

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderResult


def finite(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: None in their place, through lists and dicts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, (list, tuple)) else value


class Result:
    """Rows of figures. Its heirs say what is in a row, and how the whole looks on a terminal."""

    def flat(self) -> list[dict[str, Any]]:
        """The rows, as dicts of the same keys."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        raise NotImplementedError

    def to_csv(self) -> str:
        """:meth:`flat` as CSV, with a header."""
        text = io.StringIO()
        rows = self.flat()
        if rows:
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return text.getvalue()

    def to_frame(self) -> pandas.DataFrame:
        """:meth:`flat` as a pandas data frame. Raises Unsupported where pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise Unsupported("data frames need pandas: pip install pandas") from error
        return pandas.DataFrame(self.flat())

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=160).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
