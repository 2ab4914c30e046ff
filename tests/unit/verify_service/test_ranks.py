"""What rank 0 tells the others of a pass, and which devices and targets ranks are refused."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dspark.errors import ConfigError
from dspark.pages import numbers_of
from verify_service.config import VerifyConfig
from verify_service.plan import Segment
from verify_service.ranks import check_devices, check_plan, read_pass, write_pass

SEGMENTS = {
    "a prompt in a run of slots": Segment("one", 0, [5, 6, 7], range(32, 35), 3),
    "a draft on scattered slots": Segment("two", 4, [9, 8], np.array([7, 6, 90, 91, 3, 0]), 4),
    "a token": Segment("three", 1, [0], [70, 2]),
}


def spelled(segments: Sequence[Segment]) -> list[tuple[Any, ...]]:
    """All of segments but their keys."""
    return [
        (s.start, list(s.token_ids), type(s.slots) is range, numbers_of(s.slots).tolist(), s.prompt)
        for s in segments
    ]


@pytest.mark.parametrize("rows", [None, [], [0], [5, 0, 3]], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_another_rank_reads_the_pass_that_rank_0_runs(count: int, rows: list[int] | None) -> None:
    for chosen in itertools.permutations(SEGMENTS.values(), count):
        order = read_pass(write_pass(chosen, rows))
        assert spelled(order.segments) == spelled(chosen)
        assert len({segment.key for segment in order.segments}) == count
        assert order.rows == rows


@pytest.mark.parametrize(
    ("device", "cards", "problem"),
    [
        ("cuda:1", 4, "verify.device: cuda:1 is one card, and verify.tensor_parallel_size is 3"),
        ("auto", 2, "verify.tensor_parallel_size: 3 ranks need a card each, and there are 2"),
        ("cpu", 4, "verify.tensor_parallel_size: with device cpu only where there is no card"),
        ("cuda", 3, None),
        ("cpu", 0, None),
    ],
)
def test_each_rank_needs_a_device_of_its_own(
    device: str, cards: int, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    config = VerifyConfig(target="any", device=device, tensor_parallel_size=3)
    if problem is None:
        check_devices(config)
    else:
        with pytest.raises(ConfigError, match=f"^{problem}$"):
            check_devices(config)


@pytest.mark.parametrize(
    ("settings", "size", "problem"),
    [
        (
            {"num_attention_heads": 9, "num_key_value_heads": 3},
            2,
            "2 does not divide the target's 9 num_attention_heads",
        ),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 2},
            4,
            "4 does not divide the target's 2 num_key_value_heads",
        ),
        (
            {"model_type": "gpt2", "text_config": {"num_attention_heads": 5}},
            2,
            "2 does not divide the target's 5 num_attention_heads",
        ),
        (
            {"model_type": "gpt2"},
            2,
            "the library has no plan that divides a target of type gpt2",
        ),
        ({"model_type": "llama"}, 2, None),
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 3, None),
        ({"num_attention_heads": 8, "num_key_value_heads": None}, 2, None),
    ],
)
def test_a_target_is_divided_evenly(
    settings: dict[str, Any], size: int, problem: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = VerifyConfig(target=str(tmp_path), tensor_parallel_size=size)
    if problem is None:
        check_plan(config)
    else:
        with pytest.raises(ConfigError, match=f"^verify.tensor_parallel_size: {problem}$"):
            check_plan(config)
