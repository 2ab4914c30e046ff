"""The reference pages say what the code says today, and leave nothing unexplained; every message
that the troubleshooting page explains is one that the code can say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))


def test_pages_are_fresh() -> None:
    command = [sys.executable, "docs/reference/generate.py", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"run `make reference`: {done.stdout}{done.stderr[-2000:]}"


def test_what_takes_something_away_is_not_called_a_default() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert "| `--stop-at-eos` |  | let answers end by themselves |" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_has_a_meaning(page: Path) -> None:
    rows = [
        line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    assert rows
    assert not [row for row in rows if row.endswith("|  |")]


ROOMS = ("dspark", "coordinator", "verify_service", "draft_service", "deploy")
HEADINGS = re.findall(
    r"^### `(.+)`$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.M
)


@pytest.fixture(scope="module")
def sources() -> str:
    return "\n".join(
        path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py")
    )


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_message_of_troubleshooting_is_in_the_code(heading: str, sources: str) -> None:
    pieces = [re.escape(piece.strip()) for piece in heading.split("…") if piece.strip()]
    assert pieces
    assert re.search(r"[^\n]*".join(pieces), sources), heading
