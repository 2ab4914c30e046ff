"""Prompts of every shape become conversations, and each goes to one part."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dspark.errors import ConfigError
from dspark.training import chain_stages
from dspark.training.asked import domain_of
from dspark.training.chat import Chat
from dspark.training.disk import read_rows, write_rows
from dspark.training.settings import Settings
from dspark.training.split import conversation_of, split_prompts

PARTS = ("train", "calibrate", "evaluate")


def parts_of(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The rows of each part."""
    return [list(read_rows(Path(found[f"{name}_file"]))) for name in PARTS]


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            ["user", "assistant"],
        ),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]},
            ["user"],
        ),
        ({"turns": ["one", "two"]}, ["user", "user"]),
        ({"turns": [[3, 4], "two"]}, ["user", "user"]),
        ({"prompt": "q"}, ["user"]),
        ({"token_ids": [3, 4]}, ["user"]),
        # columns of other rows, as tables export them
        (
            {
                "conversations": None,
                "messages": [
                    {"from": None, "role": "user", "value": None, "content": "q", "token_ids": None}
                ],
            },
            ["user"],
        ),
        ({"turns": None, "prompt": "q", "token_ids": None}, ["user"]),
    ],
)
def test_every_shape_of_a_row_is_read(row: dict[str, Any], roles: list[str]) -> None:
    assert [turn["role"] for turn in conversation_of(row)] == roles


def test_a_null_is_no_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"prompt": "q", "id": None, "domain": None}])
    split_prompts(tmp_path / "rows.jsonl", tmp_path, held_out=0.0)
    (row,) = read_rows(tmp_path / "train.jsonl")
    assert row["id"] == "row-0"
    assert domain_of(tmp_path / "rows.jsonl") == "rows"


