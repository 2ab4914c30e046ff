"""The acceptance rule as a verifier applies it: shaping, masks, and judging so that a bad case does
not affect other verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from dspark.decoding.acceptance import DrawsWatch, PackedCase, judge
from dspark.decoding.logprobs import token_logprobs
from dspark.decoding.masking import Masks, Matcher
from dspark.decoding.shaping import Shaper
from dspark.errors import DsparkError
from dspark.types import Refusal, RefusalReason, SamplingParams, ScoredToken
from verify_service.batch_runner import Grammar, TooSlow
from verify_service.sequences import CachedSequence, VerifyItem, failed, invalid

_SLOW = invalid("constraint: finding out what may come next takes too long")


def shaper_of(state: CachedSequence) -> Shaper | None:
    """The sequence's logit shaper, advanced to its committed tokens; None if its parameters do not
    change logits."""
    if not state.params.shapes:
        return None
    if state.shaper is None:
        state.shaper = Shaper(state.params)
    return state.shaper.follow(state.token_ids)


def matcher_of(state: CachedSequence, grammar: Grammar | None) -> Matcher | Refusal | None:
    """A matcher advanced past the committed answer; None without a constraint."""
    if state.params.constraint is None:
        return None
    if grammar is None:
        return invalid("constraint: it is not compiled")
    matcher = grammar()
    try:
        matcher.accept(state.token_ids[state.given :])
    except ValueError as error:
        return invalid(f"constraint: {error}")
    return _SLOW if matcher.too_slow else matcher


def told(
    params: SamplingParams, logits: Tensor, token_ids: Sequence[int]
) -> tuple[ScoredToken, ...]:
    """Log-probabilities of m next tokens from the leading rows of logits [m or more, V]; empty if
    not requested."""
    return (
        ()
        if params.logprobs is None
        else token_logprobs(logits[: len(token_ids)], token_ids, params.logprobs)
    )


def masks_of(state: CachedSequence, item: VerifyItem) -> Masks | Refusal | None:
    """Masks of allowed tokens after the first 0, 1, ... drafted ones; None without a grammar."""
    if state.matcher is None:
        return None
    try:
        return _SLOW if state.matcher.too_slow else state.matcher.masks(item.draft_ids)
    except TooSlow:
        return _SLOW


Decided = tuple[int, int] | Refusal  # number of accepted drafted tokens, the next token

# Decides the cases of a packed pass from its logits [T, V]; counts near-ties by sequence and passes
# draws to the watch.
Sampler = Callable[
    [Tensor, list[PackedCase], Counter[int] | None, DrawsWatch | None], list[Decided]
]


def judge_each(
    logits: Tensor,
    cases: list[PackedCase],
    near_ties: Counter[int] | None = None,
    watch: DrawsWatch | None = None,
) -> list[Decided]:
    """Applies the rule to all cases at once, or one by one if that raises.

    Counts near-ties by sequence and passes draws to `watch`, except when cases run one by one.
    """
    try:
        return list(judge(logits, cases, near_ties, watch))
    except Exception:  # NaN logits, or a bug: one by one, to find its case
        decided: list[Decided] = []
    if watch is not None:
        watch.clear()
    for case in cases:  # here, as an exception that is handled holds the tensors of its frames
        try:
            decided.extend(judge(logits, [case]))
        except FloatingPointError:
            decided.append(Refusal(RefusalReason.INTERNAL, "the target's logits are not numbers"))
        except DsparkError as error:
            decided.append(invalid(str(error)))
        except Exception as error:
            decided.append(failed(case.cursor.sequence, error))
    return decided
