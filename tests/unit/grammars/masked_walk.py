"""The exact law of several rounds under a grammar, through the verifier's own step and xgrammar's
own matchers.

A tiny target: what follows depends on the last token alone. `walk` drives `PackedRunner` with every
block that a drafter could draw; a sampler that only looks takes the masked rows of a pass, from
which the rule's own functions say what could come of it; then the step runs again for each outcome
and commits it. Matchers are copied as they stand, so that one which was moved where it should not
have been goes on from there.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.masking import bits, first_masked
from dspark.decoding.sampling import SamplingColumns, distribution, draft_distribution
from dspark.decoding.slots import PackedCase, Slots
from dspark.rounds.plan import BlockTerms, PlanKind, prefixes
from dspark.types import (
    NO_Q,
    Constraint,
    ConstraintKind,
    Cursor,
    Rule,
    SamplingParams,
    SparseQ,
    Verdict,
)
from tests.unit.decoding.enumeration import Tokens, by_block, by_token, judged, spread
from tests.unit.grammars.fitting import compiler
from verify_service.batch_runner import BatchRow, PreparedBatch
from verify_service.grammars.matcher import GrammarMatcher
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.model_runner import Pass
from verify_service.packed_runner import PackedRunner
from verify_service.plan import Segment
from verify_service.sampler import judge_each
from verify_service.sequences import CachedSequence, VerifyItem

WORDS = [b"a", b"b", b"ab", b""]  # the last one ends an answer
END = 3
VOCAB, BLOCK, HORIZON = len(WORDS), 2, 4
PROMPT = [0]
GRAMMARS = {
    "regex": Constraint(ConstraintKind.REGEX, "a*b|ba?"),
    "nested": Constraint(ConstraintKind.GRAMMAR, 'root ::= "a" root "b" | ""'),
    "choice": Constraint(ConstraintKind.CHOICE, '["aab", "ab", "b"]'),
}
_RNG = np.random.default_rng(11)
# logits after a token
ROWS = torch.from_numpy(_RNG.normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32))
DRAFT = torch.from_numpy(_RNG.normal(0, 1.2, (VOCAB, VOCAB)).astype(np.float32))
# confidence in a slot, by the two tokens before it
SURE = _RNG.choice([0.3, 0.7, 0.95, 0.95], (VOCAB, VOCAB))
SURE[0, 0] = 0.95  # at the beginning of every answer


@cache
def compiled(name: str) -> Any:
    from verify_service.grammars.compiling import compiled as compile_form

    return compile_form(compiler(WORDS), GRAMMARS[name])


class Recorded:
    """xgrammar's matcher, and the tokens it stands behind."""

    def __init__(self, matcher: Any, behind: Tokens = ()) -> None:
        self._matcher, self.behind = matcher, behind

    def accept_token(self, token: int) -> bool:
        taken: bool = self._matcher.accept_token(token)
        self.behind += (token,) if taken else ()
        return taken

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        self.behind = self.behind[: len(self.behind) - count]

    def fork(self) -> Recorded:
        return Recorded(self._matcher.fork(), self.behind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def matcher_at(name: str, answer: Tokens) -> GrammarMatcher:
    made = GrammarMatcher(compiled(name), [END])
    made._matcher = cast(Any, Recorded(made._matcher))
    made.accept(answer)
    return made


def moved(matcher: GrammarMatcher) -> GrammarMatcher:
    """A copy that stands where it stands."""
    other = copy.copy(matcher)
    other._matcher = matcher._matcher.fork()
    return other


class Table:
    """Keeps `Runner` for a target that looks at the last token alone."""

    path, make, rotation, device = "packed", "table", None, torch.device("cpu")

    def run(self, segments: Sequence[Segment], rows: list[int] | None) -> Pass:
        return Pass(torch.cat([ROWS[list(each.token_ids)] for each in segments]), None)


class Round:
    """One sequence, put where an answer stands; each `run` is one pass of the real step."""

    def __init__(self, params: SamplingParams) -> None:
        self.params, self.numbers = params, itertools.count(1)
        self._kv_cache = KVCacheManager(pages=64, page_size=1, most=2, store=None, kept=0)
        self._sampler: Callable[[Tensor, list[PackedCase]], list[Any]] = judge_each
        self._step = PackedRunner(
            cast(Any, Table()),
            self._kv_cache,
            lambda logits, cases, *_: self._sampler(logits, cases),
        )

    def run(
        self,
        answer: Tokens,
        matcher: GrammarMatcher,
        block: Tokens,
        q: SparseQ,
        sampler: Any = judge_each,
    ) -> tuple[Tokens, GrammarMatcher]:
        """What it committed behind this answer, and the matcher then."""
        tokens = [*PROMPT, *answer]
        cursor = Cursor(1, 1, next(self.numbers), len(tokens))
        state = CachedSequence(1, 1, 0, self.params, 1, False, token_ids=[*tokens], anchored=True)
        state.cached = len(tokens) - 1
        state.matcher = moved(matcher)
        state.matcher.masks(())  # which travels with the order
        self._kv_cache.states[1] = state
        self._kv_cache.pool.open(state, 1, 64, ())
        assert self._kv_cache.grow_within(state, len(tokens), len(block)) == len(block)
        self._sampler = sampler
        item = VerifyItem(cursor, tokens[-1], block, q)
        inputs: Any = self._step.inputs(item, state)
        row = BatchRow(0, item, state, 1 + len(block), inputs)
        batch = PreparedBatch([row], (), 0)
        (outcome,) = self._step.commit(self._step.execute(batch))
        self._kv_cache.pool.release(state)
        assert isinstance(outcome, Verdict), outcome
        return tuple(state.token_ids[len(tokens) :]), state.matcher

    def rows(self, answer: Tokens, matcher: GrammarMatcher, block: Tokens, q: SparseQ) -> Tensor:
        """The masked rows of a pass."""
        seen: list[Tensor] = []

        def look(logits: Tensor, cases: list[PackedCase]) -> list[Any]:
            seen.append(logits.clone())
            return [(0, int(logits[0].argmax()))]

        self.run(answer, matcher, block, q, look)
        return seen[0]


def cut(answer: Tokens) -> Tokens:
    """Up to its end, or the horizon."""
    ends = [place + 1 for place, token in enumerate(answer) if token == END]
    return answer[: min([HORIZON, *ends])]


def over(answer: Tokens) -> bool:
    return len(answer) >= HORIZON or END in answer


def plain(name: str, params: SamplingParams) -> dict[Tokens, float]:
    """Plain decoding under the grammar, as its definition says: every token by a fresh matcher."""

    def moves(answer: Tokens) -> Iterator[tuple[Tokens, float]]:
        allowed = bits(matcher_at(name, answer).masks(()), VOCAB)
        row = torch.where(allowed, ROWS[[[*PROMPT, *answer][-1]]], -torch.inf)
        for token, share in enumerate(distribution(row, SamplingColumns.of([params]))[0].tolist()):
            yield (*answer, token), share

    return spread((), moves, over=over, order=len)


def blocks(
    params: SamplingParams, name: str, answer: Tokens, masks: int
) -> Iterator[tuple[Tokens, float, SparseQ]]:
    """Every block that a drafter could draw, its probability and what is sent of it. masks: slots
    whose draft is masked, from the first on."""

    @cache
    def row(drafted: Tokens) -> tuple[Any, Any]:
        """ids and probabilities [K] float32 of the slot behind these."""
        logits = DRAFT[[[*PROMPT, *answer, *drafted][-1]]]
        made = matcher_at(name, answer).masks(drafted)
        if len(drafted) < min(masks, len(made)):
            logits = first_masked(logits, [made[-1].tobytes()])
        ids, probs = draft_distribution(logits, SamplingColumns.of([params]), VOCAB)
        return ids[0].numpy(), probs[0].numpy()

    for block in itertools.product(range(VOCAB), repeat=BLOCK):
        sent = [row(block[:k]) for k in range(BLOCK)]
        chance = math.prod(
            float(probs[ids == token].sum(dtype=np.float64) / probs.sum(dtype=np.float64))
            for token, (ids, probs) in zip(block, sent, strict=True)
        )
        if chance > 0.0:
            ids, probs = map(np.stack, zip(*sent, strict=True))
            yield block, chance, SparseQ.of(ids.astype(np.uint32), probs)


def prefix_of(answer: Tokens, block: Tokens) -> int:
    """Slots verified: a function of what was drafted before each of them."""
    said = [PROMPT[0], *PROMPT, *answer, *block]
    sure = [float(SURE[said[len(answer) + k], said[len(answer) + k + 1]]) for k in range(BLOCK)]
    return prefixes([sure], [BlockTerms(PlanKind.THRESHOLD, BLOCK, 0.5)])[0]


def outcomes(rule: Rule, p: Tensor, block: Tokens, q: SparseQ) -> Iterator[tuple[int, int, float]]:
    """(accepted, next token, probability) of a pass: p [l + 1, V] float64."""
    if not block:
        return by_token([], [], p[0].tolist())
    ids, probs = q.arrays()
    slots = Slots.of([block], [ids.ravel()], [probs.ravel()], [q.entries])
    ((chances, after),) = judged(rule, p[:-1], slots)
    by = by_token if rule is Rule.TOKEN else by_block
    return by(chances, after, p[len(chances)].tolist())


State = tuple[Tokens, Tokens]  # an answer, and what its matcher stands behind


def emitted(
    name: str, params: SamplingParams, masks: int, lengths: set[int]
) -> dict[Tokens, float]:
    """Probability of every answer, over all blocks and all coins, round after round. lengths: of
    prefixes, noted."""
    first: State = (), ()
    here, stands = Round(params), {first: matcher_at(name, ())}

    def moves(state: State) -> Iterator[tuple[State, float]]:
        answer, matcher = state[0], stands[state]
        for block, drawn, q in blocks(params, name, answer, masks):
            lengths.add(prefix := prefix_of(answer, block))
            block, sent = block[:prefix], q.prefix(prefix) if prefix else NO_Q
            p = distribution(here.rows(answer, matcher, block, sent), SamplingColumns.of([params]))
            for accepted, token, share in outcomes(params.rule, p, block, sent):
                if share > 0.0:
                    said, after = here.run(
                        answer, matcher, block, sent, lambda *_, to=(accepted, token): [to]
                    )
                    longer = cut((*answer, *said))
                    behind = () if over(longer) else cast(Recorded, after._matcher).behind
                    stands.setdefault((longer, behind), after)
                    yield (longer, behind), drawn * share

    ended = spread(
        first, moves, over=lambda state: over(state[0]), order=lambda state: len(state[0])
    )
    return {answer: chance for (answer, _), chance in ended.items()}
