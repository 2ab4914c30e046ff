"""`dspark conformance`: what it counts, and that one altered number is enough to fail."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dspark.cli.conformance import run
from dspark.errors import CheckpointError
from tests.unit.model.golden import altered

DATA = Path(__file__).parents[2] / "data"
BLOCKS = "block_cases.safetensors"
WHOLE = Path(__file__).parents[4] / "shared" / "golden"
V4 = WHOLE.parent / "golden-deepseek-v4" / "dspark_deepseek_v4"
DRAFTER = "dspark_vanilla"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One target, one drafter."""
    _bring(DRAFTER, tmp_path)
    return tmp_path


def test_the_shipped_cases_pass(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # several slices, the last one short
    monkeypatch.setattr("dspark.training.lean_loss.SLICE_ROWS", 16)
    assert run(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == [
        f"{DRAFTER}/block_cases.safetensors",
        f"{DRAFTER}/loss_case.safetensors",
        f"{DRAFTER}/decode_cases.json",
    ]
    assert lines[-1] == "13 passed, 0 failed, 0 skipped"


def a_few_cases(name: str, folder: Path) -> None:
    """Brings as many as it takes to notice every broken build of
    `tests/mutation/lists/conformance.txt`, in less time than all of them."""
    _bring(name, folder)
    path = folder / name / "decode_cases.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:3]))
    (folder / name / "loss_case.safetensors").unlink(missing_ok=True)


@pytest.mark.parametrize(("name", "passed"), [(DRAFTER, 7), ("eagle3", 3)])
def test_a_few_cases_pass(
    name: str, passed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_few_cases(name, tmp_path)
    assert run(tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{passed} passed, 0 failed, 0 skipped"


def test_one_json_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / DRAFTER / "decode_cases.json").unlink()
    assert run(folder, True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["passed"], told["failed"], told["skipped"]) == (5, 0, 0)
    assert [file["passed"] for file in told["files"]] == [4, 1]


def test_a_family_that_is_not_built_is_skipped_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    altered(folder / DRAFTER, {"dspark_block_size": 5})
    assert run(folder) == 1  # nothing was shown to be right
    out = capsys.readouterr().out
    assert "DeepSeek-V4" in out
    assert f"nothing in {folder} could be checked: every case was skipped" in out
    assert out.splitlines()[-1] == "0 passed, 0 failed, 13 skipped"


def test_nothing_found_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 0 failed, 0 skipped"
    with pytest.raises(CheckpointError, match="not a folder"):
        run(tmp_path / "nowhere")


def _nudge(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensor = tensors[name]
        tensor.view(-1)[0] = (
            ~tensor.view(-1)[0] if tensor.dtype == torch.bool else tensor.view(-1)[0] + 1
        )

    return change


def _fields(file: str, prefix: str = "") -> list[str]:
    with safe_open(DATA / DRAFTER / file, "pt") as case:
        names = [name for name in case.keys() if name.startswith(prefix)]  # noqa: SIM118  it is no mapping
    assert names
    return names


@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(
            ("block_cases.safetensors", field)
            for field in _fields("block_cases.safetensors", "case2.")
        ),
        *(
            ("loss_case.safetensors", field)
            for field in _fields("loss_case.safetensors")
            if field != "loss_mask"
        ),
    ],
)
def test_one_altered_number_in_a_case_fails_it(
    folder: Path, file: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _keep_only(folder, file)
    altered(folder / DRAFTER, tensors=_nudge(name), file=file)
    assert run(folder) == 1
    assert "1 failed" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (DRAFTER, "fc.weight"),
        (DRAFTER, "lm_head.weight"),
        (DRAFTER, "embed_tokens.weight"),
        (DRAFTER, "norm.weight"),
        ("target_qwen3", "model.layers.0.mlp.up_proj.weight"),
        ("target_qwen3", "lm_head.weight"),
        ("target_qwen3", "model.embed_tokens.weight"),
        ("target_qwen3", "model.layers.1.input_layernorm.weight"),
    ],
)
def test_one_altered_weight_fails(folder: Path, where: str, name: str) -> None:
    _keep_only(folder, "block_cases.safetensors")
    altered(folder / where, tensors=_nudge(name))
    assert run(folder) == 1


@pytest.mark.parametrize(
    ("field", "index", "more", "said"),
    [
        ("prompt_ids", 0, 1, ""),
        ("output_ids", -1, 1, ""),
        ("acceptance_lengths", 0, 1, ""),
        ("proposal_lengths", -1, 1, ""),
        ("accepted_draft_lengths", 1, 1, ""),
        ("prompt_ids", 0, 128, "vocabulary size 128"),
    ],
)
def test_one_altered_id_in_a_run_fails_it_alone(
    folder: Path, field: str, index: int, more: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _keep_only(folder, "decode_cases.json")
    path = folder / DRAFTER / "decode_cases.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text())[:3]
    cases[2][field][index] += more
    path.write_text(json.dumps(cases))
    assert run(folder) == 1
    told = capsys.readouterr().out.splitlines()
    assert said in told[0]
    assert told[-1] == "2 passed, 1 failed, 0 skipped"


def test_a_number_that_nobody_computes_fails_its_case(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _keep_only(folder, "decode_cases.json")
    path = folder / DRAFTER / "decode_cases.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text())[:2]
    cases[1]["bonus_ids"] = [3]
    path.write_text(json.dumps(cases))
    assert run(folder) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("case 1: nothing computes bonus_ids")
    assert told[-1] == "1 passed, 1 failed, 0 skipped"


def test_thresholds_meet_raw_confidence_whatever_the_calibration(folder: Path) -> None:
    _keep_only(folder, "decode_cases.json")
    buckets = {key: {"temperatures": [50.0] * 7} for key in ("greedy", "sampled")}
    calibration = {"version": 3, "top_k_cut": 64, "rules": {"token": buckets}}
    (folder / DRAFTER / "calibration.json").write_text(json.dumps(calibration))
    assert run(folder) == 0


@pytest.mark.parametrize(
    "file", ["block_cases.safetensors", "loss_case.safetensors", "decode_cases.json"]
)
def test_a_broken_case_file_fails_and_the_others_still_count(
    folder: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / DRAFTER / file).write_bytes(b"not a case file")
    assert run(folder) == 1
    assert ", 1 failed" in capsys.readouterr().out.splitlines()[-1]


def test_runs_without_their_target_fail(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "target_qwen3")
    assert run(folder) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 8 failed, 0 skipped"


OTHER_FAMILIES = ["eagle3", "dspark_gemma4"]  # that ship with the tests
MORE = "dspark_gated dspark_rnn dspark_confidence_without_markov dflash dflash_gemma4 eagle3_gemma4"


@pytest.mark.parametrize(
    "name", [*OTHER_FAMILIES, *(name for name in MORE.split() if (WHOLE / name).is_dir())]
)
def test_every_family_passes_and_notices_one_altered_id(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark.training.lean_loss.SLICE_ROWS", 16)
    _bring(name, tmp_path)
    assert run(tmp_path) == 0
    path = tmp_path / name / "decode_cases.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text())[-1:]
    cases[0]["output_ids"][-1] ^= 1
    path.write_text(json.dumps(cases))
    assert run(tmp_path) == 1


@pytest.mark.parametrize(
    "name",
    [
        "base_logits",
        "block_hidden",
        "context_rows",
        "forced_corrected_logits",
        "forced_confidence_logits",
        "forced_previous_ids",
    ],
)
def test_a_module_whose_target_is_elsewhere_passes_and_notices_one_altered_number(
    name: str, tmp_path: Path
) -> None:
    """DeepSeek-V4's, with the values inside its stages beside those that are served."""
    folder = altered(tmp_path / "v4", of=DATA / "dspark_deepseek_v4")
    assert run(tmp_path) == 0
    altered(folder, tensors=lambda held: _raise(held[f"case1.{name}"]), file=BLOCKS)
    assert run(tmp_path) == 1


def _raise(values: torch.Tensor) -> None:
    values.view(-1)[-1] += 1


@pytest.mark.skipif(not V4.is_dir(), reason="the target's reference data is not here")
def test_a_target_that_holds_its_drafter_passes_and_notices_one_altered_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the backend of states that are not lists."""
    shutil.copytree(V4, tmp_path / "v4", copy_function=shutil.copyfile)
    assert run(tmp_path) == 0
    path = tmp_path / "v4" / "decode_cases.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text())
    for case, name in zip(cases, ("round_draft_ids", "anchor_positions"), strict=False):
        rounds = torch.tensor(case[name])
        _raise(rounds)
        case[name] = rounds.tolist()
    path.write_text(json.dumps(cases))
    capsys.readouterr()
    assert run(tmp_path) == 1
    assert f"{len(cases) - 2} passed, 2 failed" in capsys.readouterr().out


def test_a_weight_that_moves_no_id_is_noticed_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _bring("eagle3", tmp_path)
    for where in ("eagle3", "target_qwen3"):
        before = (tmp_path / where / "model.safetensors").read_bytes()
        names = list(load_file(tmp_path / where / "model.safetensors"))
        for name in names if where == "eagle3" else names[:2]:
            altered(
                tmp_path / where, tensors=lambda held, name=name: held[name].view(-1)[0].add_(1e-6)
            )
            assert run(tmp_path) == 1
            assert re.search("not those of these cases|not the target's", capsys.readouterr().out)
            (tmp_path / where / "model.safetensors").write_bytes(before)
    # the same tensors in another file
    altered(tmp_path / "eagle3", tensors=lambda held: None)
    assert run(tmp_path) == 0


def _bring(name: str, folder: Path) -> None:
    """A drafter and its target, from the few cases that ship with the tests or from all of them
    where present."""
    root = DATA if (DATA / name).is_dir() else WHOLE
    for each in (name, "target_gemma4" if "gemma4" in name else "target_qwen3"):
        shutil.copytree(root / each, folder / each, copy_function=shutil.copyfile)
        (folder / each).chmod(0o755)


def _keep_only(folder: Path, file: str) -> None:
    for path in (folder / DRAFTER).iterdir():
        if "case" in path.name and path.name != file:
            path.unlink()
