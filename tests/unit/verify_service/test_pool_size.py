"""The key-value pool of a verifier that was told no size: what its card has left, or a number on a
processor."""

import re
from pathlib import Path

import pytest
import torch

from dspark.errors import ConfigError
from dspark.model.checkpoint import load_target
from dspark.model.placement import slot_bytes
from dspark.model.target import decoder_layers
from verify_service import loading
from verify_service.config import KV_TOKENS, VerifyConfig
from verify_service.engine import VerifyEngine

GB = 1_000_000_000


def test_on_a_processor_it_is_a_number(golden_target: Path) -> None:
    engine = VerifyEngine.load(VerifyConfig(target=str(golden_target)))
    assert engine.config.kv_tokens == KV_TOKENS
    assert engine.held.pages_total == KV_TOKENS // engine.config.page_size


def test_on_a_card_it_is_what_is_left_of_a_share_of_its_memory(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target(golden_target, dtype=torch.bfloat16)
    each = slot_bytes(decoder_layers(target.model), torch.bfloat16)
    free, whole = 6 * GB, 10 * GB  # somebody else has four already
    monkeypatch.setattr(loading, "card_memory", lambda device: (free, whole))

    def tokens(**settings: float) -> int:
        config = VerifyConfig(target="t", **settings)  # type: ignore[arg-type]
        return loading.sized(config, target, torch.device("cuda"), torch.bfloat16).kv_tokens

    config = VerifyConfig(target="t")
    room = 9 * GB - (whole - free) - loading.pass_bytes(config, target, torch.bfloat16)
    assert tokens() == room // each // config.page_size * config.page_size
    assert tokens(gpu_memory_utilization=0.5) < tokens() / 3
    assert tokens(kv_tokens=640) == 640, "who says a number gets it"
    with pytest.raises(
        ConfigError, match=re.escape("verify.gpu_memory_utilization: 0.4 of 10.0 GB leaves no page")
    ):
        tokens(gpu_memory_utilization=0.4)


def test_states_of_the_library_get_half_of_what_kept_states_leave(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass makes all of them anew, and those of before are kept until the next one."""
    monkeypatch.setattr(loading, "card_memory", lambda device: (GB // 5, GB // 5))
    monkeypatch.setattr(loading, "free_bytes", lambda device: GB // 5)
    paged, stateful, told = (
        loading.load_parts(
            VerifyConfig(target=str(golden_target), gpu_memory_utilization=0.5, **settings)
        )
        for settings in (
            {},
            {"attention": "stateful", "state_cache_mb": 10},
            {"attention": "stateful", "kv_tokens": 640},
        )
    )
    assert (paged.runner.path, stateful.runner.path) == ("paged", "stateful")
    each = slot_bytes(decoder_layers(paged.target.model), torch.float32)
    pages = (paged.config.kv_tokens - (10 << 20) // each) // paged.config.page_size
    assert stateful.config.kv_tokens == pages // 2 * stateful.config.page_size
    assert told.config.kv_tokens == 640, "who says a number gets it"
    with pytest.raises(
        ConfigError, match=re.escape("beside the weights and verify.state_cache_mb (0.2 GB")
    ):
        loading.load_parts(VerifyConfig(target=str(golden_target), attention="stateful"))
