"""A progress bar that takes no time from what it watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, float], None]  # what is measured now, fraction of the whole that is done


@contextmanager
def progress_bar(shown: bool) -> Iterator[Progress]:
    """A bar on stderr, redrawn only when told of progress: a thread that redraws would disturb the
    measurement."""
    if not shown:
        yield lambda what, fraction: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def show(what: str, fraction: float) -> None:
            bar.update(task, description=what, completed=fraction, refresh=True)

        yield show
