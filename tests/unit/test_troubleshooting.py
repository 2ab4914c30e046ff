"""Every message that the troubleshooting page explains is one that the code can say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
def test_the_message_exists(heading: str, sources: str) -> None:
    pieces = [re.escape(piece.strip()) for piece in heading.split("…") if piece.strip()]
    assert pieces
    assert re.search(r"[^\n]*".join(pieces), sources), heading
