"""What engines were asked and what they said, noted at their ports; and whether answers follow from
it.

Under a ratio rule an answer depends on which drafts came and how much of them was looked at. Given
those recorded choices it is determined: the reference loop, over the target alone, must be led to
the same tokens. Draws are named by (seed, choice, epoch, position), and no name may be used for
two; drafts must have been drawn from the q that came with them; rows must be those that the target
alone gives at their positions.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dspark.decoding.philox import Purpose, uniforms
from dspark.decoding.reference import RecordedRound, replay
from dspark.model.checkpoint import load_projection
from dspark.types import NO_Q, Refusal, Rule, SamplingParams, Verdict
from tests.faults import oracle
from tests.faults.pair import DRAFTER

NEARLY = 0.02  # of a row's length: bfloat16, and other orders of sums


@dataclass(slots=True)
class Taken:
    """A sequence as one verifier took it in: what was there, the first token, its rounds."""

    sequence: int
    epoch: int
    params: SamplingParams
    ids: list[int]  # that were prefilled
    first: int | None = None
    # by the position of their anchor
    rounds: dict[int, RecordedRound] = field(default_factory=dict)

    @property
    def given(self) -> tuple[int, ...]:
        """The request's own prompt."""
        return tuple(self.ids[: self.params.prompt_len or len(self.ids)])


class Tape:
    """Of one cell, all its workers and all their lives."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.rows: list[tuple[str, Any]] = []  # (drafter, what was taken in)
        self.problems: list[str] = []  # met while recording

    def clear(self) -> None:
        """Forgets what was noted of sequences that have ended."""
        self.taken.clear()
        self.rows.clear()

    # Recording.

    def verifier(self, engine: Any) -> None:
        """Notes what this engine says from now on; changes nothing."""
        held: dict[int, Taken] = {}

        def opened(
            call: Callable[..., Any], cursor: Any, params: SamplingParams, *args: Any, **more: Any
        ) -> Any:
            said = call(cursor, params, *args, **more)
            if said is None and more.get("token_ids") is not None:
                held[cursor.sequence] = Taken(
                    cursor.sequence, cursor.epoch, params, list(more["token_ids"])
                )
                self.taken.append(held[cursor.sequence])
            return said

        def drawn(call: Callable[..., Any], sequence: int, **more: Any) -> Any:
            said = call(sequence, **more)
            if not isinstance(said, Refusal):
                held[sequence].first = said
            return said

        under_way: dict[int, list[tuple[Taken | None, Any]]] = {}  # by step

        def begun(call: Callable[..., Any], items: Sequence[Any]) -> Any:
            step = call(items)
            under_way[id(step)] = [(held.get(item.cursor.sequence), item) for item in items]
            return step

        def judged(call: Callable[..., Any], step: Any) -> Any:
            said = call(step)
            for (taken, item), verdict in zip(
                under_way.pop(id(step), ()), said.outcomes, strict=True
            ):
                if taken is not None and isinstance(verdict, Verdict):
                    self._judged(taken, item, verdict)
            return said

        _wrap(engine, open=opened, first_token=drawn, begin=begun, end=judged)

    def drafter(self, name: str, engine: Any) -> None:
        """Notes the rows that this engine takes in."""

        def ingested(call: Callable[..., Any], chunks: Sequence[Any]) -> Any:
            self.rows += [(name, chunk) for chunk in chunks]
            return call(chunks)

        _wrap(engine, ingest_many=ingested)

    def _judged(self, taken: Taken, item: Any, verdict: Verdict) -> None:
        at = item.cursor.anchor_position
        prefix = verdict.judged
        made = RecordedRound(
            at, item.draft_ids[:prefix], item.q.prefix(prefix), prefix, verdict.accepted,
            verdict.tokens[-1],
            item.cursor.epoch,
        )  # fmt: skip
        if taken.rounds.setdefault(at, made) != made:
            self.problems.append(f"position {at} was judged twice under epoch {made.epoch}")

    # Judging.

    def problem(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        """What is wrong with the answer to this prompt of nobody else's, or nothing."""
        mine = [one for one in self.taken if one.given == tuple(prompt)]
        if not answer or not mine:
            return "" if not answer else "nobody computed it"
        params = mine[0].params
        if any(one.params != params for one in mine):
            return "its law or its seed changed on the way"
        names = [one.epoch for one in mine]
        if params.rule is not Rule.COUPLED and not params.greedy and len(set(names)) < len(names):
            return f"it was taken in twice under one epoch: {names}"
        if params.greedy or params.rule is Rule.COUPLED:
            return oracle.examine(prompt, answer, params).wrong
        return self._replayed(prompt, answer, params, mine) or next(
            filter(None, map(_drawn, mine)), ""
        )

    def _replayed(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        params: SamplingParams,
        mine: list[Taken],
    ) -> str:
        rounds = _chain([*prompt, *answer], len(prompt), mine)
        if rounds is None:
            return "no recorded choices lead to it"
        first, *others = rounds
        # the first one is the prefill
        told = replay(
            prompt, oracle.logits, others, params, max_tokens=len(answer), epoch=first.epoch
        )
        if told != tuple(answer):
            at = next(
                (n for n, (a, b) in enumerate(zip(told, answer, strict=False)) if a != b), len(told)
            )
            return f"token {at} is not the one that the recorded choices lead to"
        return ""

    def rows_problem(self, texts: Sequence[Sequence[int]]) -> str:
        """What is wrong with rows that drafters took in, given all texts (prompt and answer)."""
        for name, chunk in self.rows:
            fits = [
                text
                for text in texts
                if list(text[chunk.start :][: len(chunk.token_ids)]) == list(chunk.token_ids)
            ]
            if not fits:
                return f"{name} was sent ids at {chunk.start} that stand in no text there"
            if not any(_near(chunk, rows_of(tuple(text))) for text in fits):
                return f"{name} was sent other rows at {chunk.start} than the target gives there"
        return ""


