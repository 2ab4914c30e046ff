import asyncio
import threading
from pathlib import Path

import pytest

from coordinator.config import CoordinatorConfig
from coordinator.process import check, start
from coordinator.reception.tokenizer import Tokenizer, find_tokenizer
from dspark.errors import ConfigError
from dspark.rounds.policy import Fixed
from dspark.types import Rule
from dspark.wire.control_down import MAX_WINDOW


def test_the_defaults_can_work() -> None:
    assert str(check(CoordinatorConfig())[0]) == "adaptive"
    told = CoordinatorConfig(policy="fixed:3", rule="coupled", window=MAX_WINDOW)
    assert check(told) == (Fixed(3), Rule.COUPLED)


ENDPOINTS = [
    (("nowhere",), "is not host:port"),
    (("http://host:1",), "is not host:port"),
    (("host:0",), "needs the port of a worker"),
    (("host:1", "host:2", "host:1"), "'host:1' is given twice"),
    (("[::1]:1", "[0:0:0:0:0:0:0:1]:1"), "is given twice"),
]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("policy", "fastest", ""),
        ("rule", "typical", ""),
        ("window", -1, ""),
        ("window", MAX_WINDOW + 1, ""),
        ("cohorts", 3, ""),
        ("max_running", 0, ""),
        ("max_queued", -1, ""),
        ("max_prefills", 0, ""),
        ("verify_deadline_s", 0.0, ""),
        ("prefill_deadline_s", float("nan"), ""),
        ("otel_share", 1.5, ""),
        ("otel_endpoint", "collector", "is not host:port"),
        *((key, *wrong) for key in ("verify", "draft") for wrong in ENDPOINTS),
    ],
)
async def test_what_cannot_work_is_refused_by_key_before_anything_is_opened(
    key: str, value: object, why: str
) -> None:
    with pytest.raises(ConfigError, match=f"coordinator.{key}: .*{why}"):
        await start(CoordinatorConfig(**{key: value}))


def test_a_folder_without_a_tokenizer_means_ids_only(tmp_path: Path) -> None:
    assert find_tokenizer(str(tmp_path), None) is None
    assert find_tokenizer(None, None) is None


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_hub_id_that_is_not_in_the_cache_is_refused_offline() -> None:
    with pytest.raises(ConfigError, match="target: nobody/nothing"):
        find_tokenizer("nobody/nothing", None)


async def test_a_hub_that_does_not_answer_holds_up_neither_the_loop_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        asked.set()
        answer.wait(60.0)

    monkeypatch.setattr("coordinator.reception.tokenizer.find_tokenizer", hangs)
    starting = asyncio.create_task(start(CoordinatorConfig(target="nobody/nothing")))
    assert await asyncio.to_thread(asked.wait, 30.0)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    (left,) = (one for one in threading.enumerate() if one.name == "device-tokenizer")
    assert left.daemon, "the process ends without it"
    answer.set()
