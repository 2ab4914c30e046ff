"""What is too small for the target is refused in words, by the setting's name, before anything is
served."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dspark.errors import ConfigError
from dspark.model import placement
from dspark.model.checkpoint import load_target
from verify_service import loading
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.model_runner import ModelRunner


@pytest.mark.parametrize(
    ("page", "least", "too_few"),
    [(16, 64, (24, 48)), (1, 46, (45,))],  # two cases of up to 23 tokens, in whole pages
)
def test_a_pool_that_does_not_hold_the_self_test_is_refused_with_the_least_that_does(
    golden_target: Path, page: int, least: int, too_few: tuple[int, ...]
) -> None:
    def load(slots: int) -> VerifyEngine:
        config = VerifyConfig(target=str(golden_target), kv_tokens=slots, page_size=page)
        return VerifyEngine.load(config)

    for slots in too_few:
        said = rf"^verify\.kv_tokens: {slots} are .* self-test of this target needs {least},"
        with pytest.raises(ConfigError, match=said):
            load(slots)
    assert load(least).attention_path == "paged"


def test_a_pool_that_does_not_fit_into_memory_is_refused_with_what_would(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = 2 * 6 * 2 * 16 * 4  # keys and values, layers, heads, head size, bytes
    monkeypatch.setattr(loading, "free_bytes", lambda device: 1000 * each)
    VerifyEngine.load(VerifyConfig(target=str(golden_target), kv_tokens=992))
    said = (
        rf"^verify\.kv_tokens: 1008 slots of {each} bytes take 0\.0 GB, and 0\.0 GB are free "
        r"on "
        r"cpu .*: 1000 would fit"
    )
    with pytest.raises(ConfigError, match=said):
        VerifyEngine.load(VerifyConfig(target=str(golden_target), kv_tokens=1008))


def test_memory_that_is_free_is_the_less_of_the_machines_and_the_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (placement.free_bytes(torch.device("cpu")) or 0) > 1 << 20
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 50000\n")
    assert placement._left_to_group(tmp_path) == 750_000
    (tmp_path / "memory.max").write_text("max\n")
    assert placement._left_to_group(tmp_path) is None
    assert placement._left_to_group(tmp_path / "none") is None
    monkeypatch.setattr(placement, "_available", lambda: 5)
    monkeypatch.setattr(placement, "_left_to_group", lambda: 3)
    assert placement.free_bytes(torch.device("cpu")) == 3


def test_a_card_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert placement.pick_device("cuda:1", key="draft.device") == torch.device("cuda:1")
    with pytest.raises(
        ConfigError,
        match=r"^draft\.device: cuda:2 was asked for, and the last of the 2 cards .* cuda:1",
    ):
        placement.pick_device("cuda:2", key="draft.device")
    used = list[torch.device]()
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    for name in ("cpu", "cuda", "cuda:1"):
        placement.use(torch.device(name))
    assert used == [torch.device("cuda:1")]


def test_a_target_whose_layers_have_other_names_is_no_smaller_for_it(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target(str(golden_target))
    monkeypatch.setattr(loading, "free_bytes", lambda device: 0)
    for stranger in (
        SimpleNamespace(layers=None),
        SimpleNamespace(layers=torch.nn.ModuleList([torch.nn.Identity()])),
    ):
        loading.check_room(
            VerifyConfig(), replace(target, model=stranger), torch.device("cpu"), torch.float32
        )


def test_a_pool_that_leaves_no_room_for_a_pass_is_refused_and_not_served_another_way(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: ModelRunner, *_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(ModelRunner, "run", full)
    with pytest.raises(ConfigError, match=r"^verify\.kv_tokens: .* no room .*CUDA out of memory"):
        VerifyEngine.load(VerifyConfig(target=str(golden_target), kv_tokens=1024))
