"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False, indent: int = 0) -> list[str]:
    """One line per row with aligned columns; `right` aligns cells to the right, as numbers need."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = str.rjust if right else str.ljust
    lines = (
        "  ".join(pad(cell, width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
    return [" " * indent + line.rstrip() for line in lines]
