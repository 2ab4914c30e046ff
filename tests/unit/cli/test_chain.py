"""`dspark train all` goes on under the settings it was begun with, wherever it lies by then, says
which one differs, and tells its results in JSON that strict parsers read."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from dspark.cli.main import build_parser, main
from dspark.cli.train_all import _identity, _read
from dspark.errors import ConfigError
from dspark.training.chain_stages import NOTES, Chain

RAN = {"tokens": 2, "tokens_per_second": 1.0, "tokens_per_round": 1.0}
# what the report reads of each stage; drafts that were never accepted have no ranking
STAGES: dict[str, dict[str, Any]] = {
    "split": {
        "train": 1, "calibrate": 2, "evaluate": 1,
        **{f"{name}_file": f"elsewhere/{name}" for name in ("train", "calibrate", "evaluate")},
    },
    "regenerate": {"rows": 1, "tokens": 2, "failed": 0},
    "encode": {"samples": 1, "tokens": 2, "supervised": 2},
    "train": {"drafter": "d", "step": 1.0, "first_loss": 2.0, "loss": 1.0},
    "calibrate": {
        "fits": [{"mean_ece_before": 0.1, "mean_ece_after": 0.1, "auc_each": [0.5, math.nan]}]
    },
    "evaluate": {
        "family": "dspark", "block_size": 2, "rule": "token", "fit": {"said": ""},
        "temperatures": {},
    },
    "serve": {"same_ids": True, "prompts": 1, "drafting": RAN, "off": RAN},
}  # fmt: skip


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"token_ids": [3, 4]}\n', encoding="utf-8")
    return path


def _words(prompts: Path, target: Path, options: str = "") -> list[str]:
    told = f"train all --prompts {prompts} --target {target} --out {prompts.parent}/chain {options}"
    return told.split()


def _begin(prompts: Path, target: Path, options: str = "") -> Chain:
    args = build_parser().parse_args(_words(prompts, target, options))
    chain = Chain(Path(args.out), _identity(args, *_read(args)))
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
def test_what_differs_is_named(words: str, said: str, prompts: Path, golden_target: Path) -> None:
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
    notes = prompts.parent / "chain" / NOTES
    notes.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(f"{notes}: no notes of a chain")):
        _begin(prompts, golden_target)


def _go_on(prompts: Path, target: Path, *missing: str) -> int:
    """With a chain that is done but for these stages."""
    chain = _begin(prompts, target)
    for name in STAGES.keys() - missing:
        chain.do(name, lambda name=name: STAGES[name])
    return main(_words(prompts, target, "--json"))


def test_what_has_no_figure_is_null(
    prompts: Path, golden_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _go_on(prompts, golden_target) == 0
    report = prompts.parent / "chain" / "report.json"
    for text in (capsys.readouterr().out, report.read_text()):
        told = json.loads(text, parse_constant=pytest.fail)
        assert told["stages"]["calibrate"]["fits"][0]["auc_each"] == [0.5, None]


def test_a_chain_goes_on_where_it_is_now(
    prompts: Path, golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, out = list[Path](), prompts.parent / "chain"

    def evaluated(*given: Any, **_: Any) -> dict[str, Any]:
        read.extend(given[2])
        return STAGES["evaluate"]

    monkeypatch.setattr("dspark.training.evaluate.evaluate", evaluated)
    assert _go_on(prompts, golden_target, "evaluate") == 0
    assert read == [out / "prompts" / "evaluate.jsonl"]
    assert f"--drafter {out / 'train' / 'drafter'}" in (out / "report.md").read_text()
