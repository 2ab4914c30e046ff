"""Passes judged on the device: the same verdicts as by the rules on the host, and one wait,
whatever is in them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dspark.decoding import at_once, judge_at_once, masking, moving, shaping
from dspark.decoding.acceptance import DrawsWatch, PackedCase, judge
from dspark.decoding.at_once import Decision, PaddedCases
from dspark.decoding.gumbel import exponentials
from dspark.decoding.moving import sent
from dspark.decoding.sampling import SamplingColumns
from dspark.types import Cursor, Rule, SamplingParams, SparseQ
from tests.operations import WAITS, Watched
from tests.unit.decoding.packed import packed_pass

VOCAB = 24
ALL_PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(rule=Rule.TOKEN),
    SamplingParams(rule=Rule.BLOCK),
    SamplingParams(temperature=0.7, top_k=5, rule=Rule.BLOCK),
    SamplingParams(temperature=1.3, top_p=0.8, rule=Rule.TOKEN),
    SamplingParams(min_p=0.1, rule=Rule.BLOCK),
    SamplingParams(rule=Rule.COUPLED),
]


def pass_of(
    seed: int, all_params: Sequence[SamplingParams] = ALL_PARAMS, *, slots: int = 5
) -> tuple[torch.Tensor, list[PackedCase]]:
    keyed = [replace(params, seed=(seed << 20) + n) for n, params in enumerate(all_params)]
    return packed_pass(seed, keyed, VOCAB, slots=slots)


def test_verdicts_are_those_of_the_rules_on_the_host() -> None:
    kept: Counter[int] = Counter()
    for seed in range(250):
        logits, cases = pass_of(seed, slots=1 + seed % 5)
        found = judge_at_once.judge_at_once(logits, cases)
        assert found == judge(logits, cases)
        kept.update(accepted for accepted, _ in found)
    assert min(kept[length] for length in range(6)) > 10, "whole blocks, and blocks that are cut"


def test_a_slot_that_its_q_cannot_give_counts_as_not_sent() -> None:
    for rule in (Rule.TOKEN, Rule.BLOCK):
        q = SparseQ.of(
            np.array([[3, 4], [5, 6], [7, 8]], np.uint32), np.full((3, 2), 0.5, np.float32)
        )
        params = SamplingParams(rule=rule, seed=5)
        logits = torch.zeros(4, VOCAB)
        cases = [PackedCase(Cursor(1, 1, 1, 9), params, 0, (3, 9, 7), q)]
        assert judge_at_once.judge_at_once(logits, cases) == judge(logits, cases)


@pytest.mark.parametrize("rows", [12, judge_at_once.ROWS])
def test_a_pass_of_many_rows_is_weighed_in_pieces(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long block would else make as many rows of every sequence, each as wide as the
    vocabulary."""
    monkeypatch.setattr(judge_at_once, "ROWS", rows)
    sizes, ratio = [], at_once.ratio

    def counted(logits: torch.Tensor, at: PaddedCases, columns: SamplingColumns) -> Decision:
        sizes.append(at.rows.numel())
        return ratio(logits, at, columns)

    monkeypatch.setattr(at_once, "ratio", counted)
    for seed in range(20):
        logits, cases = pass_of(seed, ALL_PARAMS * 5)
        watches = [DrawsWatch(7), DrawsWatch(7)]
        found = judge_at_once.judge_at_once(logits, cases, watch=watches[0])
        assert found == judge(logits, cases, watch=watches[1])
        labels = [each.labels() for each in watches]
        assert labels[0].keys() == labels[1].keys()
        for sequence, told in labels[1].items():
            np.testing.assert_allclose(labels[0][sequence], told, rtol=1e-6)
    assert max(sizes) <= rows


