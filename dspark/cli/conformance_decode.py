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
from typing import Any

import torch
from torch import Tensor

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
from dspark.types import Block, Cursor
from dspark.wire.v1 import types_pb2

MARGIN = 2  # room past a last round
TURNS = 2  # the second finds the prompts of the first in the prefix cache
REST = 4  # the round before which the drafter loses its context
TOLD = ("anchor_positions", "round_draft_ids")  # of each round, in some files
LENGTHS = ("acceptance_lengths", "proposal_lengths", "accepted_draft_lengths")  # of each round
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


class DecodeRun:
    """One case as it runs on a verifier and a drafter."""

    def __init__(self, number: int, case: Mapping[str, Any], verify: Any, draft: Any) -> None:
        self._verify, self._draft = verify, draft
        self._ids: list[int] = list(case["prompt_ids"])
        self.cursor = Cursor(number, 1, 0, len(self._ids))
        self._end = len(self._ids) + case["max_new_tokens"]
        self._life = life_of(case, draft.drafter.config.block_size)
        self._threshold = calibrated_threshold(case["confidence_threshold"])
        self._stops = frozenset(case["stop_token_ids"])
        self._refused = ""  # why an engine would not serve it
        self._lengths: dict[str, list[int]] = {name: [] for name in LENGTHS}
        self._told: dict[str, list[Any]] = {name: [] for name in TOLD}
        self._wanted = case.keys()

    def open(self, *, prefix_is_kept: bool) -> bool:
        """Whether both engines serve it, as a request without a limit."""
        longest, prompt = self._verify.target.context_length, self._ids[:]
        whole = (len(prompt) - 1) // PAGE * PAGE if prefix_is_kept else 0
        more = {"keep_features": True, "token_ids": prompt}
        try:
            served(self._verify.open(self.cursor, GREEDY, longest, **more))
            served(self._draft.open(self.cursor, self._life))
            if (spared := self._verify.find(*self.cursor[:2]).spared) < whole:
                raise CheckpointError(f"{spared} tokens of the prompt were cached, not {whole}")
        except CheckpointError as error:
            self._refused = str(error)
        return not self._refused

    def begins(self) -> bool:
        """Whether its prompt has run; if so, the anchor is drawn."""
        state = self._verify.find(*self.cursor[:2])
        if not state.prefilled and not state.broken:
            return False
        self._ids.append(served(self._verify.first_token(self.cursor.sequence)))
        return True

    @property
    def going(self) -> bool:
        """Whether another round is due: the anchor's index is below the end, and no stop came."""
        return self._ids[-1] not in self._stops and len(self._ids) - 1 < self._end

    def order(self) -> Any:
        """The order of the next block. Rows that the drafter lacks are sent before, in their wire
        form; before round `REST` it loses all of them."""
        from draft_service.engine import DraftItem

        now = self.cursor.round + 1
        self.cursor = self.cursor._replace(round=now, committed_len=len(self._ids))
        if now == REST:
            self._draft.contexts.release(*self.cursor[:2])
            served(self._draft.open(self.cursor, self._life))
        sent = self._verify.features(self.cursor, self._draft.contexts.watermark(*self.cursor[:2]))
        if sent is None:
            raise CheckpointError("the verifier made no feature rows")
        if count := len(sent.token_ids):
            rows = self._draft.read_rows(types_pb2.TensorChunk(**sent.rows.chunk()), count)
            served(self._draft.ingest(*self.cursor[:2], sent.start, sent.token_ids, rows))
        return DraftItem(self.cursor, self._ids[-1], len(self._ids) - 1, GREEDY)

    def proposal(self, block: Block) -> Any:
        """The prefix to verify, chosen by a plan's terms as verifiers choose it.

        The reference drafts no further after a stop token where a family drafts token by token;
        slots past it are not proposed then. They depend on earlier tokens alone, so leaving them
        out does not violate "no peeking".
        """
        from dspark.rounds.plan import BlockTerms, PlanKind, prefixes
        from verify_service.sequences import VerifyItem

        told = (self.cursor.committed_len - 1, block.token_ids)
        for rounds, value in zip(self._told.values(), told, strict=True):
            rounds.append(value)
        terms = BlockTerms(PlanKind.THRESHOLD, price=self._threshold)
        (slots,) = prefixes([block.confidence], [terms])
        if self._draft.drafter.config.kind != "block":
            slots = self._through_stop(block.token_ids[:slots])
        ids, q = block.token_ids[:slots], block.q.prefix(slots)
        return VerifyItem(self.cursor, self._ids[-1], ids, q)

    def take(self, tokens: Sequence[int], proposed: int) -> None:
        """Counts one round and commits what it drew, up to a stop token."""
        kept = self._through_stop(tokens)
        self._ids.extend(tokens[:kept])
        # a stop token among the accepted ones ends the proposal too
        counts = (kept, proposed, kept - 1) if kept == len(tokens) else (kept, kept, kept)
        for lengths, count in zip(self._lengths.values(), counts, strict=True):
            lengths.append(count)

    def _through_stop(self, ids: Sequence[int]) -> int:
        """Number of tokens up to the first stop token, itself included; all if there is none."""
        return next((n for n, token in enumerate(ids, start=1) if token in self._stops), len(ids))

    def close(self) -> Mapping[str, Any] | str:
        """Frees it on both engines; the fields of the case, or why there are none."""
        self._verify.release(*self.cursor[:2])
        self._draft.contexts.release(*self.cursor[:2])
        told = {name: each for name, each in self._told.items() if name in self._wanted}
        return self._refused or {"output_ids": self._ids[: self._end], **self._lengths, **told}


