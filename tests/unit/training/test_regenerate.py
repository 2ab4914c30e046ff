"""Rows that can never be answered are written as such, and a cell that is away is waited for."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from dspark.client import AsyncClient, DeadlineExceeded, ModelInfo, Unavailable
from dspark.errors import ConfigError
from dspark.training import disk
from dspark.training import regenerate as stage
from dspark.training.chat import Chat
from dspark.training.disk import read_rows, write_rows
from dspark.training.regenerate import regenerate
from dspark.training.samples import encode_rows
from dspark.training.settings import RegenerationSettings

INFO = ModelInfo("tiny", "", 128, 64, 1, (0,), "off", "block", False)
ROWS: list[dict[str, Any]] = [
    {"id": "ids", "conversations": [{"role": "user", "content": "", "token_ids": [3, 4, 5]}]},
    {"id": "none"},
    {"id": "a text", "conversations": "what?"},
    {"id": "texts", "conversations": ["what?"]},
    {"id": "no role", "conversations": [{"content": "what?"}]},
    {"id": "no content", "conversations": [{"role": "user"}]},
    {"id": "wrong ids", "conversations": [{"role": "user", "content": "", "token_ids": ["x"]}]},
    {"id": "no tokenizer", "conversations": [{"from": "human", "value": "what?"}]},
    {"id": "other shape", "token_ids": [7, 8]},
]


class Answering:
    """A cell that says the prompt once more; away for the first few calls."""

    def __init__(self, *, away: int = 0) -> None:
        self.away, self.asked = away, list[list[int]]()
        self.told: list[dict[str, Any]] = []
        self.running = self.most = 0
        self.info = INFO

    async def model_info(self) -> ModelInfo:
        if self.away:
            self.away -= 1
            raise Unavailable("nobody there")
        return self.info

    async def complete(self, prompt: list[int], **told: Any) -> Any:
        self.asked.append(list(prompt))
        self.told.append(told)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return SimpleNamespace(
            text="", token_ids=tuple(prompt), end=SimpleNamespace(finish_reason="stop")
        )


async def asked(cell: Answering, prompts: Path, out: Path, chat: Chat, **asking: Any) -> Any:
    """What the stage says it did."""
    settings = RegenerationSettings(**asking)
    return await regenerate(cast(AsyncClient, cell), prompts, out, chat, settings)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    write_rows(path, ROWS)
    return path


async def test_a_row_of_the_wrong_shape_ends_itself_and_not_the_run(
    prompts: Path, golden_target: Path, tmp_path: Path
) -> None:
    cell, out, chat = Answering(), tmp_path / "out.jsonl", Chat(golden_target)
    counts = await asked(cell, prompts, out, chat, concurrency=2)
    rows = list(read_rows(out))
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS]
    assert [row["id"] for row in rows if row["status"] == "success"] == ["ids", "other shape"]
    reasons = {row["id"]: row["reason"] for row in rows if row["status"] == "error"}
    assert "an empty turn" in reasons["no content"]
    assert "not the user's" in reasons["no role"]
    assert "no conversations" in reasons["texts"]
    assert "token_ids is not a list" in reasons["wrong ids"]
    assert "no tokenizer" in reasons["no tokenizer"]
    assert (counts["rows"], counts["failed"], counts["tokens"]) == (9, 7, 5)
    assert sorted(cell.asked) == [[3, 4, 5], [7, 8]]
    again = await asked(cell, prompts, out, chat)
    assert {**again, "seconds": 0} == {**counts, "seconds": 0}, "counts of the whole file"
    encoded = encode_rows(out, tmp_path / "samples.safetensors", chat, min_supervised=1)
    assert (encoded["samples"], encoded["failed"]) == (2, 7)


TURNS: Any = SimpleNamespace(prompt_ids=lambda turns: [3] * len(turns))


async def test_an_answer_is_asked_for_by_its_law_and_a_seed_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out, cell = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl", Answering()
    write_rows(prompts, [{"id": n, "turns": ["a", "b"]} for n in range(20)])
    law: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1}
    asking = {**law, "max_tokens": 62, "concurrency": 8, "answer_timeout_s": 9.0}
    flushed = Mock(side_effect=os.fsync)
    monkeypatch.setattr(disk.os, "fsync", flushed)
    await asked(cell, prompts, out, TURNS, **asking)
    assert flushed.call_count < 12, "rows that end together go to the disk together"
    assert sorted(cell.asked) == [[3]] * 20 + [[3, 3, 3]] * 20, "the first answer is asked with"
    seeds = [told.pop("seed") for told in cell.told]
    assert len({*seeds}) == 40
    assert max(seeds) < 1 << 63
    rooms = [min(62, INFO.context_length - len(prompt)) for prompt in cell.asked]
    assert cell.told == [{**law, "timeout": 9.0, "max_tokens": room} for room in rooms]
    assert cell.most == 8
    answers = [turn for row in read_rows(out) for turn in row["conversations"][1::2]]
    assert {turn["finish_reason"] for turn in answers} == {"stop"}


async def test_a_file_that_was_begun_otherwise_is_not_gone_on_with(tmp_path: Path) -> None:
    prompts, other = tmp_path / "prompts.jsonl", tmp_path / "other.jsonl"
    out, cell = tmp_path / "out.jsonl", Answering()
    write_rows(prompts, [{"id": "a", "turns": ["a"]}])
    write_rows(other, [{"id": "b", "turns": ["b"]}])
    await asked(cell, prompts, out, TURNS)
    with pytest.raises(ConfigError, match=r"^prompts: .* was begun with"):
        await asked(cell, other, out, TURNS)
    with pytest.raises(ConfigError, match=r"^seed: .* was begun with"):
        await asked(cell, prompts, out, TURNS, seed=7)
    cell.info = replace(INFO, model="huge")
    with pytest.raises(ConfigError, match=r"^target: .* was begun with 'tiny', not 'huge'"):
        await asked(cell, prompts, out, TURNS)
    out.with_name("out.jsonl.settings.json").unlink()
    out.write_text("another's, without a line break")
    with pytest.raises(ConfigError, match="does not say how it was made"):
        await asked(cell, prompts, out, TURNS)
    assert out.read_text() == "another's, without a line break"


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": 0}, {"top_p": 0.0}, {"min_p": 2.0}, {"temperature": -1.0}, {"top_k": -2}],
)
def test_what_no_cell_would_answer_is_refused_before_it_is_asked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RegenerationSettings(**wrong)


async def test_a_cell_that_is_away_at_the_start_is_waited_for(
    prompts: Path, golden_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PAUSE_S", 0.0)
    chat, cell = Chat(golden_target), Answering(away=2)
    await asked(cell, prompts, tmp_path / "out.jsonl", chat)
    assert cell.away == 0
    with pytest.raises(Unavailable):
        await asked(Answering(away=2), prompts, tmp_path / "o.jsonl", chat, patience_s=-1.0)


async def test_a_row_that_is_late_is_written_as_failed(golden_target: Path, tmp_path: Path) -> None:
    class Slow(Answering):
        async def complete(self, prompt: list[int], **_: Any) -> Any:
            raise DeadlineExceeded("no answer within 600 s")

    path, out = tmp_path / "one.jsonl", tmp_path / "out.jsonl"
    write_rows(path, ROWS[:1])
    await asked(Slow(), path, out, Chat(golden_target), patience_s=-1.0)
    (row,) = read_rows(out)
    assert row["status"] == "error"
    assert row["reason"].startswith("answer_timeout_s: 600 s")


async def test_patience_begins_with_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now, failures = [0.0], [1]

    async def ask() -> str:
        now[0] += 600.0
        if failures:
            failures.pop()
            raise Unavailable("away")
        return "here"

    monkeypatch.setattr(stage, "PAUSE_S", 0.0)
    monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert await stage._patiently(ask, 300.0) == "here"
