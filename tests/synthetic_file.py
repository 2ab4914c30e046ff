"""A synthetic pair as most tests need one: short steps, and how likely its drafts are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dspark.synthetic.oracle import SyntheticOracle
from dspark.synthetic.spec import SyntheticSpec
from dspark.types import SamplingParams

Accept = Sequence[float] | Mapping[str, Sequence[float]]


def synthetic_document(
    accept: Accept,
    *,
    verify_ms: float = 0.1,
    draft_ms: float = 0.1,
    concentration: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What the file says. accept: the chance of each slot, of one domain or by domain; more: keys
    beside these, or in their place."""
    spread = {} if concentration is None else {"concentration": concentration}
    domains = accept if isinstance(accept, Mapping) else {"only": accept}
    return {
        "verify": {"tokens": [1], "ms": [verify_ms]},
        "draft": {"sequences": [1], "ms": [draft_ms]},
        "domains": {name: {"accept": list(slots), **spread} for name, slots in domains.items()},
        **more,
    }


def synthetic_file(folder: Path, accept: Accept, **options: Any) -> str:
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(synthetic_document(accept, **options)), encoding="utf-8")
    return str(path)


def said(
    spec: SyntheticSpec, first_token: int, params: SamplingParams, start: int, count: int
) -> list[int]:
    """What its target says from position `start` on, behind a prompt that begins so."""
    oracle = SyntheticOracle(spec)
    keys = np.full(count, oracle.key(first_token, params.seed, params.choice), np.uint64)
    return [int(token) for token in oracle.target(keys, np.arange(start, start + count))]
