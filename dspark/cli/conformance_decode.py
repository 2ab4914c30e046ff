"""Decode cases: whole greedy runs through both engines as they are served, and a plan's threshold.

All runs of a file advance together, one cohort per round, with prompts prefilled in those rounds;
see `conformance_served`. Rounds are counted as by the reference: the token from the prefill is no
round, the last round may overshoot, and a stop token inside the accepted draft ends the run there,
without a bonus.

A known file of cases is accepted only with the tensors it was recorded with, in any layout: a case
holds ids and lengths alone, which a small change of a weight need not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dspark.cli.conformance_served import (
    GREEDY,
    PAGE,
    ReferencePair,
    calibrated_threshold,
    load_draft,
    load_verify,
    served,
)
from dspark.errors import CheckpointError
from dspark.model.weights_file import SINGLE_NAME, read_file
from dspark.types import Cursor
from dspark.wire.v1 import types_pb2

MARGIN = 2  # room past a last round that overshoots by a whole block
TURNS = 2  # the second finds the prompts of the first in the prefix cache
REST = 4  # the round before which the drafter loses its context
# Decode cases -> tensors of the drafter and the target.
RECORDED: Mapping[str, str] = {
    "15bd3e654984a830": "753bb9f758430f27",  # dflash
    "e2c063d444550869": "fa05fdc356b7c2c3",  # dflash_gemma4
    "a3c457ecae8f1504": "e1b7f510cc6b63ba",  # dspark_confidence_without_markov
    "fbcd12a5b68868c6": "72237cb989b65c02",  # dspark_gated
    "c53f1c50d8f38891": "e38e59288e28e78f",  # dspark_gemma4
    "6e4578b2ba1ab47e": "33dc34dae506d3f6",  # dspark_rnn
    "8f01a00ca15b827f": "92eae116e8ad6f14",  # dspark_vanilla
    "ee5236cdaa677b0b": "bc8216457506bf45",  # eagle3
    "9c2843edeb80e738": "54bfa3b6ebfb5431",  # eagle3_gemma4
}


class DecodeRun:
    """The state of one case as it runs."""

    def __init__(self, number: int, case: Mapping[str, Any]) -> None:
        self.ids: list[int] = list(case["prompt_ids"])
        self.cursor = Cursor(number, 1, 0, len(self.ids))
        self.end = len(self.ids) + case["max_new_tokens"]
        self.threshold = calibrated_threshold(case["confidence_threshold"])
        self.refused = ""  # why an engine would not serve it
        self.accepted: list[int] = []  # tokens of each round, the target's own included
        self.proposed: list[int] = []
        self.drafted: list[int] = []  # accepted ones
        self._stops = frozenset(case["stop_token_ids"])

    @property
    def going(self) -> bool:
        """Whether another round is due: the anchor's index is below the end, and no stop came."""
        return self.ids[-1] not in self._stops and len(self.ids) - 1 < self.end

    def take(self, tokens: Sequence[int], proposed: int) -> None:
        """Counts one round and commits what it drew, up to a stop token."""
        kept = self.through_stop(tokens)
        inside = kept < len(tokens)  # among the accepted ones: it ends the proposal too
        self.ids.extend(tokens[:kept])
        self.accepted.append(kept)
        self.proposed.append(kept if inside else proposed)
        self.drafted.append(kept if inside else kept - 1)

    def through_stop(self, ids: Sequence[int]) -> int:
        """Number of tokens up to the first stop token, itself included; all if there is none."""
        return next((n for n, token in enumerate(ids, start=1) if token in self._stops), len(ids))

    def found(self) -> Mapping[str, Any] | str:
        """The fields of the case, or why there are none."""
        return self.refused or {
            "output_ids": self.ids[: self.end],
            "acceptance_lengths": self.accepted,
            "proposal_lengths": self.proposed,
            "accepted_draft_lengths": self.drafted,
        }


def decode_outputs(
    cases: Sequence[Mapping[str, Any]], pair: ReferencePair
) -> Iterable[list[Mapping[str, Any] | str]]:
    """Runs all cases, as often as there are turns."""
    if any(case.get("temperature") for case in cases):
        raise CheckpointError("temperature: only greedy runs have one answer")
    size = pair.drafter.config.block_size
    lives = [DecodeRun(0, case).end + size + MARGIN for case in cases]
    engines = Engines(load_verify(pair, lives), load_draft(pair, lives))
    check_recorded(pair)
    for turn in range(TURNS):
        first = 1 + turn * len(cases)
        runs = [DecodeRun(number, case) for number, case in enumerate(cases, start=first)]
        engines.decode(runs, prefixes_are_kept=turn > 0)
        yield [run.found() for run in runs]


