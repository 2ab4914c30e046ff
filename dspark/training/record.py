"""The record of a training run: a CSV log of its losses, and a plot of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dspark import plots
from dspark.errors import ConfigError
from dspark.training.disk import write_whole


class StepLog:
    """A CSV log with a row of numbers per logged step; a resumed run appends to it. Numbers read
    back bit for bit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def row(self, values: Mapping[str, float]) -> None:
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            if new:
                file.write(",".join(values) + "\n")
            file.write(",".join(repr(float(value)) for value in values.values()) + "\n")

    def keep_until(self, step: int) -> None:
        """Drops rows after `step` and a torn last line: a resumed run repeats the steps after its
        last state."""
        if not self.path.exists():
            return
        columns, rows = self._parsed()
        kept = [[*map(repr, row)] for row in rows if row[0] <= step]
        if not kept:
            self.path.unlink()
        else:
            write_whole(self.path, "".join(f"{','.join(row)}\n" for row in [columns, *kept]))

    def read(self) -> dict[str, list[float]]:
        columns, rows = self._parsed()
        return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=False))

    def _parsed(self) -> tuple[list[str], list[list[float]]]:
        """Columns and rows, without a torn last line. ConfigError for a damaged file."""
        text = self.path.read_bytes().decode(errors="replace")
        whole = [line.split(",") for line in text.split("\n")[:-1]]
        columns = whole[0] if whole else ["step"]
        try:
            rows = [[float(word) for word in line] for line in whole[1:]]
            if columns[0] != "step" or any(len(row) != len(columns) for row in rows):
                raise ValueError
        except ValueError:
            raise ConfigError(f"{self.path}: not the log of a training run") from None
        return columns, rows

    def last(self) -> dict[str, float]:
        """The figures of the last row, without those that are NaN."""
        return {
            name: values[-1] for name, values in self.read().items() if values[-1] == values[-1]
        }


def draw(log: StepLog, panes: Mapping[str, Sequence[str]], path: Path) -> None:
    """Plots the columns of each pane, by its name, against the step; columns missing from the log
    are left out."""
    values = log.read()
    figure, axes = plots.panels(len(panes), (5.5, 4))
    for pane, (name, columns) in zip(axes, panes.items(), strict=True):
        for column in columns:
            shown = [
                (x, y)
                for x, y in zip(values["step"], values.get(column, ()), strict=False)
                if y == y
            ]
            if shown:  # a figure that some rows lack is plotted with markers
                marker = "" if len(shown) == len(values["step"]) else "."
                pane.plot(
                    *zip(*shown, strict=True),
                    label=column.replace("_", "-"),
                    linewidth=0.8,
                    marker=marker,
                )
        pane.set(xlabel="step", ylabel=name)
    plots.write(figure, path, from_zero=False)
