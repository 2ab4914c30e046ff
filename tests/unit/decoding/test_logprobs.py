"""Log-probabilities: of the very tokens, of the raw logits, ranked; by the definition, written
out."""

from __future__ import annotations

import math

import pytest
import torch

from dspark.decoding.logprobs import ROWS, prompt_logprobs, token_logprobs


def _log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    whole = top + math.log(sum(math.exp(each - top) for each in row))
    return [each - whole for each in row]


def _rows(count: int) -> torch.Tensor:
    return torch.randn(count, 11, generator=torch.Generator().manual_seed(count)) * 3


@pytest.mark.parametrize("top", [0, 3, 20])
def test_each_token_is_told_from_its_own_row(top: int) -> None:
    logits, ids = _rows(4), [7, 0, 10, 7]
    told = token_logprobs(logits, ids, top)
    assert len(told) == 4
    for one, token, row in zip(told, ids, logits.tolist(), strict=True):
        logs = _log_softmax(row)
        assert one.logprob == pytest.approx(logs[token], abs=1e-5)
        ranked = sorted(range(11), key=lambda each: -logs[each])[:top]
        assert list(one.top_ids) == ranked
        assert list(one.top_logprobs) == pytest.approx([logs[each] for each in ranked], abs=1e-5)


def test_a_prompt_of_several_pieces_is_scored_row_by_row() -> None:
    count = 2 * ROWS + 5
    logits, ids = _rows(count), [(3 * at) % 11 for at in range(count)]
    told = prompt_logprobs(logits, ids, 2)
    for at, (token, row) in enumerate(zip(ids, logits.tolist(), strict=True)):
        logs = _log_softmax(row)
        assert told.logprobs[at] == pytest.approx(logs[token], abs=1e-5)
        assert told.ranks[at] == 1 + sum(each > row[token] for each in row)
        assert told.top_ids[at].tolist() == sorted(range(11), key=lambda each: -logs[each])[:2]


def test_equals_go_to_the_lower_id_and_a_row_that_is_not_numbers_is_an_error() -> None:
    flat = torch.zeros(1, 4)
    assert token_logprobs(flat, [3], 4)[0].top_ids == (0, 1, 2, 3)
    assert prompt_logprobs(flat, [3], 4).ranks.tolist() == [1]
    with pytest.raises(FloatingPointError):
        prompt_logprobs(torch.full((1, 4), math.nan), [0], 1)
