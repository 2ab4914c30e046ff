"""What an evaluation prompt may share with training text."""

import json
from pathlib import Path
from typing import Any

import pytest

from dspark.cli.main import main
from dspark.errors import ConfigError
from dspark.training.disk import write_rows
from dspark.training.overlap import RUN, separate, words_of

LONG = "a clerk counts every sheet of paper in the drawer twice before the office closes at night"


def _file(path: Path, rows: list[dict[str, Any]]) -> Path:
    write_rows(path, rows)
    return path


def _turns(text: str) -> dict[str, Any]:
    return {"turns": [text]}


def test_a_run_of_thirteen_words_is_shared_and_one_of_twelve_is_not(tmp_path: Path) -> None:
    words = LONG.split()
    prompts = _file(tmp_path / "p.jsonl", [_turns(LONG)])
    for size, shared in ((RUN, 1), (RUN - 1, 0)):
        text = "Yesterday " + " ".join(words[2 : 2 + size]).upper() + ", they said."
        training = _file(tmp_path / "t.jsonl", [{"messages": [{"role": "user", "content": text}]}])
        assert separate([prompts], [training])["shared"] == shared


def test_answers_of_training_text_count_as_well(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": f"Well: {LONG}."},
    ]
    training = _file(tmp_path / "t.jsonl", [{"conversations": turns}])
    assert separate([_file(tmp_path / "p.jsonl", [_turns(LONG)])], [training])["shared"] == 1


def test_numbers_are_erased_and_a_short_prompt_is_one_run(tmp_path: Path) -> None:
    assert words_of("What is 17 times 2,400.5?") == ["what", "is", "0", "times", "0"]
    prompts = _file(
        tmp_path / "p.jsonl", [_turns("What is 17 times 24?"), _turns("What is 17 plus 24?")]
    )
    training = _file(tmp_path / "t.jsonl", [{"prompt": "Tell me: what is 3 times 5? Quickly."}])
    assert separate([prompts], [training]) == {
        "prompts": 2, "shared": 1, "kept": 1,
        "files": {"p.jsonl": {"prompts": 2, "shared": 1, "kept": 1}},
    }  # fmt: skip


def test_the_command_prints_the_counts_and_writes_what_is_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = _file(tmp_path / "p.jsonl", [_turns(LONG), _turns("Name three rivers.")])
    training = _file(tmp_path / "t.jsonl", [{"prompt": LONG}])
    command = f"train overlap {prompts} --training {training} --out {tmp_path}/clean --json"
    assert main(command.split()) == 0
    assert json.loads(capsys.readouterr().out)["shared"] == 1
    assert json.loads((tmp_path / "clean/p.jsonl").read_text(encoding="utf-8")) == _turns(
        "Name three rivers."
    )


def test_rows_that_are_no_text_are_named(tmp_path: Path) -> None:
    prompts = _file(tmp_path / "p.jsonl", [_turns("Fine."), {"token_ids": [1, 2]}])
    with pytest.raises(ConfigError, match=r"p\.jsonl: row 2: token_ids"):
        separate([prompts], [prompts])
    with pytest.raises(ConfigError, match=r"gone\.jsonl: cannot be read: No such file"):
        separate([tmp_path / "gone.jsonl"], [prompts])
