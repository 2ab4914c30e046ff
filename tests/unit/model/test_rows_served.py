"""Rows of a context are the same however the weights of their projection lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dspark.model.checkpoint import load_projection

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize("name", ["dspark_vanilla", "dspark_deepseek_v4", "eagle3", "pair/drafter"])
@pytest.mark.parametrize("exact", [True, False], ids=["weights of two bytes", "weights of four"])
@torch.inference_mode()
def test_a_projection_that_serves_makes_the_same_rows(name: str, exact: bool) -> None:
    plain, served = load_projection(DATA / name), load_projection(DATA / name)
    generator = torch.Generator().manual_seed(1)
    for mine, its in zip(plain.parameters(), served.parameters(), strict=True):
        mine.copy_(torch.randn(mine.shape, generator=generator) / mine.shape[-1] ** 0.5)
        mine.copy_(mine.bfloat16() if exact else mine)
        its.copy_(mine)
    served.serve_rows()
    for count in (1, 3, 40):
        features = torch.randn(count, plain.feature_size, generator=generator)
        torch.testing.assert_close(served.project(features), plain.project(features), atol=1e-4, rtol=1e-4)
