"""A synthetic pair as most tests need one: short steps, and how likely its drafts are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def synthetic_file(
    folder: Path,
    accept: Sequence[float],
    *,
    verify_ms: float = 0.1,
    draft_ms: float = 0.1,
    concentration: float | None = None,
    **more: Any,
) -> str:
    """Writes it and returns its path. accept: the chance of each slot; more: keys of the file
    beside these."""
    spread = {} if concentration is None else {"concentration": concentration}
    document = {
        "verify": {"tokens": [1], "ms": [verify_ms]},
        "draft": {"sequences": [1], "ms": [draft_ms]},
        "domains": {"only": {"accept": list(accept), **spread}},
        **more,
    }
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)
