"""`dspark bench` against three processes: what it reports is what was served."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.processes import ProcessCell
from dspark.cli.main import main
from dspark.client import Options
from dspark.loadgen import grpc_endpoint


def bench(cell: ProcessCell, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    shape = ("--input-len", "12", "--output-len", "10", "--json")
    code = main(["bench", "--endpoint", cell.endpoint, *shape, *words])
    out = capsys.readouterr()
    assert code == 0, out.err
    return dict(json.loads(out.out))


def test_a_sweep_over_users_and_policies(
    cell: ProcessCell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot, saved = tmp_path / "sweep.svg", tmp_path / "sweep.json"
    more = ("--policy", "off,fixed:3", "--plot", str(plot), "--save", str(saved))
    found = bench(cell, capsys, "--concurrency", "1,3", "--requests", "6", *more)
    points = found["points"]
    assert isinstance(points, list)
    assert [(p["series"], p["concurrency"]) for p in points] == [
        (series, users) for users in (1, 3) for series in ("dspark off", "dspark fixed:3")
    ]
    for point in points:
        assert (point["answers"], point["tokens"]) == (6, 60)
        assert (point["errors"], point["counted_by"]) == ({}, "ids")
        assert point["bytes_per_token"]["client"] > 0
        drafts = point["series"] != "dspark off"
        assert (point["budget"] > 0) == (point["verified_per_token"] > 0) == drafts
        assert point["tau"] >= 1
        # Nobody drafts for plain answers: no row of features is worth sending.
        assert point["bytes_per_token"].get("features", 0) > 0 or not drafts
    assert plot.stat().st_size > 1000
    assert json.loads(saved.read_text(encoding="utf-8")) == found


def test_an_open_loop(cell: ProcessCell, capsys: pytest.CaptureFixture[str]) -> None:
    (point,) = bench(cell, capsys, "--rate", "40", "--requests", "8", "--warmup", "2")["points"]  # type: ignore[misc]
    assert (point["loop"], point["rate"], point["answers"]) == ("open", 40.0, 8)


def test_a_seed_is_one_of_sampling_too(
    cell: ProcessCell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, write = [], grpc_endpoint.write_request

    def noted(prompt: Any, options: Options) -> Any:
        seeds.append(options.get("seed"))
        return write(prompt, options)

    monkeypatch.setattr(grpc_endpoint, "write_request", noted)
    load = ("--concurrency", "1", "--requests", "3", "--warmup", "1", "--seed", "7")
    bench(cell, capsys, "--temperature", "1", *load)
    bench(cell, capsys, *load)  # at temperature 0 nothing is drawn
    assert seeds == [7, 8, 9, 10, None, None, None, None]


def test_what_cannot_be_asked_is_said_by_name(
    cell: ProcessCell, capsys: pytest.CaptureFixture[str]
) -> None:
    # text is no use to a target without a tokenizer
    for words in ([], ["--input-len", "8", "--output-len", "100000"]):
        assert main(["bench", "--endpoint", cell.endpoint, "--requests", "1", *words]) == 1
        assert "input-len" in capsys.readouterr().err