def life_of(case: Mapping[str, Any], block_size: int) -> int:
    """The most tokens of a case; its last round may overshoot by a whole block."""
    return len(case["prompt_ids"]) + int(case["max_new_tokens"]) + block_size + MARGIN


def decode_outputs(
    cases: Sequence[Mapping[str, Any]], pair: ReferencePair
) -> Iterable[list[Mapping[str, Any] | str]]:
    """Runs all cases, as often as there are turns."""
    if any(case.get("temperature") for case in cases):
        raise CheckpointError("temperature: only greedy runs have one answer")
    digest = hashlib.sha256((pair.folder / "decode_cases.json").read_bytes()).hexdigest()[:16]
    lives = [life_of(case, pair.drafter.config.block_size) for case in cases]
    verify, draft = load_verify(pair, lives), load_draft(pair, lives)
    folders = (pair.folder, verify.target.folder)
    for folder, recorded in zip(folders, RECORDED.get(digest, ()), strict=False):
        if digest_of(read_file(folder / SINGLE_NAME)) != recorded:
            raise CheckpointError(f"{folder.name}: its weights are not those of these cases")
    for turn in range(TURNS):
        first = 1 + turn * len(cases)
        runs = [DecodeRun(first + at, case, verify, draft) for at, case in enumerate(cases)]
        decode([run for run in runs if run.open(prefix_is_kept=turn > 0)], verify, draft)
        yield [run.close() for run in runs]


def decode(waiting: Sequence[DecodeRun], verify: Any, draft: Any) -> None:
    """Runs cases to their ends. Prompts wait in one queue: the first is prefilled alone, the others
    in the rounds of those before."""
    going: list[DecodeRun] = []
    while going or verify.prefill_next():
        if going:
            blocks = draft.draft([run.order() for run in going])
            items = [run.proposal(served(block)) for run, block in zip(going, blocks, strict=True)]
            verdicts = verify.judge_cohort(items).outcomes
            for run, item, verdict in zip(going, items, verdicts, strict=True):
                run.take(served(verdict).tokens, len(item.draft_ids))
        begun = [run for run in waiting if run.begins()]
        waiting = [run for run in waiting if run not in begun]
        going = [run for run in (*going, *begun) if run.going]


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Digest of the names, shapes, types and bytes of all tensors."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]
