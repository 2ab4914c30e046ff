"""What counts as going round in circles."""

import torch

from training.variety import circling_rows, repeats


def test_a_token_is_marked_when_its_run_of_four_was_there_before() -> None:
    assert repeats(torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 5]])).tolist() == [[False] * 7 + [True, False]]


def test_only_sampled_tokens_of_near_greedy_code_and_prose_are_made_less_likely() -> None:
    ids = torch.ones(6, 8, dtype=torch.int64)
    forced = torch.zeros(6, 8, dtype=torch.bool)
    forced[:, :6] = True
    shard = {"ids": ids, "forced": forced, "temperatures": torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])}
    kept, marked = circling_rows([shard], 8)
    assert kept.shape == (2, 8)  # code and prose of the first three rows
    assert marked.sum(dim=1).tolist() == [2, 2]
