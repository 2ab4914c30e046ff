"""The engine by itself: features are projected taps, rows of rejected tokens never leave, room
always comes back."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dspark.model.checkpoint import load_drafter, load_target
from dspark.model.target import TargetTaps
from dspark.types import NO_Q, Cursor, RefusalReason, Rule, SamplingParams, SparseQ, Verdict
from tests.engine_steps import GREEDY, PROMPT, item, judged, line_up, rows_of, take_in, why
from verify_service.batch_runner import FeatureRun
from verify_service.engine import VerifyEngine


def direct_rows(target: Path, drafter: Path, ids: list[int]) -> torch.Tensor:
    """Projected taps by one plain forward of the whole sequence."""
    model, projection = load_target(target).model, load_drafter(drafter)
    with torch.inference_mode(), TargetTaps(model, projection.target_layer_ids) as taps:
        model(input_ids=torch.tensor([ids]), use_cache=False)
        return projection.project(taps.collect()[0])


@pytest.mark.parametrize("ahead", [False, True], ids=["processor", "card"])
def test_feature_rows_are_the_projected_taps_of_committed_tokens_only(
    engine: VerifyEngine, golden_target: Path, golden_drafter: Path, ahead: bool
) -> None:
    """On a card they are projected before it is known which of them are committed."""
    engine._step._ahead = ahead
    tokens = [*PROMPT, take_in(engine, 1, PROMPT)]
    first = [3, 17, 90, take_in(engine, 2, [3, 17, 90])]  # of who comes first in the pass
    pushed: list[FeatureRun] = []
    for number in range(1, 9):
        # One right token would need the oracle; any draft will do, most of it is rejected.
        draft = [7 * number % 128, 9, 11]
        other, verdict = judged(
            engine, item(2, number, first, draft[1:]), item(1, number, tokens, draft)
        )
        first += other.tokens
        tokens += verdict.tokens
        rows = engine.features(
            Cursor(1, 1, number + 1, len(tokens)), len(tokens) - 2 - verdict.accepted
        )
        assert len(rows.token_ids) == verdict.accepted + 1
        pushed.append(rows)
    expected = direct_rows(golden_target, golden_drafter, tokens[:-1])
    got = torch.cat([rows_of(rows) for rows in pushed]).float()
    torch.testing.assert_close(got, expected[len(PROMPT) :], rtol=1e-2, atol=1e-2)  # bf16
    assert [token for rows in pushed for token in rows.token_ids] == tokens[len(PROMPT) : -1]

    whole = engine.features(Cursor(1, 1, 9, len(tokens)), 3)
    assert (whole.start, whole.token_ids) == (3, tokens[3:-1])
    torch.testing.assert_close(rows_of(whole).float(), expected[3:], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(rows_of(whole)[len(PROMPT) - 3 :].float(), got, rtol=0, atol=0)


def test_a_packed_cohort_decides_as_each_would_alone_whatever_the_law(engine: VerifyEngine) -> None:
    all_params = [
        GREEDY,
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(0.0, presence_penalty=1.5, logit_bias=((9, 100.0),), prompt_len=8),
        SamplingParams(temperature=0.7, top_k=5, seed=4),
        SamplingParams(temperature=1.5, seed=5),
    ]
    draws = np.random.default_rng(1)
    drafts = [[int(t) for t in draws.integers(0, 128, n)] for n in range(len(all_params))]
    items = []
    for base in (0, 100):  # the same sequences twice: once for company, once alone
        for n, params in enumerate(all_params):
            prompt = PROMPT[: 4 + 2 * n]
            anchor = take_in(engine, base + n, prompt, params=params)
            items.append(item(base + n, 1, [*prompt, anchor], drafts[n]))
    cohort, apart = items[: len(all_params)], items[len(all_params) :]
    for one, alone in zip(judged(engine, *cohort), apart, strict=True):
        (other,) = judged(engine, alone)
        assert one.tokens == other.tokens


@pytest.mark.parametrize("ahead", [False, True], ids=["processor", "card"])
def test_rows_of_plain_rounds_are_there_when_they_are_asked_for(
    engine: VerifyEngine, golden_target: Path, golden_drafter: Path, ahead: bool
) -> None:
    engine._step._ahead = ahead
    tokens, other = [*PROMPT, take_in(engine, 1, PROMPT)], [3, 17, 90, 41, 5]
    for number in range(1, 6):
        draft = [9, 11] if number == 3 else []
        if number == 2:
            line_up(engine, 2, other)  # its prompt rides with the rounds
        (verdict,) = judged(engine, item(1, number, tokens, draft))
        tokens += verdict.tokens
    other.append(engine.first_token(2))
    for sequence, round, ids in ((1, 5, tokens), (2, 0, other)):
        whole = engine.features(Cursor(sequence, 1, round, len(ids)), 0)
        assert whole.token_ids == ids[:-1]
        expected = direct_rows(golden_target, golden_drafter, ids[:-1])
        torch.testing.assert_close(
            rows_of(whole).float(), expected, rtol=1e-2, atol=1e-2, msg=f"bf16, of {sequence}"
        )


@pytest.mark.parametrize("rule", list(Rule))
def test_a_block_that_cannot_have_been_drafted_is_judged_as_an_empty_one(
    engine: VerifyEngine, rule: Rule
) -> None:
    law = SamplingParams(seed=3, rule=rule)
    said: list[list[Verdict]] = []
    for first in (1, 4):  # the same three sequences twice
        sound, other, last = (
            item(number, 1, [*PROMPT, take_in(engine, number, PROMPT, params=law)], [9, 11])
            for number in range(first, first + 3)
        )
        if rule is Rule.COUPLED:
            sound, last = (each._replace(q=NO_Q) for each in (sound, last))
            wrong = other
        else:
            wrong = other._replace(q=SparseQ.sure([9, 12]))
        verdicts = judged(
            engine, sound, wrong if first == 1 else other._replace(draft_ids=(), q=NO_Q), last
        )
        assert [(each.judged, each.spoilt) for each in verdicts] == [
            (2, False),
            (0, first == 1),
            (2, False),
        ]
        said.append([each._replace(spoilt=False) for each in verdicts])
    assert said[0] == said[1]
    assert len(rows_of(engine.features(Cursor(2, 1, 2, len(PROMPT) + 2), 0))) == len(PROMPT) + 1


def test_sequences_that_do_not_keep_features_cannot_be_resent(engine: VerifyEngine) -> None:
    take_in(engine, 1, PROMPT, keep=False)
    assert engine.features(Cursor(1, 1, 1, len(PROMPT) + 1), 0) is None


def test_cohorts_larger_than_a_pass_are_judged_in_turns(load: Callable[..., VerifyEngine]) -> None:
    small = load(kv_tokens=2048, max_batch_tokens=5)
    items = [item(n, 1, [*PROMPT, take_in(small, n, PROMPT)], [9, 9]) for n in range(4)]
    made = small.judge_cohort(items)
    assert made.tokens == 12
    assert len({o.tokens for o in made.outcomes if isinstance(o, Verdict)}) == 1
    assert [type(each) for each in made.outcomes] == [Verdict] * 4


def test_an_unfinished_prefill_is_not_verified_and_returns_its_pages(engine: VerifyEngine) -> None:
    line_up(engine, 1, PROMPT[:8], longest=40)
    assert engine.prefill_next()
    (early,) = engine.judge_cohort([item(1, 1, [*PROMPT[:8], 5])]).outcomes
    assert why(early) is why(engine.first_token(1)) is RefusalReason.UNKNOWN_SEQUENCE
    assert engine.release(1, 1)
    assert engine.held.pages_held == 0


def test_logits_that_are_not_numbers_refuse_their_own_row(
    engine: VerifyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [item(n, 1, [*PROMPT, take_in(engine, n, PROMPT)], [9]) for n in range(3)]
    run = engine._runner.run

    def spoil(segments, rows):  # type: ignore[no-untyped-def]
        result = run(segments, rows)
        logits = result.logits.clone()
        logits[2:4] = float("nan")
        return result._replace(logits=logits)

    with monkeypatch.context() as patched:
        patched.setattr(engine._runner, "run", spoil)
        outcomes = engine.judge_cohort(items).outcomes
    assert why(outcomes[1]) is RefusalReason.INTERNAL
    assert [type(outcome) for outcome in outcomes[::2]] == [Verdict, Verdict]
    assert judged(engine, items[1]), "the row stands where it stood"
