"""A drafter that can say a part of the vocabulary: what is emitted follows the target's law over all of it, exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from enumeration import (
    BlockRounds,
    Machine,
    TokenRounds,
    World,
    build,
    coupled_law,
    emitted,
    exact,
    real_plan,
    sent,
    variation,
)

from dspark.decoding.acceptance import validate_q
from dspark.decoding.sampling import SamplingColumns, draft_distribution
from dspark.model.formats.vocabulary import DraftVocabulary
from dspark.rounds.policy import Adaptive, Fixed
from dspark.types import SamplingParams

RULES = {"token": TokenRounds, "block": BlockRounds}
BOUND = 1e-9


def _world(rng: np.random.Generator, vocab: int, sayable: list[int], p_of: str) -> World:
    """Drafts of few tokens, spread and cut as the service does; targets over all tokens."""
    vocabulary = DraftVocabulary(torch.tensor(sayable), vocab)

    def rows(contexts: int, slots: int) -> tuple[npt.NDArray[np.float64], ...]:
        if p_of == "eighths":
            head = rng.integers(0, 9, contexts) / 8.0
            p = np.stack([head, 1.0 - head], axis=1)
        else:
            p = rng.dirichlet(np.full(vocab, 0.7), contexts)
        logits = vocabulary.spread(torch.from_numpy(rng.normal(size=(slots, len(sayable)))).float())
        ids, probs = draft_distribution(logits, SamplingColumns.of([SamplingParams(1.0)] * slots), 64)
        for row in range(slots):
            drawable = [int(token) for token, share in zip(ids[row], probs[row], strict=True) if share > 0]
            assert set(drawable) <= set(sayable)
            assert validate_q(ids[row : row + 1].numpy(), probs[row : row + 1].numpy(), drawable[:1], vocab) is None
        q = torch.zeros(slots, vocab).scatter_(-1, ids, probs).numpy()
        return p, sent(q), rng.random(slots)

    return build(vocab, 3, 3, rows)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", [Fixed(3), Fixed(1), Adaptive()], ids=str)
def test_ratio_rules_emit_the_target_s_law(rule: str, policy: Fixed | Adaptive) -> None:
    for seed in range(6):
        rng = np.random.default_rng((seed, 11))
        world = _world(rng, 3, [[0, 2], [1], [1, 2]][seed % 3], "any")
        machine = Machine(real_plan(policy, world, rng), rounds=RULES[rule])
        law = emitted(world, machine)
        assert variation(law, exact(world)) <= BOUND
        assert any(set(tokens) - {0, 2} for tokens, share in law.items() if share > 1e-6), "others are emitted too"


def test_the_coupled_rule_emits_the_target_s_law() -> None:
    for seed in range(6):
        rng = np.random.default_rng((seed, 12))
        world = _world(rng, 2, [seed % 2], "eighths")
        machine = Machine(real_plan(Adaptive(), world, rng))
        assert variation(coupled_law(world, machine, 8), exact(world)) <= BOUND
