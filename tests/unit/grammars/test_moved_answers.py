"""An answer in a form that goes on elsewhere, after a kill, a preemption or a resumption, is the
one it was.

At the verifier all three are the same: its tokens so far come as a prompt, under the next epoch.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from engine_steps import item, judged, line_up, run_all
from fitting import of

from dspark.types import NO_Q, Constraint, ConstraintKind, Refusal, Rule, SamplingParams
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
PROMPT = [70, 71, 72]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
}
FORM = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
LONGEST = 40
ALL_PARAMS = [
    SamplingParams(0.0, prompt_len=3, constraint=FORM),
    SamplingParams(1.0, seed=5, rule=Rule.COUPLED, prompt_len=3, constraint=FORM),
]


@pytest.fixture(scope="module")
def engine() -> VerifyEngine:
    return VerifyEngine.load(VerifyConfig(target=str(TARGET), kv_tokens=1024, measure_cost=False))


NUMBERS = itertools.count(1)


def begin(
    engine: VerifyEngine, params: SamplingParams, tokens: list[int], epoch: int, number: int
) -> int | Refusal:
    """Its tokens so far, then the next one."""
    line_up(engine, number, tokens, params=params, epoch=epoch, longest=3 + LONGEST + 8, keep=False)
    run_all(engine)
    assert params.constraint is not None
    return engine.first_token(
        number, epoch=epoch, grammar=of(engine.compile(params.constraint, ""))
    )


def said(engine: VerifyEngine, params: SamplingParams, moves_at: set[int], slots: int) -> list[int]:
    """An answer that is taken elsewhere when it has so many tokens; wrong tokens are drafted behind
    every anchor."""
    number, epoch, answer, round_ = next(NUMBERS), 1, list[int](), 0
    anchor = begin(engine, params, PROMPT, epoch, number)
    while True:
        assert isinstance(anchor, int)
        answer.append(anchor)
        if 0 in answer or len(answer) >= LONGEST:
            break
        if len(answer) in moves_at:
            engine.release(number, epoch)
            epoch += 1
            anchor = begin(engine, params, [*PROMPT, *answer], epoch, number)
            continue
        round_ += 1
        drafts = tuple((7 * len(answer) + k) % 512 for k in range(slots))
        step = item(number, round_, [*PROMPT, *answer], drafts, epoch)
        (outcome,) = judged(engine, step if params.greedy else step._replace(q=NO_Q))
        answer += drafts[: outcome.accepted]
        anchor = outcome.tokens[-1]
    engine.release(number, epoch)
    return answer[:LONGEST]


@pytest.mark.parametrize("params", ALL_PARAMS, ids=["greedy", "coupled"])
def test_wherever_an_answer_moves_it_stays_the_same(
    params: SamplingParams, engine: VerifyEngine
) -> None:
    alone = said(engine, params, set(), 0)
    assert len(alone) > 8
    for moves_at, slots in (({1}, 0), ({2, 5, 6}, 3), (set(range(1, LONGEST)), 2), (set(), 4)):
        assert said(engine, params, moves_at, slots) == alone
    from tokenizers import Tokenizer

    text: Any = Tokenizer.from_file(str(TARGET / "tokenizer.json")).decode(alone)
    if alone[-1] == 0:
        assert set(json.loads(text)) == {"a", "b"}


def test_what_does_not_fit_its_form_cannot_be_gone_on_with(engine: VerifyEngine) -> None:
    refused = begin(engine, ALL_PARAMS[0], [*PROMPT, 65, 66], 1, next(NUMBERS))
    assert isinstance(refused, Refusal)
    assert refused.message.startswith("constraint: ")
