"""Common parts of every plot of a measurement: checking the path, making the axes, writing the
file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark.errors import InvalidRequest, WrongCommand
from dspark.whole_file import check_apart

KINDS = (".png", ".svg")


def check_output(field: str, path: Path | None, *read: Path) -> None:
    """Raises by `field` unless a file can be written, if there is to be one; called before
    measuring. WrongCommand: a "plot" that is no picture; ConfigError: it is one of those that are
    read; InvalidRequest: its place."""
    if path is None:
        return
    if field == "plot" and path.suffix.lower() not in KINDS:
        raise WrongCommand(f"plot: {path} must end in one of {', '.join(KINDS)}")
    check_apart(field, path, *read)
    there = path.exists()
    try:
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise InvalidRequest(field, f"{path} cannot be written: {error.strerror}") from None


def panels(count: int, size: tuple[float, float]) -> tuple[Any, Sequence[Any]]:
    """A figure of `count` axes in a row, `size` inches each: (figure, axes). Needs no display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(size[0] * count, size[1]), squeeze=False)
    return figure, list(axes[0])


def by_streams(axes: Any) -> None:
    """Gives the concurrency axis, x, a base-2 log scale with plain numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")


def write(figure: Any, path: Path, *, from_zero: bool = True) -> None:
    """Adds grid and legends and writes the figure; the suffix of `path` decides the format."""
    from matplotlib import pyplot

    for axes in figure.axes:
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