def test_near_ties_of_coupled_sequences_are_counted() -> None:
    counts: list[Counter[int]] = [Counter(), Counter()]
    for seed in range(10):
        logits, cases = pass_of(seed, [ALL_PARAMS[-1]] * 4)
        pace = (
            torch.log_softmax(logits.double(), dim=-1)
            - exponentials(
                [case.params for case in cases for _ in range(len(case.draft_ids) + 1)],
                [
                    case.cursor.anchor_position + 1 + slot
                    for case in cases
                    for slot in range(len(case.draft_ids) + 1)
                ],
                VOCAB,
            ).log()
        )
        ids = pace.topk(2).indices
        gap = -pace.gather(-1, ids).diff(dim=-1).float()
        gap[::2] = 0.0  # elsewhere the first two come home together
        logits.scatter_add_(-1, ids[:, 1:], gap)
        judge_at_once.judge_at_once(logits, cases, counts[0])
        judge(logits, cases, counts[1])
    assert counts[0] == counts[1]
    assert counts[0].total() > 10


@pytest.mark.parametrize("params", ALL_PARAMS)
def test_logits_that_are_not_numbers_are_an_error(params: SamplingParams) -> None:
    logits, cases = pass_of(1, [params] * 3)
    logits[cases[1].first_row] = torch.nan
    with pytest.raises(FloatingPointError):
        judge_at_once.judge_at_once(logits, cases)


@pytest.mark.parametrize(
    ("all_params", "most"),
    [(ALL_PARAMS[:1] * 8, 45), (ALL_PARAMS[1:6] * 4, 250), (ALL_PARAMS * 4, 360)],
)
@pytest.mark.parametrize("watched", [False, True])
def test_a_pass_is_waited_for_once(
    all_params: list[SamplingParams], most: int, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    monkeypatch.setattr(moving, "fetched", lambda tensor: fetched.append(1) or tensor.numpy())
    counts = []
    for count in (1, 4):
        logits, cases = pass_of(5, all_params * count)
        judge_at_once.judge_at_once(logits, cases)  # columns are kept from here on
        fetched.clear()
        seen: list[str] = []
        with Watched(lambda name, *_, seen=seen: seen.append(name)):
            judge_at_once.judge_at_once(logits, cases, watch=DrawsWatch(1) if watched else None)
        assert len(fetched) == 1
        assert not WAITS & set(seen)
        counts.append(len(seen))
    assert counts[0] == counts[1] <= most, "as many operations for many sequences as for few"


def test_what_shapes_and_masks_rows_goes_to_a_device_without_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `sent` alone: after any other copy to a card it is waited for."""
    by_sent, copies = [], []

    def saw(name: str, args: Any, made: Any) -> None:
        if name in ("_to_copy", "to") and args[0].device != made.device:
            copies.append(name)

    for module in (shaping, masking):
        monkeypatch.setattr(
            module, "sent", lambda *to: by_sent.append(1) or sent(*to), raising=False
        )
    logits = torch.zeros(4, VOCAB, device="meta")
    with Watched(saw):
        shaping.shaped(logits, [(0, (1,), shaping.Shaper(SamplingParams(repetition_penalty=1.7)))])
        masking.mask(logits, [(2, np.full((2, 1), 5, np.int32))])
        masking.first_masked(logits, [b"", b"\5\0\0\0", b"", b""])
    assert len(by_sent) == len(copies) == 8


def test_nothing_looks_at_a_number() -> None:
    """Of tensors that have none: whoever looked would fail."""
    logits, cases = pass_of(2, ALL_PARAMS[1:6])
    made = judge_at_once.given(cases, torch.device("cpu"), draws=True)
    bare = PaddedCases(*(each.to("meta") for each in made))
    columns = SamplingColumns.of(
        [case.params for case in cases for _ in range(made.rows.shape[1])], torch.device("meta")
    )
    count = made.rows.numel()
    noise = exponentials(
        [case.params for case in cases] * (count // len(cases)), range(count), VOCAB, "meta"
    )
    told = logits.to("meta")
    decisions = [
        at_once.greedy(told, bare),
        at_once.ratio(told, bare, columns),
        at_once.coupled(told, bare, columns, noise),
    ]
    assert [each.token.shape for each in decisions] == [(len(cases),)] * 3
