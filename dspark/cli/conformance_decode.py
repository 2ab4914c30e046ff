"""Decode cases: whole greedy runs through both engines as they are served, and a plan's threshold.

All runs of a file advance together, one cohort per round, with prompts prefilled in those rounds;
see `conformance_served`. Rounds are counted as by the reference: the token from the prefill is no
round, the last round may overshoot, and a stop token inside the accepted draft ends the run there,
without a bonus.

A known file of cases is accepted only with the tensors it was recorded with, in any layout: a case
holds ids and lengths alone, which a small change of a weight need not change.

The rooms are imported when cases run, so the signatures here have `Any` in place of their types.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.cli.conformance_model import copies_differ
from dspark.cli.conformance_served import (
    PAGE,
    calibrated_copy,
    calibrated_threshold,
    load_draft,
    load_verify,
    send_rows,
    served,
)
from dspark.errors import CheckpointError
from dspark.model.checkpoint import LoadedTarget
from dspark.model.family import Drafter
from dspark.model.weights_file import SINGLE_NAME, read_file
from dspark.types import Block, Cursor, SamplingParams, SparseQ, Verdict

GREEDY = SamplingParams(temperature=0.0)
MARGIN = 2  # room past a last round that overshoots by a whole block
TURNS = 2  # the second finds the prompts of the first in the prefix cache
REST = 4  # the round before which the drafter loses its context
QWEN3_TARGET, GEMMA4_TARGET = "6b99fb1e12d8549f", "673d37c4e931962e"
# Decode cases -> (tensors of the drafter, tensors of the target).
RECORDED: Mapping[str, tuple[str, str]] = {
    "15bd3e654984a830": ("b1c314d94331ee3d", QWEN3_TARGET),  # dflash
    "e2c063d444550869": ("0ecb1cbf519757fc", GEMMA4_TARGET),  # dflash_gemma4
    "a3c457ecae8f1504": ("ede0d05c09bddcfc", QWEN3_TARGET),  # dspark_confidence_without_markov
    "fbcd12a5b68868c6": ("ee564234e10e30c8", QWEN3_TARGET),  # dspark_gated
    "c53f1c50d8f38891": ("a6f5bd8ad9b35400", GEMMA4_TARGET),  # dspark_gemma4
    "6e4578b2ba1ab47e": ("96a9d9aef60843f4", QWEN3_TARGET),  # dspark_rnn
    "8f01a00ca15b827f": ("1f739a45c86622e3", QWEN3_TARGET),  # dspark_vanilla
    "ee5236cdaa677b0b": ("4e4b455c13f67101", QWEN3_TARGET),  # eagle3
    "9c2843edeb80e738": ("db394a03e99995dc", GEMMA4_TARGET),  # eagle3_gemma4
}


@dataclasses.dataclass
class CaseRun:
    """The state of one case as it runs."""

    cursor: Cursor
    end: int  # prompt and new tokens
    stops: frozenset[int]
    threshold: float
    ids: list[int]
    stopped: bool = False
    refused: str | None = None  # why an engine would not serve it
    acceptance_lengths: list[int] = dataclasses.field(default_factory=list)
    proposal_lengths: list[int] = dataclasses.field(default_factory=list)
    accepted_draft_lengths: list[int] = dataclasses.field(default_factory=list)

    @property
    def going(self) -> bool:
        """Whether another round is due: the anchor's index is below the end, and no stop came."""
        return not self.stopped and not self.refused and len(self.ids) - 1 < self.end

    def take(self, tokens: Sequence[int], drafted: int) -> None:
        """Counts one round and commits what it drew, up to a stop token."""
        kept = tokens[: _through_stop(tokens, self.stops)]
        self.ids.extend(kept)
        self.stopped = kept[-1] in self.stops
        # a stop token among the accepted ones ends the proposal too
        inside = len(kept) if len(kept) < len(tokens) else None
        self.acceptance_lengths.append(inside or len(tokens))
        self.proposal_lengths.append(inside or drafted)
        self.accepted_draft_lengths.append(inside or len(tokens) - 1)

    def problem(self, case: dict[str, Any]) -> str | None:
        """None if the results are those of the case, else the first difference."""
        if self.refused:
            return self.refused
        found = {
            "output_ids": self.ids[: self.end],
            "acceptance_lengths": self.acceptance_lengths,
            "proposal_lengths": self.proposal_lengths,
            "accepted_draft_lengths": self.accepted_draft_lengths,
        }
        for name, mine in found.items():
            wanted = case[name]
            if mine != wanted:
                pairs = enumerate(zip(mine, wanted, strict=False))
                at = next((i for i, (a, b) in pairs if a != b), min(len(mine), len(wanted)))
                return (
                    f"{name} differ from index {at}: {mine[at : at + 8]} instead of "
                    f"{wanted[at : at + 8]}"
                )
        return None


