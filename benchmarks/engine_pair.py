"""Both engines in this process, taking turns as a round does, without a coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.pair import Pair
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from draft_service.interface import DraftItem, Rows
from dspark.types import Block, Cursor, Refusal, Rule, SamplingParams, Verdict
from dspark.wire import tensors
from dspark.wire.v1 import types_pb2
from verify_service.batch_runner import FeatureRun
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.sampler import Sampler, judge_each
from verify_service.sequences import VerifyItem

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class EngineAnswer:
    """One answer in progress."""

    cursor: Cursor
    params: SamplingParams
    tokens: list[int]  # the prompt and what was committed
    prompt_len: int


class EnginePair:
    """A verifier's and a drafter's engine. Raises RuntimeError when an engine refuses.

    forms: number formats in which feature rows travel; the drafter holds every sequence once for
    each. Without any, rows are passed on as they are.
    """

    def __init__(
        self, verifier: VerifyEngine, drafter: DraftEngine, forms: Sequence[str] = ()
    ) -> None:
        self.verifier, self.drafter = verifier, drafter
        self._forms = tuple(forms) or ("",)

    @staticmethod
    def load(
        pair: Pair,
        sequences: int,
        tokens: int,
        forms: Sequence[str] = (),
        sampler: Sampler = judge_each,
        **verify: Any,
    ) -> EnginePair:
        """Loads both engines. tokens: slots of each pool, together. verify: further settings."""
        models: dict[str, Any] = {
            "target": str(pair.target),
            "drafter": str(pair.drafter),
            "measure_cost": False,
        }
        told = VerifyConfig(
            **models, kv_tokens=tokens, max_sequences=sequences, prefix_cache=False, **verify
        )
        held = max(len(forms), 1)
        asked = DraftConfig(**models, context_tokens=held * tokens, max_sequences=held * sequences)
        return EnginePair(VerifyEngine.load(told, sampler), DraftEngine.load(asked), forms)

    def begin(
        self, number: int, prompt: Sequence[int], params: SamplingParams, room: int
    ) -> EngineAnswer:
        """Runs the prefill of a prompt, with room for `room` more tokens; its first round is
        next."""
        params, start = replace(params, prompt_len=len(prompt)), Cursor(number, 1, 0, len(prompt))
        longest = len(prompt) + room
        self._opened(
            self.verifier.open(start, params, longest, True, token_ids=prompt), start, longest
        )
        while self.verifier.prefill_next():
            continue
        anchor = self.verifier.first_token(number)
        assert isinstance(anchor, int), anchor
        answer = EngineAnswer(_anchored(start), params, [*prompt, anchor], len(prompt))
        self._push([(answer.cursor, 0)])
        return answer

    def pretend(self, number: int, context: int, room: int) -> EngineAnswer:
        """An answer behind `context` tokens that were never computed. For timing only."""
        start, longest = Cursor(number, 1, 0, context), context + room
        self._opened(self.verifier.pretend(start, GREEDY, longest), start, longest)
        rows = torch.ones(context, self.drafter.drafter.width)
        for held in self._held(start):
            self.drafter.ingest(held.sequence, held.epoch, 0, [0] * context, rows)
        return EngineAnswer(_anchored(start), GREEDY, [0] * (context + 1), context)

    def draft(
        self,
        answers: Iterable[EngineAnswer],
        slots: int = 0,
        *,
        form: str | None = None,
        missing: int = 0,
        rule: Rule | None = None,
    ) -> list[Block]:
        """Drafts a block for each answer. missing: newest context rows that the drafter does
        without. rule: in place of the answer's own."""
        place = 0 if form is None else self._forms.index(form)
        asked = [
            DraftItem(
                self._held(each.cursor)[place],
                each.tokens[-1],
                max(each.cursor.anchor_position - missing, 1),
                each.params if rule is None else replace(each.params, rule=rule),
                slots,
            )
            for each in answers
        ]
        blocks = self.drafter.draft(asked)
        if empty := next((block for block in blocks if not block.token_ids), None):
            raise RuntimeError(f"nothing was drafted: {empty.empty_reason.name}")
        return blocks

    def judge(self, answers: Sequence[EngineAnswer], blocks: Sequence[Block]) -> int:
        """Verifies whole blocks, commits, and passes the rows on. Returns the tokens committed by
        all."""
        items = [
            VerifyItem(each.cursor, each.tokens[-1], block.token_ids, block.q)
            for each, block in zip(answers, blocks, strict=True)
        ]
        committed, pushed = 0, []
        for each, verdict in zip(answers, self.verifier.judge_cohort(items).outcomes, strict=True):
            if not isinstance(verdict, Verdict):
                raise RuntimeError(f"not judged: {verdict}")
            start = each.cursor.anchor_position
            each.tokens += verdict.tokens
            each.cursor = each.cursor._replace(
                round=each.cursor.round + 1, committed_len=len(each.tokens)
            )
            pushed.append((each.cursor, start))
            committed += len(verdict.tokens)
        self._push(pushed)
        return committed

    def release(self, answers: Iterable[EngineAnswer]) -> None:
        for each in answers:
            self.verifier.release(each.cursor.sequence, each.cursor.epoch)
            for held in self._held(each.cursor):
                self.drafter.contexts.release(held.sequence, held.epoch)

    def _held(self, cursor: Cursor) -> list[Cursor]:
        """The drafter's own sequence for each form of rows."""
        count = len(self._forms)
        return [cursor._replace(sequence=cursor.sequence * count + place) for place in range(count)]

    def _opened(self, refusal: Refusal | None, start: Cursor, longest: int) -> None:
        for problem in (refusal, *(self.drafter.open(held, longest) for held in self._held(start))):
            if problem is not None:
                raise RuntimeError(f"a sequence was refused: {problem.message}")

    def _push(self, asked: Iterable[tuple[Cursor, int]]) -> None:
        """Gives the drafter each sequence's rows from a position on, once for each form."""
        chunks = []
        for cursor, start in asked:
            made = self.verifier.features(cursor, start)
            assert isinstance(made, FeatureRun), made
            count = len(made.token_ids)
            for form, held in zip(self._forms, self._held(cursor), strict=True):
                rows = self.drafter.read_rows(types_pb2.TensorChunk(**made.rows.chunk()), count)
                if form:
                    rows = self.drafter.read_rows(tensors.write_rows(rows, form), count)
                chunks.append(Rows(held.sequence, held.epoch, made.start, rows, made.token_ids))
        for told in self.drafter.ingest_many(chunks):
            assert isinstance(told, int), told


def _anchored(start: Cursor) -> Cursor:
    return start._replace(round=1, committed_len=start.committed_len + 1)
