"""Rows of a context are the same however the weights of their projection lie."""

import pytest
import torch

from dspark.model.checkpoint import load_projection
from dspark.model.context import FusedFeatures
from tests.unit.model.golden import DATA
from verify_service.config import VerifyConfig
from verify_service.loading import load_parts


@pytest.mark.parametrize("name", ["dspark_vanilla", "eagle3", "pair/drafter"])
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
    assert isinstance(served, FusedFeatures)
    assert served._product is not None
    assert served._product.form in (("half", "columns") if exact else ("columns",))
    if served._product.form == "half":
        assert not served.fc.weight.numel(), "one copy is enough"
    else:
        assert served._product._weight.data_ptr() == served.fc.weight.data_ptr(), "likewise"
    for count in (1, 3, 40):
        features = torch.randn(count, plain.feature_size, generator=generator)
        torch.testing.assert_close(
            served.project(features), plain.project(features), atol=1e-4, rtol=1e-4
        )


def test_a_verifier_has_one_that_serves() -> None:
    config = VerifyConfig(
        target=str(DATA / "target_qwen3"), drafter=str(DATA / "dspark_vanilla"), kv_tokens=4096
    )
    projection = load_parts(config).projection
    assert isinstance(projection, FusedFeatures)
    assert projection._product is not None
