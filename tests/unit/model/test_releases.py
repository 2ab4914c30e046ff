"""The library's names for a cache, those of older and newer releases, and that nothing we do makes
it complain."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from dspark.model.checkpoint import load_target
from dspark.model.target import cache_argument
from dspark.training.lockstep import generate
from verify_service import self_test
from verify_service.stateful import StatefulRunner


class Renamed(torch.nn.Module):
    """A model that takes its cache under one name only and refuses the other, as releases before
    and after do."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config, self.set_attn_implementation = model.config, model.set_attn_implementation

    def within(self, cache: DynamicCache | None, **asked: Any) -> Any:
        return self.model(**asked, **{cache_argument(self.model): cache})


class Before(Renamed):
    def forward(self, past_key_values: DynamicCache | None = None, **asked: Any) -> Any:
        assert "cache" not in asked
        return self.within(past_key_values, **asked)


class After(Renamed):
    def forward(self, cache: DynamicCache | None = None, **asked: Any) -> Any:
        assert "past_key_values" not in asked
        return self.within(cache, **asked)


@pytest.fixture(params=[None, Before, After])
def target(request: pytest.FixtureRequest, golden_target: Path) -> Any:
    loaded = load_target(str(golden_target))
    if request.param is not None:
        return dataclasses.replace(loaded, model=request.param(loaded.model))
    return loaded


def test_a_cache_per_request_goes_by_the_name_that_the_release_takes(target: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            self_test.disagreement(StatefulRunner(target.model, None), self_test.expected(target))
            is None
        )


def test_lockstep_goes_by_the_name_that_the_release_takes(target: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = generate(target.model, prompts=[[3, 4, 5], [6, 7]], total=9)
    whole = target.model(input_ids=ids, use_cache=False).logits.argmax(dim=-1)
    for row, given in enumerate((3, 2)):
        assert ids[row, given:].tolist() == whole[row, given - 1 : -1].tolist()
