"""Laws that shape logits in the engine: what is counted, what survives a hand-over, what is
refused, what is told."""

from pathlib import Path
from typing import Any

import pytest

from dspark.decoding.shaping import Shaper
from dspark.types import Cursor, Refusal, RefusalReason, SamplingParams, Verdict
from tests.engine_steps import item, judged, take_in, why
from tests.faults import oracle
from tests.wire_law.expected import next_law
from verify_service.engine import VerifyEngine

PROMPT = [3, 17, 90, 41, 5, 66, 12, 101, 33, 8, 77]
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 1.0}
LAW = {**PENALTIES, "logit_bias": {9: 1.0}, "temperature": 1.0}  # the likeliest is so at 0 too
SHAPED = SamplingParams(0.0, **PENALTIES, logit_bias=((9, 1.0),), prompt_len=11)


def plain_greedy(target: Path, count: int) -> list[int]:
    """Token by token over whole forwards, by the definition."""
    said: list[int] = []
    for _ in range(count):
        (row,) = oracle.logits([*PROMPT, *said], 1, target)
        said.append(int(next_law(row.double().numpy(), PROMPT, said, LAW).argmax()))
    return said


def test_drafts_are_judged_as_if_each_token_had_been_said_before_the_next(
    engine: VerifyEngine, golden_target: Path
) -> None:
    wanted = plain_greedy(golden_target, 14)
    tokens = [*PROMPT, take_in(engine, 1, PROMPT, params=SHAPED)]
    for number in range(1, 4):
        at = len(tokens) - len(PROMPT)
        draft = [*wanted[at : at + 3], 1]  # three right ones, and most likely a wrong one
        verdict = judged(engine, item(1, number, tokens, draft))[0]
        assert verdict.accepted >= 3
        tokens += verdict.tokens
    assert tokens[len(PROMPT) :][:13] == wanted[:13]


def test_a_hand_over_counts_commits_as_answer(engine: VerifyEngine, golden_target: Path) -> None:
    wanted = plain_greedy(golden_target, 10)
    tokens = [*PROMPT, *wanted[:6]]
    anchor = take_in(engine, 1, tokens, params=SHAPED, epoch=2)
    assert anchor == wanted[6]
    assert judged(engine, item(1, 1, [*tokens, anchor], [], epoch=2))[0].tokens[-1] == wanted[7]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias=((128, 1.0),)), "sampling.logit_bias"),
        (SamplingParams(min_tokens=1, stop_token_ids=(2**32 - 1,)), "sampling.stop_token_ids"),
        (SamplingParams(min_tokens=1, stop_token_ids=tuple(range(128))), "sampling.min_tokens"),
    ],
)
def test_a_law_of_another_vocabulary_is_refused_by_field(
    engine: VerifyEngine, params: SamplingParams, field: str
) -> None:
    refused = engine.open(Cursor(1, 1, 0, 3), params, 20, False, token_ids=[1, 2, 3])
    assert (refused.reason, refused.message.split(":")[0]) == (RefusalReason.INVALID, field)
    assert engine.held.sequences == 0


@pytest.mark.parametrize("broken", ["follow", "changes"])
def test_a_bug_at_one_sequence_refuses_it_and_nobody_else(
    engine: VerifyEngine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    all_params = {
        1: SamplingParams(0.0),
        2: SHAPED,
        3: SamplingParams(0.0, presence_penalty=0.5, prompt_len=11),
    }
    tokens = {
        sequence: [*PROMPT, take_in(engine, sequence, PROMPT, params=params)]
        for sequence, params in all_params.items()
    }
    inner = getattr(Shaper, broken)

    def fails(self: Shaper, *arguments: Any, **options: Any) -> Any:
        if self.params is SHAPED:
            raise IndexError("a bug")
        return inner(self, *arguments, **options)

    items = [item(s, 1, tokens[s]) for s in all_params]
    with monkeypatch.context() as patch:
        patch.setattr(Shaper, broken, fails)
        outcomes = engine.judge_cohort(items).outcomes
    assert [type(outcome) for outcome in outcomes] == [Verdict, Refusal, Verdict]
    assert why(outcomes[1]) is RefusalReason.INTERNAL
    assert judged(engine, items[1]), "it stands where it stood"
