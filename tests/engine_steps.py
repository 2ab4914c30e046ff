"""What tests of a verifier's engine begin with: prompts that are taken in, and what is asked of a
round."""

from collections.abc import Sequence
from typing import Any

from dspark.types import Cursor, Refusal, RefusalReason, SamplingParams, SparseQ, Verdict
from verify_service.batch_runner import FeatureRun
from verify_service.sequences import VerifyItem

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [3, 17, 90, 41, 5, 66, 12, 101, 33, 8, 77, 19, 54, 2, 61, 70, 11, 93, 25, 38]


def line_up(
    engine: Any,
    sequence: int,
    prompt: list[int],
    *,
    params: SamplingParams = GREEDY,
    epoch: int = 1,
    longest: int = 0,
    owner: int = 0,
    salt: str = "",
    keep: bool = True,
) -> None:
    """Opens a sequence whose rows are kept, of 60 tokens more than its prompt, unless told
    otherwise."""
    cursor, longest = Cursor(sequence, epoch, 0, len(prompt)), longest or len(prompt) + 60
    assert (
        engine.open(cursor, params, longest, keep, owner=owner, token_ids=prompt, salt=salt) is None
    )


def rows_of(run: object) -> Any:
    """[rows, H] of what a verifier keeps of a sequence, as a tensor."""
    import torch

    assert isinstance(run, FeatureRun), run
    _, count, width, data, _ = run.rows
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(count, width)


def run_all(engine: Any) -> None:
    """All that is in line, by itself."""
    while engine.prefill_next():
        pass
    assert not any(state.broken for state in engine._kv_cache.states.values())


def take_in(engine: Any, sequence: int, prompt: list[int], **more: Any) -> int:
    """Lined up and run; the anchor."""
    line_up(engine, sequence, prompt, **more)
    run_all(engine)
    anchor = engine.first_token(sequence)
    assert isinstance(anchor, int)
    return anchor


def item(
    sequence: int, number: int, tokens: Sequence[int], draft: Sequence[int] = (), epoch: int = 1
) -> VerifyItem:
    """Round `number` behind these tokens, with a draft that its drafter was sure of."""
    cursor = Cursor(sequence, epoch, number, len(tokens))
    return VerifyItem(cursor, tokens[-1], tuple(draft), SparseQ.sure(draft))


def judged(engine: Any, *items: VerifyItem) -> list[Verdict]:
    """The verdicts of a round that refuses nobody."""
    outcomes = engine.judge_cohort(items).outcomes
    verdicts = [each for each in outcomes if isinstance(each, Verdict)]
    assert verdicts == outcomes
    return verdicts


def why(outcome: object) -> RefusalReason:
    assert isinstance(outcome, Refusal), outcome
    return outcome.reason
