"""Rotation that depends on length: ids are those of the library's `generate` for each sequence
alone.

Whoever else is in the pass, however prompts come in pieces, with drafts that reach past the border
and are rejected, with prefixes found in the cache, and where an answer goes on elsewhere: the ways
of `tests/architectures/matrix.py`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark.model.checkpoint import LoadedTarget, load_target
from tests.architectures import matrix
from tests.architectures.families import Family, config_of, random_model
from verify_service import engine, rotation, self_test
from verify_service.config import VerifyConfig
from verify_service.loading import choose_runner
from verify_service.model_runner import ModelRunner

BORDER = 32
LONG = {"num_hidden_layers": 3, "max_position_embeddings": 8 * BORDER}
PHI = {**LONG, "original_max_position_embeddings": BORDER}


def longrope(pairs: int, **more: Any) -> dict[str, Any]:
    told = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * pairs,
        "long_factor": [1.0 + 0.5 * n for n in range(pairs)],
        "original_max_position_embeddings": BORDER,
        "factor": 8.0,
    }
    return {"rope_parameters": told | more}


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}
MODELS = {
    "qwen3 longrope": Family("Qwen3Config", "paged", LONG | longrope(8)),
    "llama longrope": Family("LlamaConfig", "paged", LONG | longrope(8)),
    # Its own limit is the border; what it can do past it is served where the limit is raised
    # afterwards.
    "llama dynamic": Family(
        "LlamaConfig", "paged", LONG | DYNAMIC | {"max_position_embeddings": BORDER}
    ),
    "phi3 longrope": Family("Phi3Config", "stateful", PHI | longrope(8)),
    "phi-4-mini, part of each head": Family(
        "Phi3Config", "stateful", PHI | longrope(4, partial_rotary_factor=0.5)
    ),
    "phimoe longrope": Family(
        "PhimoeConfig",
        "stateful",
        LONG | {"num_local_experts": 2} | longrope(8, short_mscale=1.0, long_mscale=1.2),
    ),
}


def write(name: str, folder: Path) -> None:
    """A model in which attention decides, so that a rotation that is wrong shows."""
    random_model(config_of(MODELS[name]), spread=0.2).save_pretrained(folder)


def reaching_on(target: LoadedTarget) -> LoadedTarget:
    object.__setattr__(target, "context_length", 8 * BORDER)  # of the dynamic one
    return target


@pytest.mark.parametrize("name", MODELS)
def test_every_sequence_is_answered_as_if_it_were_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "LENGTHS", (6, 20, BORDER, BORDER + 1, 44))
    load = engine.VerifyEngine.load

    def loaded(config: VerifyConfig) -> engine.VerifyEngine:
        made = load(config)
        reaching_on(made.target)
        return made

    monkeypatch.setattr(engine.VerifyEngine, "load", loaded)
    write(name, tmp_path)
    row = matrix.compare(tmp_path, name)
    assert (row.backend, row.wrong) == (MODELS[name].backend, [])


@pytest.mark.parametrize("name", ["qwen3 longrope", "llama dynamic"])
def test_the_self_test_crosses_the_border_beside_a_short_neighbour(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that is turned by its longest member, as the library would turn it, is found out."""
    write(name, tmp_path)
    target = reaching_on(load_target(tmp_path))
    cases = self_test.expected(target)
    assert self_test.disagreement(ModelRunner(target.model, None, 512), cases) is None
    config = VerifyConfig(target=str(tmp_path), kv_tokens=512)
    assert choose_runner(config, target, None).path == "paged"

    def together(self: rotation.LengthRotation, segments: Any) -> Any:
        longest = max(segment.length for segment in segments)
        tokens = sum(len(segment.token_ids) for segment in segments)
        return np.full(tokens, self.of(longest), np.int64)

    monkeypatch.setattr(rotation.LengthRotation, "of_tokens", together)
    assert "differ" in (self_test.disagreement(ModelRunner(target.model, None, 512), cases) or "")
