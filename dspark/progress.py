"""The progress bar of every long command, on stderr: stdout is for a command's result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def progress(
    title: str, total: float | None = None, *, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """Shows a bar and yields what updates it, by keywords: `completed` or `advance`, `total`, and a
    `note` behind it. Shows nothing where `rich` is missing."""
    try:
        from rich import progress as bars
        from rich.console import Console
    except ModuleNotFoundError:
        yield lambda **_: None
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        yield partial(bar.update, bar.add_task(title, total=total, note=""))
