"""`dspark train all` goes on under the settings it was begun with, and says which one differs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from dspark.cli.train import build_parser
from dspark.cli.train_all import _Chain, _identity, _read
from dspark.errors import ConfigError


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"token_ids": [3, 4]}\n', encoding="utf-8")
    return path


def _begin(prompts: Path, target: Path, options: str = "") -> _Chain:
    told = f"all --prompts {prompts} --target {target} --out {prompts.parent}/chain {options}"
    args: argparse.Namespace = build_parser().parse_args(told.split())
    chain = _Chain(Path(args.out), _identity(args, *_read(args)))
    chain.do("nothing", dict)  # what was begun is on the disk from the first stage on
    return chain


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rate 0.5", "rate: .* begun with 0.0006, not 0.5"),
        ("--seed 0", "seed: .* begun with 42, not 0"),
        ("--held-out-share 0.5", "held_out_share: .* begun with 0.1, not 0.5"),
        ("--min-supervised 3", "min_supervised: .* begun with 14, not 3"),
        ("--answer-tokens 5", "answer_tokens: .* begun with 128, not 5"),
        ("--ask-top-k 3", "ask_top_k: .* begun with 20, not 3"),
        ("--cache", "cache: .* begun with False, not True"),
    ],
)
def test_the_setting_that_differs_is_named(
    words: str, said: str, prompts: Path, golden_target: Path
) -> None:
    _begin(prompts, golden_target)
    with pytest.raises(ConfigError, match=re.compile(f"^{said}")):
        _begin(prompts, golden_target, words)


def test_settings_that_change_no_result_may_differ(prompts: Path, golden_target: Path) -> None:
    _begin(prompts, golden_target, "--taps 1,3")
    other = (
        "--taps 1,3 --device cpu --save-every 7 --log-every 3 --ask-concurrency 2 "
        "--ask-patience-s 9"
    )
    assert "nothing" in _begin(prompts, golden_target, other).notes["stages"]


def test_other_kept_tokens_are_another_run(prompts: Path, golden_target: Path) -> None:
    kept = prompts.parent / "kept.json"
    for content in ("[1]", "[1, 2]"):
        kept.write_text(content, encoding="utf-8")
        if content == "[1]":
            _begin(prompts, golden_target, f"--keep-tokens {kept}")
    with pytest.raises(ConfigError, match=r"^keep_tokens: "):
        _begin(prompts, golden_target, f"--keep-tokens {kept}")


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", '{"identity": 1, "stages": {}}'])
def test_notes_that_are_none_are_named(content: str, prompts: Path, golden_target: Path) -> None:
    _begin(prompts, golden_target)
    notes = prompts.parent / "chain" / "chain.json"
    notes.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(f"{notes}: no notes of a chain")):
        _begin(prompts, golden_target)