def test_half_of_a_character_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "so \\ud83d", "id": "\\ud83d"}\n', encoding="utf-8")
    split_prompts(path, tmp_path, held_out=0.0)
    (row,) = read_rows(tmp_path / "train.jsonl")
    assert row["conversations"][0]["content"] == "so \ufffd"


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"turns": []},
        {"turns": [" "]},
        {"turns": [3]},
        {"token_ids": [-1]},
        {"token_ids": []},
        {"conversations": [{"from": "gpt", "value": "a"}]},
        {"conversations": "text"},
    ],
)
def test_a_row_that_is_no_prompt_is_refused_with_a_reason(row: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        conversation_of(row)


def test_every_good_row_is_in_exactly_one_part(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": f"r{n}", "prompt": f"text {n}", "domain": "code"} for n in range(40)
    ]
    rows += [{"nothing": 1}, {"id": "r3", "prompt": "the id again"}]
    path = tmp_path / "prompts.jsonl"
    write_rows(path, rows)
    counts = split_prompts(path, tmp_path / "out", held_out=0.2)
    train, *halves = parts_of(counts)
    assert [counts[part] for part in PARTS] == [len(train), *map(len, halves)] == [33, 4, 4]
    test = [*halves[0], *halves[1]]
    assert sum(counts["refused"].values()) == 1
    ids = [row["id"] for row in train + test]
    assert len(ids) == len(set(ids)) == 41
    assert len(test) == 8
    assert all(row["domain"] == "code" for row in test)
    first = (tmp_path / "out" / "train.jsonl").read_bytes()
    split_prompts(path, tmp_path / "again", held_out=0.2)
    assert (tmp_path / "again" / "train.jsonl").read_bytes() == first
    split_prompts(path, tmp_path / "other", held_out=0.2, seed=1)
    assert (tmp_path / "other" / "train.jsonl").read_bytes() != first


def test_shares_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    write_rows(path, [{"id": n, "token_ids": [3, 4, n]} for n in range(40)])

    def parts(**told: Any) -> list[list[dict[str, Any]]]:
        return parts_of(split_prompts(path, tmp_path / "out", **told))

    few = parts(held_out=0.2, limit=10)
    assert {row["id"] for part in few for row in part} != {str(n) for n in range(10)}
    assert few[1][0]["turns"] == [[3, 4, int(few[1][0]["id"])]]
    sizes = [[*map(len, parts(held_out=share))] for share in (0.2, 0.001, 0.999, 0.0)]
    assert [[*map(len, few)], *sizes] == [
        [8, 1, 1],
        [32, 4, 4],
        [39, 1, 0],
        [1, 20, 19],
        [40, 0, 0],
    ]
    with pytest.raises(ConfigError, match=r"held_out: 1\.0 is no share"):
        parts(held_out=1.0)


def test_a_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    write_rows(path, [{"nothing": 1}])
    with pytest.raises(ConfigError, match="no row is a prompt"):
        split_prompts(path, tmp_path / "out")


def test_what_is_held_out_is_not_trained_on_under_another_name(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": str(number), "prompt": f"q{number % 5}"} for number in range(50)]
    write_rows(file, rows)
    found = split_prompts(file, tmp_path / "out", held_out=0.04)
    train, *halves = parts_of(found)
    held = {row["turns"][0] for half in halves for row in half}
    trained = [row["conversations"][0]["content"] for row in train]
    assert held
    assert trained
    assert not held & set(trained)
    assert found["refused"] == {"repeats a held-out prompt": 50 - 2 - len(trained)}
    with pytest.raises(ConfigError, match="every prompt repeats a held-out one"):
        split_prompts(file, tmp_path / "all", held_out=0.9)


def _asked_of(target: Path, file: Path, prompts: list[list[int]], **told: Any) -> dict[str, Any]:
    """What the chain makes of these prompts."""
    write_rows(file, ({"token_ids": ids} for ids in prompts))
    settings = Settings(str(target), samples="", out="")
    told = {"share": 0.1, "limit": 0, "answer": 9} | told
    return chain_stages.split(file, file.parent, settings, **told)


def test_too_few_prompts_of_either_part_are_told_of_before_training(
    golden_target: Path, tmp_path: Path
) -> None:
    split = partial(_asked_of, golden_target, tmp_path / "prompts.jsonl")
    with pytest.raises(ConfigError, match=r"held_out_share: 0\.1 of the prompts are 2"):
        split([[3, n] for n in range(20)])
    with pytest.raises(ConfigError, match="held_out: 16 of 17 conversations"):
        split([[3, n] for n in range(20)], share=0.15)
    with pytest.raises(ConfigError, match="target: ends at 512 tokens; an answer of 600 and"):
        split([[3, n] for n in range(30)], answer=600)


def test_what_calibration_has_no_room_for_is_trained_on(
    golden_target: Path, tmp_path: Path
) -> None:
    long = [[3] * (400 + n) for n in range(9)]
    cannot = [[400], [3] * 512]  # be asked of this target
    prompts = [*([3, n] for n in range(30)), *long, *cannot]
    found = _asked_of(golden_target, tmp_path / "prompts.jsonl", prompts)
    train, *held = parts_of(found)
    assert [len(train), *map(len, held)] == [35, 2, 2]
    trained = [row["conversations"][0]["token_ids"] for row in train]
    assert [ids for ids in trained if len(ids) > 2] == long
    assert sum(found["refused"].values()) == 2


def test_no_more_rows_are_read_as_tokens_than_are_used(
    golden_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, prompt_ids = list[Any](), Chat.prompt_ids

    def read(self: Chat, turns: Any) -> list[int]:
        asked.append(turns)
        return prompt_ids(self, turns)

    monkeypatch.setattr(Chat, "prompt_ids", read)
    prompts = [[3, n] for n in range(100)]
    found = _asked_of(golden_target, tmp_path / "prompts.jsonl", prompts, limit=30)
    assert sum(map(len, parts_of(found))) == 30
    assert len(asked) == 30
