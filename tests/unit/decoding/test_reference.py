"""The oracle decodes, names every draw once, and is reproduced by its own record; the distributed
system says what it says: `test_equals_reference`."""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark.decoding.philox import Purpose
from dspark.decoding.reference import Pick, RecordedRound, ReferenceRun, generate, replay
from dspark.rounds.plan import BlockTerms, PlanKind, prefixes
from dspark.types import NO_Q, Rule, SamplingParams
from tests.unit.decoding.named_draws import Name, record

VOCAB, BLOCK, ENTRIES = 40, 5, 16
PROMPT = (3, 1, 4, 1, 5)
ALL_PARAMS = [
    replace(params, rule=rule)
    for rule in Rule
    for params in (
        SamplingParams(1.0, seed=1),
        SamplingParams(0.0, seed=2),
        SamplingParams(0.8, 0.9, 12, seed=3),
        SamplingParams(1.0, seed=1, choice=1),
    )
]


def logits_after(tokens: Sequence[int], salt: int = 0) -> Tensor:
    """A language of its own: what follows depends on the last three tokens."""
    seed = zlib.crc32(bytes([salt, *(token % 256 for token in tokens[-3:])]))
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32))


def target(tokens: Sequence[int], rows: int) -> Tensor:
    return torch.stack(
        [logits_after(tokens[: len(tokens) - rows + 1 + row]) for row in range(rows)]
    )


def confidence_after(tokens: Sequence[int]) -> float:
    return zlib.crc32(bytes(token % 256 for token in tokens[-2:])) / 2**32 * 0.6 + 0.4


def drafter(tokens: Sequence[int], pick: Pick) -> list[float]:
    seen, confidence = list(tokens), []
    for _ in range(BLOCK):
        confidence.append(confidence_after(seen))
        seen.append(pick(logits_after(seen) + 0.4 * logits_after(seen, salt=1)))
    return confidence


def by_price(_: int, confidence: Sequence[float]) -> int:
    return prefixes([confidence], [BlockTerms(PlanKind.PRICE, BLOCK, 0.4)])[0]


def full_block(_: int, confidence: Sequence[float]) -> int:
    return len(confidence)


def run_of(  # type: ignore[no-untyped-def]
    prefix, params: SamplingParams, count: int, *, prompt: Sequence[int] = PROMPT, **more
) -> ReferenceRun:
    """`count` tokens of the reference, with the drafter of this file."""
    return generate(
        prompt, target, drafter, prefix, params, max_tokens=count, entries=ENTRIES, **more
    )


@pytest.mark.parametrize("params", ALL_PARAMS, ids=str)
def test_a_run_is_reproduced_from_its_recorded_choices(params: SamplingParams) -> None:
    run = run_of(by_price, params, 60)
    assert len(run.token_ids) == 60
    assert len({made.prefix for made in run.rounds}) > 1
    assert sum(made.accepted for made in run.rounds) > 10
    blank = [replace(made, accepted=-1, next_token=-1) for made in run.rounds]
    # A system records what it sent for verification, not what it cut off.
    cut = [
        replace(made, draft_ids=made.draft_ids[: made.prefix], q=made.q.prefix(made.prefix))
        for made in blank
    ]
    for recorded in (blank, cut):
        assert replay(PROMPT, target, recorded, params, max_tokens=60) == run.token_ids


def test_a_record_of_another_run_is_refused() -> None:
    run = run_of(full_block, ALL_PARAMS[0], 20)
    with pytest.raises(ValueError, match="the replay stands at"):
        replay(PROMPT, target, run.rounds[1:], ALL_PARAMS[0], max_tokens=20)


def test_greedy_decoding_is_plain_decoding_whatever_is_drafted_or_verified() -> None:
    tokens = list(PROMPT)
    for _ in range(50):
        tokens.append(int(logits_after(tokens).argmax()))
    for prefix in (full_block, by_price, lambda *_: 0, lambda anchor, _: anchor % 4):
        run = run_of(prefix, SamplingParams(0.0), 50)
        assert list(run.token_ids) == tokens[len(PROMPT) :]


