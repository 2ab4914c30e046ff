"""Decode cases: whole greedy runs through both engines and the coordinator's threshold policy.

All runs of a file advance together, one cohort per round, so that packed verification and
padded drafting are what is checked. Counting is the reference's own: the token from the
prefill is no round, the last round may overshoot, and a stop token inside the accepted draft
ends the run there, without a bonus.

The rooms are imported when cases run, so their types are unknown to this file's signatures.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspark.cli.conformance_known import problem_with
from dspark.cli.conformance_model import copies_differ, target_at
from dspark.errors import CheckpointError
from dspark.model.calibration import IDENTITY
from dspark.model.family import Drafter
from dspark.types import Block, Cursor, Law, Refusal, SparseQ, Verdict

GREEDY = Law(temperature=0.0)
PREFILL_CHUNK = 16  # small, so that prompts take several chunks
MARGIN = 2  # room past a last round that overshoots by a whole block


@dataclasses.dataclass
class Run:
    """One case on its way."""

    cursor: Cursor
    prompt_len: int
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
        """Rounds go on while the anchor's index is below the end, wherever they may lead."""
        return not self.stopped and not self.refused and len(self.ids) - 1 < self.end

    def take(self, draft: Sequence[int], accepted: int, next_token: int) -> None:
        """Counts one round and commits what it kept."""
        inside = next((n for n, token in enumerate(draft[:accepted], start=1) if token in self.stops), None)
        if inside is not None:
            self.ids.extend(draft[:inside])
            self.stopped = True
        else:
            self.ids.extend([*draft[:accepted], next_token])
            self.stopped = next_token in self.stops
        self.acceptance_lengths.append(inside or accepted + 1)
        self.proposal_lengths.append(inside or len(draft))
        self.accepted_draft_lengths.append(inside or accepted)

    def problem(self, case: dict[str, Any]) -> str | None:
        """None if everything came out as the case says."""
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
                return f"{name} differ from index {at}: {mine[at : at + 8]} instead of {wanted[at : at + 8]}"
        return None


def decode_cases(file: Path, *, drafter: Drafter, target_folder: Path | None) -> list[str | None]:
    """One entry per case: None, or what differs."""
    from draft_service.config import DraftConfig
    from draft_service.engine import DraftEngine
    from verify_service.config import VerifyConfig
    from verify_service.engine import VerifyEngine

    target = target_at(target_folder)
    if target is None:
        raise CheckpointError("no target beside the drafter fits it")
    cases: list[dict[str, Any]] = json.loads(file.read_bytes())
    if problem := copies_differ(drafter, target) or problem_with(file, target.folder):
        return [problem] * len(cases)
    runs = [_run_of(number, case) for number, case in enumerate(cases)]
    room = sum(run.end for run in runs) + len(runs) * 4 * drafter.config.block_size + 1024
    verify = VerifyEngine.load(
        VerifyConfig(
            target=str(target_folder),
            drafter=str(file.parent),
            device="cpu",
            dtype="float32",
            kv_tokens=room,
            prefix_cache=False,  # every case begins with nothing
            measure_cost=False,
        )
    )
    if verify.attention_path != "packed":
        raise CheckpointError(f"{target_folder}: runs {verify.attention_path}, not packed")
    draft = DraftEngine(
        drafter=drafter,
        calibration=IDENTITY,  # thresholds of the cases are meant for raw confidence
        config=DraftConfig(drafter=str(file.parent), context_tokens=room),
        version="",
        calibrated=False,
    )
    for run in runs:
        try:
            _prefill(run, verify, draft)
        except CheckpointError as error:
            run.refused = str(error)
    while going := [run for run in runs if run.going]:
        _round(going, verify, draft)
    return [run.problem(case) for run, case in zip(runs, cases, strict=True)]