def decode_cases(file: Path, drafter: Drafter, target: LoadedTarget | None) -> list[str | None]:
    """One entry per case: None, or what differs."""
    if target is None:
        raise CheckpointError("no target beside the drafter fits it")
    cases: list[dict[str, Any]] = json.loads(file.read_bytes())
    if problem := copies_differ(drafter, target) or problem_with(file, target.folder):
        return [problem] * len(cases)
    size = drafter.config.block_size
    lives = [_run_of(number, case).end + size + MARGIN for number, case in enumerate(cases)]
    problems: list[str | None] = [None] * len(cases)
    with calibrated_copy(file.parent, size) as folder:
        verify = load_verify(target.folder, folder, lives)
        draft = load_draft(folder, lives, target.folder)
        for turn in range(TURNS):
            runs = [_run_of(turn * len(cases) + number, case) for number, case in enumerate(cases)]
            _Turn(verify, draft, runs, prefixes_are_kept=turn > 0).play()
            told = [run.problem(case) for run, case in zip(runs, cases, strict=True)]
            problems = [before or problem for before, problem in zip(problems, told, strict=True)]
    return problems


def _run_of(number: int, case: dict[str, Any]) -> CaseRun:
    if case.get("temperature", 0.0) != 0.0:
        raise CheckpointError(
            f"case {number}: temperature {case['temperature']}, only greedy runs have one answer"
        )
    prompt = list(case["prompt_ids"])
    return CaseRun(
        cursor=Cursor(sequence=number + 1, epoch=1, round=0, committed_len=len(prompt)),
        end=len(prompt) + case["max_new_tokens"],
        stops=frozenset(case["stop_token_ids"]),
        threshold=case["confidence_threshold"],
        ids=prompt,
    )