def test_a_run_ends_at_a_stop_token_or_at_its_limit() -> None:
    whole = run_of(full_block, ALL_PARAMS[0], 30)
    stop = whole.token_ids[9]
    run = run_of(full_block, ALL_PARAMS[0], 30, stop_ids={stop})
    assert run.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert (
        replay(PROMPT, target, run.rounds, ALL_PARAMS[0], max_tokens=30, stop_ids={stop})
        == run.token_ids
    )
    short = run_of(full_block, ALL_PARAMS[0], 7)
    assert short.token_ids == whole.token_ids[:7]
    assert run_of(full_block, ALL_PARAMS[0], 1).rounds == ()


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_no_draw_of_a_ratio_rule_is_ever_used_twice(rule: Rule) -> None:
    drawn: list[Name] = []
    with record(drawn):
        for choice in range(2):
            params = SamplingParams(1.0, seed=5, choice=choice, rule=rule)
            run = run_of(by_price, params, 40)
            assert len(run.rounds) > 8
            # The sequence is handed over half-way and goes on from there in its next epoch.
            half = (*PROMPT, *run.token_ids[:20])
            run_of(full_block, params, 20, prompt=half, epoch=2)
    slots = len({name for name in drawn if name[1][2] >> 16 & 0xFF == 1})
    assert slots > 2 * BLOCK * 8, "slots drafted again in a later round must count as new draws"
    assert len(set(drawn)) == len(drawn)


def test_coupled_noise_is_named_by_seed_choice_and_position_alone() -> None:
    def names(prefix, epoch: int = 1) -> set[Name]:  # type: ignore[no-untyped-def]
        drawn: list[Name] = []
        with record(drawn):
            run_of(prefix, params, 40, epoch=epoch)
        return set(drawn)

    params = SamplingParams(1.0, seed=5, choice=3, rule=Rule.COUPLED)
    plain = names(lambda *_: 0)
    positions = {counter[0] for _, counter in plain}
    assert set(range(len(PROMPT), len(PROMPT) + 40)) <= positions
    # One block of four tokens after the other, at every position, and nothing else in the name but
    # the salt.
    salt = Purpose.GUMBEL << 16 | Rule.COUPLED << 24
    assert plain <= {
        (5, (place, group, salt, 3)) for place in positions for group in range(VOCAB // 4)
    }
    for prefix in (full_block, by_price):
        for epoch in (1, 2):
            inside = {name for name in names(prefix, epoch) if name[1][0] < len(PROMPT) + 40}
            assert inside >= {name for name in plain if name[1][0] < len(PROMPT) + 40}
            assert len(inside) == 40 * VOCAB // 4


def test_a_coupled_answer_is_plain_decoding_under_the_same_noise_whatever_is_drafted() -> None:
    def stranger(tokens: Sequence[int], pick: Pick) -> list[float]:
        return [
            confidence_after(tokens)
            for _ in range(BLOCK)
            if pick(logits_after(tokens, salt=9)) >= 0
        ]

    for params in (
        SamplingParams(1.0, seed=8, rule=Rule.COUPLED),
        SamplingParams(0.7, 0.9, 9, seed=2**64 - 1, rule=Rule.COUPLED),
    ):
        plain = generate(PROMPT, target, drafter, lambda *_: 0, params, max_tokens=60)
        for source, entries in ((drafter, ENTRIES), (drafter, 2), (stranger, VOCAB)):
            for prefix in (full_block, by_price, lambda anchor, _: anchor % 4):
                run = generate(
                    PROMPT, target, source, prefix, params, max_tokens=60, entries=entries
                )
                assert run.token_ids == plain.token_ids
                if source is drafter:
                    assert sum(made.accepted for made in run.rounds) > 10


def test_a_hand_over_is_replayed_in_its_own_epoch() -> None:
    params = ALL_PARAMS[0]
    first = run_of(full_block, params, 40).rounds[:4]
    last = first[-1]
    last_draft = last.draft_ids[: last.accepted]
    shown = replay(PROMPT, target, first, params, max_tokens=100)
    assert shown[-last.accepted - 1 :] == (*last_draft, last.next_token)
    # where another worker takes over: it prefills these and draws the next token
    committed = (*PROMPT, *shown)
    then = run_of(full_block, params, 20, prompt=committed, epoch=2)
    handed = RecordedRound(
        len(committed) - 1, (), NO_Q, 0, 0, then.token_ids[0], epoch=2, prefilled=True
    )
    rounds = [*first, handed, *then.rounds]
    assert (
        replay(PROMPT, target, rounds, params, max_tokens=len(shown) + 20) == shown + then.token_ids
    )
