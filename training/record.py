"""What a run leaves behind for people: a CSV of its losses, a curve, and a progress bar."""

import csv
from collections.abc import Mapping
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )


class Log:
    """Rows of numbers by step; a resumed run continues the file it finds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def row(self, values: Mapping[str, float]) -> None:
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(values)
            writer.writerow(f"{value:.6g}" for value in values.values())

    def read(self) -> dict[str, list[float]]:
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {key: [float(row[key]) for row in rows] for key in (rows[0] if rows else {})}


def draw_curves(log: Log, columns: list[str], path: Path, ylabel: str) -> None:
    """The named columns against the step, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = log.read()
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for column in columns:
        axes.plot(values["step"], values[column], label=column)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
