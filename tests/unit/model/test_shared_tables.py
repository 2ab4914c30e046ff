"""A drafter whose file leaves its vocabulary tables to the target: the same drafter wherever one is
loaded."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from dspark.cli import conformance
from dspark.cli.main import main
from dspark.errors import CheckpointError
from dspark.model.checkpoint import fingerprint, load_drafter, load_projection
from dspark.model.formats.convert import to_speculators, without_tables
from tests.unit.model.golden import DATA, altered, without
from tests.unit.model.tiny import greedy

PAIR = DATA / "pair"
TARGET, WHOLE, WEIGHTS = PAIR / "target", PAIR / "drafter", "model.safetensors"
TABLES = {"embed_tokens.weight", "lm_head.weight"}
KEPT = [0, 2, 5, 9, 17, 33, 64, 65, 300, 511]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    without_tables(WHOLE, tmp_path / "shared", target=TARGET)
    return tmp_path / "shared"


@torch.no_grad()
def test_the_same_drafts_bit_for_bit_from_a_file_without_the_tables(shared: Path) -> None:
    assert not TABLES & load_file(shared / WEIGHTS).keys()
    assert (shared / "calibration.json").read_bytes() == (WHOLE / "calibration.json").read_bytes()
    before = {path: path.read_bytes() for folder in (shared, TARGET) for path in folder.iterdir()}
    ours, theirs = load_drafter(shared, target=TARGET), load_drafter(WHOLE)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert torch.equal(greedy(ours), greedy(theirs))
    assert {
        path: path.read_bytes() for folder in (shared, TARGET) for path in folder.iterdir()
    } == before


@torch.no_grad()
@pytest.mark.parametrize("spelling", ["deepspec", "speculators"])
def test_a_cut_head_takes_the_rows_of_its_tokens(spelling: str, tmp_path: Path) -> None:
    to_speculators(WHOLE, tmp_path / "cut", keep_tokens=KEPT)
    folder = tmp_path / "cut"
    if spelling == "deepspec":
        shutil.copy(WHOLE / "config.json", folder)
        altered(folder, {"draft_vocab_size": len(KEPT)})
    without_tables(folder, tmp_path / "shared", target=TARGET)
    assert not TABLES & load_file(tmp_path / "shared" / WEIGHTS).keys()
    ours, theirs = load_drafter(tmp_path / "shared", target=TARGET), load_drafter(folder)
    assert ours.lm_head.weight.shape == (len(KEPT), 96)
    assert torch.equal(greedy(ours), greedy(theirs))


def test_what_ties_it_to_a_verifier_is_its_projection_and_what_names_it_holds_the_target(
    shared: Path, tmp_path: Path
) -> None:
    whole = load_drafter(WHOLE).fingerprint
    assert (
        load_drafter(shared, target=TARGET).fingerprint
        == whole
        == load_projection(shared).fingerprint
    )
    other = _other_target(tmp_path / "other")
    names = {fingerprint(shared, target=target) for target in (TARGET, other)}
    assert len(names | {fingerprint(shared)}) == 3
    assert fingerprint(WHOLE, target=other) == fingerprint(WHOLE)


def test_its_tokenizer_stays_with_it(tmp_path: Path) -> None:
    mine = altered(tmp_path / "mine", of=WHOLE)
    shutil.copyfile(DATA / "pair" / "target" / "tokenizer.json", mine / "tokenizer.json")
    without_tables(mine, tmp_path / "shared", target=TARGET)
    to_speculators(mine, tmp_path / "converted", share_tables=True)
    others = (tmp_path / "shared", tmp_path / "converted")
    assert {load_projection(other).fingerprint for other in others} == {
        load_projection(mine).fingerprint
    }


def test_numbers_that_a_narrower_type_lacks_are_refused(tmp_path: Path) -> None:
    def large(held: dict[str, torch.Tensor]) -> None:
        held["fc.weight"][0, 0] = 1e6

    mine = altered(tmp_path / "mine", tensors=large, of=WHOLE)
    with pytest.raises(CheckpointError, match=r"fc.weight as float16 holds NaN or infinite"):
        without_tables(mine, tmp_path / "out", target=TARGET, dtype=torch.float16)


def test_the_draft_service_serves_it_with_its_target_and_asks_for_one(shared: Path) -> None:
    engine = DraftEngine.load(DraftConfig(drafter=str(shared), target=str(TARGET), device="cpu"))
    assert engine.fingerprint == fingerprint(shared, target=TARGET)
    assert torch.equal(engine.drafter.lm_head.weight, load_drafter(WHOLE).lm_head.weight)
    with pytest.raises(
        CheckpointError,
        match=r"embed_tokens\.weight and lm_head\.weight are left out.*no target is named",
    ):
        DraftEngine.load(DraftConfig(drafter=str(shared), device="cpu"))


def test_conformance_finds_the_target_of_a_file_without_tables(tmp_path: Path) -> None:
    altered(tmp_path / "cases" / "target_qwen3", of=DATA / "target_qwen3")
    folder = altered(
        tmp_path / "cases" / "dspark_vanilla", tensors=without(*TABLES), of=DATA / "dspark_vanilla"
    )
    (
        folder / "decode_cases.json"
    ).unlink()  # its cases name the weights file they were recorded with
    assert conformance.run(tmp_path / "cases") == 0
    shutil.rmtree(tmp_path / "cases" / "target_qwen3")
    assert conformance.run(tmp_path / "cases") == 1


def test_a_target_of_another_shape_is_refused_by_name(shared: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"embed_tokens\.weight .*\[512, 96\] is wanted, .*target_qwen3 has"
    ):
        load_drafter(shared, target=DATA / "target_qwen3")
    with pytest.raises(CheckpointError, match="nowhere"):
        load_drafter(shared, target="nowhere/at/all")


def test_tables_that_are_not_the_target_s_stay(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = _other_target(tmp_path / "other")
    words = ["checkpoint", "share", str(WHOLE), str(tmp_path / "out"), "--target"]
    assert main([*words, str(other)]) == 1
    assert "embed_tokens.weight is not the one of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*words, str(TARGET)]) == 0
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (shared / WEIGHTS).read_bytes()
    words[3] = str(tmp_path / "rounded")
    assert main([*words, str(TARGET), "--dtype", "bfloat16"]) == 0
    rounded, exact = load_file(tmp_path / "rounded" / WEIGHTS), load_file(shared / WEIGHTS)
    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact)
    assert json.loads((tmp_path / "rounded" / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(CheckpointError, match="holds no table"):
        without_tables(shared, tmp_path / "again", target=TARGET)


def test_a_cut_head_is_not_looked_for_in_a_smaller_vocabulary(tmp_path: Path) -> None:
    def fewer(held: dict[str, torch.Tensor]) -> None:
        for name in held:
            if "embed_tokens" in name or "lm_head" in name:
                held[name] = held[name][:64].clone()

    small = altered(tmp_path / "small", {"vocab_size": 64}, fewer, of=TARGET)
    to_speculators(WHOLE, tmp_path / "cut", keep_tokens=[1, 100])
    with pytest.raises(CheckpointError, match=r"is not the one of .*small, it cannot be left out"):
        without_tables(tmp_path / "cut", tmp_path / "out", target=small)


@pytest.mark.parametrize(
    ("action", "writer"), [("convert", "to_speculators"), ("share", "without_tables")]
)
def test_a_command_that_is_ended_leaves_nothing_half_written(
    action: str, writer: str, tmp_path: Path
) -> None:
    words = ["checkpoint", action, str(WHOLE), str(tmp_path / "out")]
    words += ["--target", str(TARGET)] if action == "share" else []
    program = (
        "import os, sys; from dspark.cli.main import main; from dspark.model.formats import convert"
        f"; convert.{writer} = lambda *_, **__: os.kill(os.getpid(), 15); sys.exit(main({words}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "dspark: interrupted\n")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("action", ["convert", "share"])
def test_what_is_there_already_is_not_written_over(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = altered(tmp_path / "mine", of=WHOLE)
    before = (mine / "config.json").read_bytes()
    more = ["--target", str(TARGET)] if action == "share" else []
    for out, named in (
        (mine, "there already"),
        (mine / "config.json", "there already"),
        (mine / "config.json" / "x", "cannot be written"),
    ):
        assert main(["checkpoint", action, str(mine), str(out), *more]) == 1
        assert f"{out}: {named}" in capsys.readouterr().err
    assert (mine / "config.json").read_bytes() == before


def test_names_out_of_a_file_do_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    red = {"\x1b[31mred": torch.ones(2)}
    mine = altered(tmp_path / "mine", tensors=lambda held: held.update(red), of=WHOLE)
    assert main(["checkpoint", "check", str(mine)]) == 1
    said = capsys.readouterr().err
    assert r"unexpected: \x1b[31mred" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    "text", ["[" * 100_000, f"[{10**30}]", "[-1]"], ids=["deep", "far", "none"]
)
def test_tokens_that_are_none_are_not_kept(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.json").write_text(text)
    words = f"checkpoint convert {WHOLE} {tmp_path}/out --keep-tokens {tmp_path}/kept.json"
    assert main(words.split()) == 1
    assert re.search(
        "kept.json: not readable|keep_tokens: expected ids below", capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def _other_target(folder: Path) -> Path:
    """The target with another embedding."""
    return altered(
        folder, tensors=lambda held: held["model.embed_tokens.weight"].mul_(1.5), of=TARGET
    )