class _Turn:
    """Runs all cases of a file once, on both engines."""

    def __init__(
        self, verify: Any, draft: Any, runs: list[CaseRun], *, prefixes_are_kept: bool
    ) -> None:
        self._verify, self._draft, self._kept = verify, draft, prefixes_are_kept
        self._runs = {run.cursor.sequence: run for run in runs}
        self._anchored: set[int] = set()
        self._size = draft.drafter.config.block_size

    def play(self) -> None:
        """Prompts wait in one queue: the first is prefilled alone, the others in the rounds of
        those before."""
        for run in self._runs.values():
            try:
                self._open(run)
            except CheckpointError as error:
                run.refused = str(error)
        runs = True
        while runs:
            going = [
                run
                for run in self._runs.values()
                if run.going and run.cursor.sequence in self._anchored
            ]
            if going:
                self._round(going)
            else:
                runs = self._verify.prefill_next()
            for run in self._runs.values():
                self._begin_answer(run)
        for sequence, run in self._runs.items():
            if sequence not in self._anchored and not run.refused:
                run.refused = "its prompt never ended"
            self._verify.release(sequence, 1)
            self._draft.release(sequence, 1)

    def _open(self, run: CaseRun) -> None:
        cursor = run.cursor
        longest = self._verify.target.context_length  # as for a request without a limit
        served(self._verify.open(cursor, GREEDY, longest, keep_features=True, token_ids=run.ids))
        self._open_context(run)
        state = self._verify.find(cursor.sequence, cursor.epoch)
        spared = state.spared if state is not None else 0
        if self._kept and spared < (whole := (len(run.ids) - 1) // PAGE * PAGE):
            raise CheckpointError(
                f"{spared} tokens of the prompt were found in the prefix cache, not {whole}"
            )

    def _open_context(self, run: CaseRun) -> None:
        served(self._draft.open(run.cursor, run.end + self._size + MARGIN))

    def _begin_answer(self, run: CaseRun) -> None:
        """Draws the anchor of a prompt that has run, once."""
        sequence = run.cursor.sequence
        state = self._verify.find(sequence, run.cursor.epoch)
        if sequence in self._anchored or run.refused or state is None:
            return
        if (problem := state.broken) is not None:
            run.refused = f"refused, {problem.reason.name}: {problem.message}"
        elif state.prefilled:
            run.ids.append(served(self._verify.first_token(sequence)))
            run.stopped = run.ids[-1] in run.stops
            self._anchored.add(sequence)

    def _round(self, runs: list[CaseRun]) -> None:
        """Drafts, schedules and verifies one block for each of these runs."""
        from draft_service.engine import DraftItem
        from verify_service.sequences import VerifyItem

        draft, verify = self._draft, self._verify
        for run in runs:
            run.cursor = run.cursor._replace(round=run.cursor.round + 1, committed_len=len(run.ids))
            self._fill(run)
        blocks = draft.draft(
            [
                DraftItem(run.cursor, run.ids[-1], features_through=len(run.ids) - 1, params=GREEDY)
                for run in runs
            ]
        )
        prefixes = _prefixes(runs, blocks, ends_at_stop=draft.drafter.config.kind != "block")
        items = [
            VerifyItem(run.cursor, run.ids[-1], ids, q)
            for run, (ids, q) in zip(runs, prefixes, strict=True)
        ]
        for run, item, outcome in zip(
            runs, items, verify.judge_cohort(items).outcomes, strict=True
        ):
            verdict: Verdict = served(outcome)
            run.take(verdict.tokens, len(item.draft_ids))

    def _fill(self, run: CaseRun) -> None:
        """Sends the rows that the drafter lacks; before round `REST` it loses all of them."""
        if run.cursor.round == REST:
            self._draft.release(run.cursor.sequence, run.cursor.epoch)
            self._open_context(run)
        has = self._draft.watermark(run.cursor.sequence, run.cursor.epoch)
        if has < len(run.ids) - 1:
            rows = self._verify.features(run.cursor, has)
            assert rows is not None  # its sequence was opened with rows
            send_rows(self._draft, rows)


def _prefixes(
    runs: list[CaseRun], blocks: list[Block], *, ends_at_stop: bool
) -> list[tuple[tuple[int, ...], SparseQ]]:
    """The prefix (ids, q) of each block, chosen by a plan's terms as verifiers choose it.

    The reference drafts no further after a stop token where a family drafts token by token; slots
    past it are not proposed then. They depend on earlier tokens alone, so leaving them out does not
    violate "no peeking".
    """
    from dspark.rounds.plan import BlockTerms, PlanKind, prefixes

    for block in blocks:
        if block.empty_reason:
            raise CheckpointError(f"the drafter sent an empty block: {block.empty_reason.name}")
    terms = [
        BlockTerms(PlanKind.THRESHOLD, len(block.token_ids), calibrated_threshold(run.threshold))
        for run, block in zip(runs, blocks, strict=True)
    ]
    chosen = prefixes([block.confidence for block in blocks], terms)
    if ends_at_stop:
        chosen = [
            _through_stop(block.token_ids[:n], run.stops)
            for run, block, n in zip(runs, blocks, chosen, strict=True)
        ]
    return [
        (block.token_ids[:n], block.q.prefix(n)) for block, n in zip(blocks, chosen, strict=True)
    ]


def _through_stop(ids: Sequence[int], stops: frozenset[int]) -> int:
    """Number of tokens up to the first stop token, itself included; all if there is none."""
    return next((n for n, token in enumerate(ids, start=1) if token in stops), len(ids))


def problem_with(cases: Path, target: Path) -> str | None:
    """None if a file of decode cases is unknown or its weights are those it was recorded with, else
    the problem."""
    recorded = RECORDED.get(hashlib.sha256(cases.read_bytes()).hexdigest()[:16])
    if recorded is None:
        return None
    for folder, digest in zip((cases.parent, target), recorded, strict=True):
        if digest_of(read_file(folder / SINGLE_NAME)) != digest:
            return f"{folder.name}: its weights are not those that these cases were recorded with"
    return None


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Digest of the names, shapes, types and bytes of all tensors."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]
