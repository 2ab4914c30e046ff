"""How a reference page is written."""

from __future__ import annotations


def page(lines: list[str]) -> str:
    """Lines of a page, its title first, as the text of a file."""
    note = "<!-- Made by docs/reference/generate.py from the code. -->"
    return "\n".join([lines[0], "", note, *lines[1:]]).rstrip() + "\n"


def cell(text: str) -> str:
    """Text that stands in a table."""
    return " ".join(text.split()).replace("|", "\\|")
