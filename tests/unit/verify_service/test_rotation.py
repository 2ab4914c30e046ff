"""Rotation that depends on length: ids are those of the library's `generate` for each sequence
alone.

Whoever else is in the pass, however prompts come in pieces, with drafts that reach past the border
and are rejected, with prefixes found in the cache, and where an answer goes on elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.architectures.families import SHAPE, random_model
from tests.architectures.serving import begin, finish, prompt
from verify_service import rotation, self_test
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.loading import choose_runner
from verify_service.model_runner import ModelRunner

BORDER, ANSWER = 32, 18
LONG = {**SHAPE, "num_hidden_layers": 3, "max_position_embeddings": 8 * BORDER}
SHORT = {**LONG, "max_position_embeddings": BORDER}


def longrope(pairs: int, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * pairs,
        "long_factor": [1.0 + 0.5 * n for n in range(pairs)],
        "original_max_position_embeddings": BORDER,
        "factor": 8.0,
        **more,
    }


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
# Name, configuration, the path that serves it.
MODELS: dict[str, tuple[Any, str]] = {
    "qwen3 longrope": (
        lambda: transformers.Qwen3Config(**LONG, rope_parameters=longrope(8)),
        "paged",
    ),
    "llama longrope": (
        lambda: transformers.LlamaConfig(**LONG, rope_parameters=longrope(8)),
        "paged",
    ),
    # Its own limit is the border; what it can do past it is served where the limit is raised
    # afterwards.
    "llama dynamic": (
        lambda: transformers.LlamaConfig(**SHORT, rope_parameters=DYNAMIC),
        "paged",
    ),
    "phi3 longrope": (
        lambda: transformers.Phi3Config(
            **LONG, original_max_position_embeddings=BORDER, rope_parameters=longrope(8)
        ),
        "stateful",
    ),
    "phi-4-mini, part of each head": (
        lambda: transformers.Phi3Config(
            **LONG,
            original_max_position_embeddings=BORDER,
            rope_parameters=longrope(4, partial_rotary_factor=0.5),
        ),
        "stateful",
    ),
    "phimoe longrope": (
        lambda: transformers.PhimoeConfig(
            **LONG,
            num_local_experts=2,
            rope_parameters=longrope(8, short_mscale=1.0, long_mscale=1.2),
        ),
        "stateful",
    ),
}


def loud(config: Any) -> Any:
    """A model in which attention decides, so that a rotation that is wrong shows."""
    return random_model(config, spread=0.2)


PROMPTS = [prompt(20, 1), prompt(44, 2), prompt(6, 3), prompt(32, 4), prompt(33, 5)]


def alone(config: Any, ids: list[int], count: int) -> list[int]:
    """The library's answer, by a model that has seen nothing else."""
    out = loud(config).generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)
    return [int(token) for token in out[0, len(ids) :]]


@pytest.fixture(params=MODELS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[VerifyEngine, list[list[int]]]:
    """An engine and what it has to answer to PROMPTS."""
    make, path = MODELS[request.param]
    loud(make()).save_pretrained(tmp_path / "target")
    config = VerifyConfig(
        target=str(tmp_path / "target"),
        kv_tokens=2048,
        page_size=4,
        prefill_chunk=8,
        step_prefill_tokens=8,
    )
    engine = VerifyEngine.load(config)
    assert engine.attention_path == path
    object.__setattr__(engine.target, "context_length", 8 * BORDER)  # of the dynamic one
    return engine, [alone(make(), ids, ANSWER) for ids in PROMPTS]


def test_every_sequence_is_answered_as_if_it_were_alone(
    served: tuple[VerifyEngine, list[list[int]]],
) -> None:
    engine, answers = served
    for turn in range(2):  # prefixes are found the second time
        running = {10 * turn + n: list(ids) for n, ids in enumerate(PROMPTS)}
        for n, ids in running.items():
            begin(engine, n, ids, len(ids))
        finish(engine, running, {10 * turn + n: answer for n, answer in enumerate(answers)})
        for n, answer in enumerate(answers):
            got = running[10 * turn + n][len(PROMPTS[n]) :]
            assert got[:ANSWER] == answer, f"prompt {n} of {len(PROMPTS[n])} tokens, turn {turn}"
            engine.release(10 * turn + n, 1)


def test_an_answer_that_goes_on_elsewhere_goes_on_the_same(
    served: tuple[VerifyEngine, list[list[int]]],
) -> None:
    engine, answers = served
    running, rest = {}, {}
    for n, (ids, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        for at in (5, 15):  # before the border and behind it
            key = 100 * n + at
            running[key], rest[key] = [*ids, *answer[:at]], answer[at:]
            begin(engine, key, running[key], len(ids))
    finish(engine, running, rest)
    for key, answer in rest.items():
        n, at = divmod(key, 100)
        assert running[key][len(PROMPTS[n]) + at :][: len(answer)] == answer, (
            f"prompt {n}, from {at}"
        )


@pytest.mark.parametrize("name", ["qwen3 longrope", "llama dynamic"])
def test_the_self_test_crosses_the_border_beside_a_short_neighbour(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that is turned by its longest member, as the library would turn it, is found out."""
    loud(MODELS[name][0]()).save_pretrained(tmp_path)
    config = VerifyConfig(target=str(tmp_path), kv_tokens=512)
    from dspark.model.checkpoint import load_target

    target = load_target(tmp_path)
    object.__setattr__(target, "context_length", 8 * BORDER)
    cases = self_test.expected(target)
    assert self_test.disagreement(ModelRunner(target.model, None, 512), cases) is None
    assert choose_runner(config, target, None).path == "paged"

    def together(self: rotation.LengthRotation, segments: Any) -> Any:
        longest = max(segment.length for segment in segments)
        return np.full(
            sum(len(segment.token_ids) for segment in segments), self.of(longest), np.int64
        )

    monkeypatch.setattr(rotation.LengthRotation, "of_tokens", together)
    assert "differ" in (self_test.disagreement(ModelRunner(target.model, None, 512), cases) or "")