class Engines:
    """A verifier and a drafter, and the rounds between them."""

    def __init__(self, verify: Any, draft: Any) -> None:
        self._verify, self._draft = verify, draft
        self._config = draft.drafter.config

    def decode(self, runs: Sequence[DecodeRun], *, prefixes_are_kept: bool) -> None:
        """Runs all cases once. Prompts wait in one queue: the first is prefilled alone, the others
        in the rounds of those before."""
        for run in runs:
            try:
                self._open(run, prefixes_are_kept)
            except CheckpointError as error:
                run.refused = str(error)
        waiting = [run for run in runs if not run.refused]
        going: list[DecodeRun] = []
        while going or self._verify.prefill_next():
            if going:
                self._round(going)
            states = {run: self._verify.find(*run.cursor[:2]) for run in waiting}
            over = [run for run, state in states.items() if state.prefilled or state.broken]
            for run in over:
                run.ids.append(served(self._verify.first_token(run.cursor.sequence)))
            waiting = [run for run in waiting if run not in over]
            going = [run for run in (*going, *over) if run.going]
        for run in runs:
            self._verify.release(*run.cursor[:2])
            self._draft.release(*run.cursor[:2])

    def _open(self, run: DecodeRun, prefix_is_kept: bool) -> None:
        longest = self._verify.target.context_length  # as for a request without a limit
        prompt = run.ids[:]
        served(self._verify.open(run.cursor, GREEDY, longest, keep_features=True, token_ids=prompt))
        self._open_context(run)
        spared = self._verify.find(*run.cursor[:2]).spared
        if prefix_is_kept and spared < (whole := (len(prompt) - 1) // PAGE * PAGE):
            raise CheckpointError(f"{spared} tokens of the prompt were cached, not {whole}")

    def _open_context(self, run: DecodeRun) -> None:
        served(self._draft.open(run.cursor, run.end + self._config.block_size + MARGIN))

    def _round(self, runs: Sequence[DecodeRun]) -> None:
        """Drafts, schedules and verifies one block for each of these runs.

        Prefixes are chosen by a plan's terms as verifiers choose them. The reference drafts no
        further after a stop token where a family drafts token by token; slots past it are not
        proposed then. They depend on earlier tokens alone, so leaving them out does not violate "no
        peeking".
        """
        from draft_service.engine import DraftItem
        from dspark.rounds.plan import BlockTerms, PlanKind, prefixes
        from verify_service.sequences import VerifyItem

        asked, items = [], []
        for run in runs:
            run.cursor = run.cursor._replace(round=run.cursor.round + 1, committed_len=len(run.ids))
            self._fill(run)
            asked.append(DraftItem(run.cursor, run.ids[-1], len(run.ids) - 1, GREEDY))
        blocks = [served(block) for block in self._draft.draft(asked)]
        terms = [BlockTerms(PlanKind.THRESHOLD, price=run.threshold) for run in runs]
        chosen = prefixes([block.confidence for block in blocks], terms)
        for run, block, slots in zip(runs, blocks, chosen, strict=True):
            if self._config.kind != "block":
                slots = run.through_stop(block.token_ids[:slots])
            whole = VerifyItem(run.cursor, run.ids[-1], block.token_ids, block.q)
            items.append(whole.prefix(slots))
        verdicts = self._verify.judge_cohort(items).outcomes
        for run, item, verdict in zip(runs, items, verdicts, strict=True):
            run.take(served(verdict).tokens, len(item.draft_ids))

    def _fill(self, run: DecodeRun) -> None:
        """Sends the rows that the drafter lacks, in their wire form; before round `REST` it loses
        all of them."""
        if run.cursor.round == REST:
            self._draft.release(*run.cursor[:2])
            self._open_context(run)
        start = self._draft.watermark(*run.cursor[:2])
        sent = self._verify.features(run.cursor, start)
        if sent is None:
            raise CheckpointError("the verifier made no feature rows")
        if count := len(sent.token_ids):
            rows = self._draft.read_rows(types_pb2.TensorChunk(**sent.rows.chunk()), count)
            served(self._draft.ingest(*run.cursor[:2], sent.start, sent.token_ids, rows))


def check_recorded(pair: ReferencePair) -> None:
    """Raises CheckpointError if a file of decode cases is known, and its weights are not those it
    was recorded with."""
    assert pair.target is not None
    cases = hashlib.sha256((pair.folder / "decode_cases.json").read_bytes()).hexdigest()[:16]
    folders = (pair.folder, pair.target.folder)
    if cases in RECORDED and RECORDED[cases] != digest_of(*folders):
        names = " and ".join(folder.name for folder in folders)
        raise CheckpointError(f"{names}: not the weights that these cases were recorded with")


def digest_of(*folders: Path) -> str:
    """Digest of the names, shapes, types and bytes of all tensors."""
    total = hashlib.sha256()
    for folder in folders:
        for name, tensor in sorted(read_file(folder / SINGLE_NAME).items()):
            total.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]