def _run_of(number: int, case: dict[str, Any]) -> Run:
    if case.get("temperature", 0.0) != 0.0:
        raise CheckpointError(f"case {number}: temperature {case['temperature']}, only greedy runs have one answer")
    prompt = list(case["prompt_ids"])
    return Run(
        cursor=Cursor(sequence=number + 1, epoch=1, round=0, committed_len=len(prompt)),
        prompt_len=len(prompt),
        end=len(prompt) + case["max_new_tokens"],
        stops=frozenset(case["stop_token_ids"]),
        threshold=case["confidence_threshold"],
        ids=prompt,
    )


def _prefill(run: Run, verify: Any, draft: Any) -> None:
    cursor, size = run.cursor, draft.drafter.config.block_size
    reserve = run.end + size + MARGIN
    _served(verify.open(cursor, GREEDY, reserve, keep_features=False, token_ids=run.ids))
    _served(draft.open(cursor, reserve))
    for start in range(0, run.prompt_len, PREFILL_CHUNK):
        rows = _served(verify.prefill_chunk(cursor.sequence, run.ids[start : start + PREFILL_CHUNK]))
        _ingest(draft, rows)
    run.ids.append(_served(verify.first_token(cursor.sequence)))
    run.stopped = run.ids[-1] in run.stops


def _round(runs: list[Run], verify: Any, draft: Any) -> None:
    """Draft, schedule, verify, once, for every run that goes on."""
    from draft_service.engine import DraftItem
    from verify_service.sequences import VerifyItem

    for run in runs:
        run.cursor = run.cursor._replace(round=run.cursor.round + 1, committed_len=len(run.ids))
    blocks = draft.draft(
        [DraftItem(run.cursor, run.ids[-1], features_through=len(run.ids) - 1, law=GREEDY) for run in runs]
    )
    prefixes = _prefixes(runs, blocks, ends_at_stop=draft.drafter.config.kind != "block")
    judged = verify.judge_cohort(
        [VerifyItem(run.cursor, run.ids[-1], ids, q) for run, (ids, q) in zip(runs, prefixes, strict=True)]
    )
    for run, (ids, _), outcome, rows in zip(runs, prefixes, judged.outcomes, judged.features, strict=True):
        verdict: Verdict = _served(outcome)
        run.take(ids, verdict.accepted, verdict.next_token)
        _ingest(draft, rows)


def _prefixes(runs: list[Run], blocks: list[Block], *, ends_at_stop: bool) -> list[tuple[tuple[int, ...], SparseQ]]:
    """What of each block goes to verification, by the coordinator's own scheduler.

    The reference drafts no further after a stop token where a family drafts token by token; slots past it are not
    proposed then. They depend on tokens before them alone, so leaving them out peeks at nothing.
    """
    from dspark.rounds.policy import Threshold
    from dspark.rounds.schedule import schedule

    lengths = np.array([len(block.token_ids) for block in blocks], np.int64)
    for block in blocks:
        if block.empty_reason:
            raise CheckpointError(f"the drafter sent an empty block: {block.empty_reason.name}")
    confidence = np.array([block.confidence for block in blocks], np.float64)
    chosen = schedule(confidence, lengths, [Threshold(run.threshold) for run in runs], step_seconds=None).tolist()
    if ends_at_stop:
        chosen = [
            _through_stop(block.token_ids[:n], run.stops) for run, block, n in zip(runs, blocks, chosen, strict=True)
        ]
    return [(block.token_ids[:n], block.q.prefix(n)) for block, n in zip(blocks, chosen, strict=True)]


def _through_stop(ids: Sequence[int], stops: frozenset[int]) -> int:
    """How many tokens there are up to the first stop token, itself included."""
    return next((n for n, token in enumerate(ids, start=1) if token in stops), len(ids))


def _ingest(draft: Any, rows: Any) -> None:
    if rows is None:
        raise CheckpointError("the verifier made no feature rows")
    _served(draft.ingest(rows.sequence, rows.epoch, rows.start, rows.token_ids, rows.rows))


def _served(outcome: Any) -> Any:
    if isinstance(outcome, Refusal):
        raise CheckpointError(f"refused, {outcome.reason.name}: {outcome.message}")
    return outcome