def _chain(tokens: list[int], start: int, mine: list[Taken]) -> list[RecordedRound] | None:
    """A way from the prompt to the end of the text over what was recorded, prefills included; None
    when there is none.

    What was judged and never heard of (its verifier died) is on the tape too, so each step looks
    for one that fits.
    """
    # tokens there, epoch, rounds so far
    stack: list[tuple[int, int, tuple[RecordedRound, ...]]] = [(start, -1, ())]
    while stack:
        there, epoch, so_far = stack.pop()
        if there >= len(tokens):
            return list(so_far)
        for one in sorted(mine, key=lambda each: -each.epoch):
            if (
                one.epoch > epoch
                and len(one.ids) == there
                and one.ids == tokens[:there]
                and one.first == tokens[there]
            ):
                made = RecordedRound(
                    there - 1, (), NO_Q, 0, 0, one.first, one.epoch, prefilled=True
                )
                stack.append((there + 1, one.epoch, (*so_far, made)))
            elif one.epoch == epoch and (kept := one.rounds.get(there - 1)) is not None:
                said = [*kept.draft_ids[: kept.accepted], kept.next_token]
                if said[: len(tokens) - there] == tokens[there : there + len(said)]:
                    stack.append((there + len(said), epoch, (*so_far, kept)))
    return None


def _drawn(taken: Taken) -> str:
    """Whether drafts are those that their q and the draws of their slots give."""
    for at, made in taken.rounds.items():
        if not made.draft_ids or not made.q.entries:
            continue
        ids, probs = made.q.arrays()
        params, slots = taken.params, list(range(1, made.prefix + 1))
        coins = uniforms(
            params.seed, params.choice, params.rule, Purpose.DRAFT, made.epoch, at, slots
        ).ravel()
        for slot, (said, u) in enumerate(zip(made.draft_ids, coins.tolist(), strict=True)):
            ends = np.cumsum(probs[slot].astype(np.float64))
            if said != int(ids[slot, int(np.searchsorted(ends, u * ends[-1], side="right"))]):
                return f"the draft at {at} + {slot + 1} was not drawn from its q"
    return ""


@functools.lru_cache(maxsize=64)
def rows_of(text: tuple[int, ...]) -> torch.Tensor:
    """[T, H] feature rows that the target alone gives."""
    projection = _projection()
    with torch.inference_mode():
        states = oracle.model()(
            input_ids=torch.tensor([text]), use_cache=False, output_hidden_states=True
        )
        taps = [states.hidden_states[layer + 1][0] for layer in projection.target_layer_ids]
        rows: torch.Tensor = projection.project(torch.cat(taps, dim=-1)).float()
    return rows


@functools.cache
def _projection() -> Any:
    return load_projection(DRAFTER)


def _near(chunk: Any, rows: torch.Tensor) -> bool:
    made = chunk.rows.float()
    wanted = rows[chunk.start : chunk.start + len(made)]
    return len(wanted) == len(made) and bool(
        ((made - wanted).norm(dim=1) <= NEARLY * wanted.norm(dim=1)).all()
    )


def _wrap(engine: Any, **around: Callable[..., Any]) -> None:
    """Methods of one engine, each called by what stands around it and known by its own name."""
    for name, wrapper in around.items():
        call = getattr(engine, name)
        setattr(engine, name, functools.wraps(call)(functools.partial(wrapper, call)))
