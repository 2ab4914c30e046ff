"""The lossless acceptance rules: which one judges a sequence, and what all of them share.

`token` and `block` are ratio rules, exact for the distribution; `coupled` repeats plain decoding
under the same noise. At temperature 0 all three are greedy matching, whatever q is. Rules compute
in float64. Noise is keyed by `philox` (invariant 4).

Symbols: l drafted tokens of one sequence, which owns l + 1 rows of a packed pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from dspark.decoding.block_rule import longest, note_blocks
from dspark.decoding.coupled_rule import first_coupled, judge_coupled
from dspark.decoding.draws import DrawsWatch as DrawsWatch
from dspark.decoding.judge_at_once import Verdicts, judge_at_once
from dspark.decoding.philox import Purpose, key_of, uniforms
from dspark.decoding.ratio import judge_ratio
from dspark.decoding.ratio import residual as residual
from dspark.decoding.sampling import SamplingColumns, best, distribution, draw
from dspark.decoding.shaping import Shaper, shaped
from dspark.decoding.slots import PackedCase as PackedCase
from dspark.decoding.slots import take
from dspark.decoding.token_rule import accept_probability as accept_probability
from dspark.decoding.token_rule import leading_run, note_tokens
from dspark.types import Cursor, Rule, SamplingParams


def judge(
    logits: Tensor,
    cases: Sequence[PackedCase],
    near_ties: Counter[int] | None = None,
    watch: DrawsWatch | None = None,
) -> Verdicts:
    """(accepted, next token) of every sequence of a packed pass: logits [T, V] of any float dtype.

    Under the coupled rule `near_ties` counts, by sequence, positions that rounding could decide
    otherwise; under the ratio rules `watch` records the draws. Raises FloatingPointError when the
    logits of any case are not numbers.
    """
    if any(case.shaper is not None for case in cases):
        logits = shaped(logits, ((case.first_row, case.draft_ids, case.shaper) for case in cases))
    if logits.device.type != "cpu":
        return judge_at_once(logits, cases, near_ties, watch)
    ways: dict[Callable[[Tensor, Sequence[PackedCase]], Verdicts], list[int]] = {}
    by_rule = {
        Rule.TOKEN: partial(judge_ratio, decide=leading_run, note=note_tokens, watch=watch),
        Rule.BLOCK: partial(judge_ratio, decide=longest, note=note_blocks, watch=watch),
        Rule.COUPLED: partial(judge_coupled, near_ties=near_ties),
    }
    for index, case in enumerate(cases):
        ways.setdefault(
            _judge_greedy if case.params.greedy else by_rule[case.params.rule], []
        ).append(index)
    verdicts: Verdicts = [(0, 0)] * len(cases)
    for way, chosen in ways.items():
        for index, verdict in zip(chosen, way(logits, [cases[i] for i in chosen]), strict=True):
            verdicts[index] = verdict
    return verdicts


def first_token(
    logits: Tensor, params: SamplingParams, cursor: Cursor, shaper: Shaper | None = None
) -> int:
    """The token a prefill adds: logits [V] of its last position; cursor.committed_len counts the
    tokens of the prefill."""
    rows = shaped(logits.unsqueeze(0), [(0, (), shaper)])
    if params.greedy:
        return int(best(rows))
    probs = distribution(rows, SamplingColumns.of([params], logits.device))
    if params.rule is Rule.COUPLED:
        return first_coupled(probs, params, cursor)
    u = uniforms(*key_of(params, cursor, Purpose.EMIT), [0])
    return int(draw(probs, torch.from_numpy(u).to(probs.device)))


def _judge_greedy(logits: Tensor, cases: Sequence[PackedCase]) -> Verdicts:
    """Greedy matching: no softmax, and q does not matter."""
    rows = [case.first_row + slot for case in cases for slot in range(len(case.draft_ids) + 1)]
    top = best(take(logits, rows)).tolist()
    verdicts, row = [], 0
    for case in cases:
        accepted = 0
        for token in case.draft_ids:
            if token != top[row + accepted]:
                break
            accepted += 1
        verdicts.append((accepted, int(top[row + accepted])))
        row += len(case.draft_ids) + 1
    return verdicts
