"""`dspark train`: every setting is a flag, and what is wrong is said in one sentence."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest

from deploy import train_workers
from dspark.cli.main import build_parser, main
from dspark.cli.options import read_keys
from dspark.errors import DsparkError
from dspark.training.disk import write_rows
from dspark.training.settings import RegenerationSettings, Settings
from tests.commands import python

REQUIRED = ["train", "drafter", "s.safetensors", "--target", "t", "--out", "o"]


def test_without_flags_a_run_has_the_published_settings() -> None:
    wanted = Settings(target="t", samples="s.safetensors", out="o")
    assert read_keys(build_parser().parse_args(REQUIRED), Settings, "train") == wanted
    words = ["train", "regenerate", "p.jsonl", "--target", "t", "--out", "o"]
    assert (
        read_keys(build_parser().parse_args(words), RegenerationSettings, "ask")
        == RegenerationSettings()
    )


CHANGED = {
    "family": "mtp",
    "head": "rnn",
    "optimizer": "muon",
    "schedule": "linear",
    "precision": "bf16",
    "taps": "1,3",
}


def test_every_setting_is_a_flag() -> None:
    words, wanted = list(REQUIRED), dict[str, object]()
    for field in dataclasses.fields(Settings):
        if field.name in ("target", "samples", "out"):
            continue
        value = CHANGED.get(field.name, field.default)
        if isinstance(value, float):
            value = value / 2 + 0.01
        elif isinstance(value, int):
            value += 1
        wanted[field.name] = value
        words += [f"--{field.name.replace('_', '-')}", str(value)]
    settings = read_keys(build_parser().parse_args(words), Settings, "train")
    assert {name: getattr(settings, name) for name in wanted} == wanted | {"taps": (1, 3)}


def test_split_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    write_rows(path, ({"prompt": f"text {n}"} for n in range(10)))
    assert main(f"train split {path} --out {tmp_path}/o --held-out 0.3 --json".split()) == 0
    counts = json.loads(capsys.readouterr().out)
    assert [counts[part] for part in ("train", "calibrate", "evaluate")] == [7, 2, 1]


@pytest.mark.parametrize(
    "words",
    [
        "split FILE --out DIR",
        "overlap FILE --training FILE --out DIR",
        "encode FILE --target TARGET --out FILE",
        "vocabulary FILE --tokens 1 --out FILE",
    ],
)
def test_no_stage_writes_over_what_it_reads(
    words: str, golden_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    write_rows(path, ({"prompt": f"text {n}"} for n in range(10)))
    before, given = path.read_bytes(), {"FILE": path, "DIR": tmp_path, "TARGET": golden_target}
    assert main(["train", *(str(given.get(word, word)) for word in words.split())]) == 1
    assert f"out: {path} is read here" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_reading_the_command_line_loads_no_torch() -> None:
    code = (
        "import sys; from dspark.cli.main import build_parser; build_parser(); print('torch' "
        "in sys.modules)"
    )
    assert python(code) == "False\n"


def test_a_signal_ends_several_workers_as_ctrl_c_does(
    handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object, **__: object) -> Path:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        raise DsparkError("no cluster")

    monkeypatch.setattr(train_workers, "train_with_workers", train)
    assert main([*REQUIRED, "--workers", "2"]) == 1
