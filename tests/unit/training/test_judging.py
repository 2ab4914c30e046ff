"""`dspark calibrate` and `dspark evaluate` on tiny pairs of several families, from turns to
figures."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dspark.cli.main import main
from dspark.errors import ConfigError
from dspark.model.calibration import RULES, RuleName, load_calibration
from dspark.model.checkpoint import load_target
from dspark.training import asked, evaluate, judged, reliability
from dspark.training.asked import questions
from dspark.training.calibrate import calibrate
from dspark.training.disk import write_rows
from tests.draft_steps import draft_engine, fill, item

DATA = Path(__file__).parents[2] / "data"
GOLDEN = Path(__file__).parents[4] / "shared" / "golden"  # more of them, where they are


@pytest.fixture
def evaluated(golden_target: Path, golden_drafter: Path) -> str:
    """The command that evaluates the tiny pair, up to its files."""
    return f"evaluate --target {golden_target} --drafter {golden_drafter} --quiet"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.jsonl"
    rows = [{"turns": [[3 + n, 7, 9 + n, 11], [1]], "domain": "made up"} for n in range(4)]
    write_rows(path, rows)
    return path


@pytest.fixture
def tiny(golden_target: Path, golden_drafter: Path, prompts: Path) -> tuple[Path, Path, list[Path]]:
    """What calibration and evaluation begin with."""
    return golden_target, golden_drafter, [prompts]


def test_turns_are_ids_for_a_target_without_a_tokenizer(golden_target: Path, prompts: Path) -> None:
    target = load_target(golden_target)
    found = questions(prompts, target)
    assert found == [(3 + n, 7, 9 + n, 11) for n in range(4)]
    chosen = questions(prompts, target, rows=2, seed=1)
    assert len(chosen) == 2
    assert chosen == questions(prompts, target, rows=2, seed=1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"turns": ["a text"]}, "no tokenizer"),
        ({"turns": [[400]]}, "row 1: turns: empty, or an id outside"),
        ({"turns": []}, "row 1: "),
        ({"turns": [[3] * 400]}, "row 1: a prompt of 400 tokens, and 136 behind it"),
        ({"turns": [[1, -2]]}, "row 1: token_ids"),
        ({"words": 1}, "row 1: no conversations"),
    ],
)
def test_a_wrong_row_is_named(
    evaluated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: object, said: str
) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert main(f"{evaluated} {path}".split()) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "key"),
    [*(("evaluate", key) for key in ("out", "keep"))]
    + [("calibrate", key) for key in ("out", "plots", "keep")],
)
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    command: str,
    key: str,
    evaluated: str,
    prompts: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judged, "answers", pytest.fail)
    words = evaluated.replace("evaluate", command).split()
    assert main([*words, str(prompts), f"--{key}", f"{prompts}/folder"]) == 1
    assert capsys.readouterr().err == (
        f"dspark: {key}: {prompts}/folder cannot be written: Not a directory\n"
    )


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_a_drafter_of_another_target_is_refused_before_anything_is_measured(
    command: str, golden_target: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = DATA / "pair" / "drafter"
    told = f"{command} --target {golden_target} --drafter {drafter} --quiet {prompts}"
    assert main(told.split()) == 1
    assert f"dspark: {drafter}: drafts from a vocabulary of 512, the " in capsys.readouterr().err


def test_evaluate_writes_what_it_prints(
    evaluated: str, tiny: Any, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = f"--json --new-tokens 12 --thresholds 0,0.5 --seed 1234567890 --out {out}"
    assert main(f"{evaluated} {options} {prompts}".split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "metrics.json").read_text())
    row = printed["temperatures"]["T=1"]["datasets"]["tiny"]
    assert row["rounds"] >= 4
    assert row["tau"] >= 1.0
    assert len(row["survival"]) == printed["block_size"] == 7
    assert row["sweep"][0]["tau"] == row["tau"]
    assert row["sweep"][1]["verified"] <= row["sweep"][0]["verified"]
    assert printed["temperatures"]["T=1"]["domains"]["made up"]["tau"] == row["tau"]
    assert {path.name for path in out.iterdir()} == {"metrics.json", "acceptance.png", "sweep.png"}
    told: Any = {"new_tokens": 12, "thresholds": (0, 0.5), "seed": 1234567890, "bar": False}
    again = evaluate.evaluate(*tiny, **told)
    # the seed is all there is
    assert again["temperatures"]["T=1"]["datasets"]["tiny"]["tau"] == row["tau"]


def test_a_data_set_without_a_whole_block_is_left_out_of_the_sweep(tmp_path: Path) -> None:
    points = [{"threshold": 0.0, "tau": 2.0, "verified": 3.0, "verified_per_committed": 1.5}]
    row: Any = {"conditional": [0.5], "tau": 2.0}
    part = {"datasets": {"much": row | {"sweep": points}, "little": row}}
    evaluate.draw({"temperatures": {"T=1": part}}, tmp_path)
    assert (tmp_path / "sweep.png").is_file()


def test_answers_that_are_kept_are_not_drawn_again(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(keep: Path | None, new_tokens: int = 12) -> str:
        told: Any = {"new_tokens": new_tokens, "keep": keep, "seed": 2**63 - 1, "bar": False}
        calibrate(*tiny, temperatures=(1.0,), out=tmp_path / "out", rules=["token"], **told)
        return repr(evaluate.evaluate(*tiny, **told)["temperatures"])

    drawn = measured(None)
    read: list[Path] = []
    monkeypatch.setattr(judged, "fingerprint", lambda folder: read.append(folder) or "f" * 64)
    assert measured(tmp_path / "kept") == drawn
    assert len(read) == 2, "all weights are read once a command"
    drawing = SimpleNamespace(generate=lambda *_, **__: pytest.fail("drawn again"))
    monkeypatch.setattr(asked, "lockstep", drawing)  # a drafter is tried on texts of its own
    assert measured(tmp_path / "kept") == drawn
    with pytest.raises(pytest.fail.Exception, match="drawn again"):
        measured(tmp_path / "kept", new_tokens=11)


def test_calibrate_writes_what_drafters_read(
    golden_target: Path, golden_drafter: Path, prompts: Path, tmp_path: Path
) -> None:
    def run(*, offsets: bool = True, rules: Sequence[RuleName] = RULES) -> dict[str, object]:
        return calibrate(
            golden_target,
            tmp_path / "drafter",
            [prompts],
            new_tokens=10,
            temperatures=(1.0,),
            plots=tmp_path / "plots",
            offsets=offsets,
            rules=rules,
            bar=False,
        )

    shutil.copytree(golden_drafter, tmp_path / "drafter")
    # which no drafter reads any more
    (tmp_path / "drafter" / "calibration.json").write_text('{"version": 1}')
    report = run()
    made = load_calibration(tmp_path / "drafter", block_size=7)
    assert set(made.rules) == {"token", "block", "coupled"}
    assert made.top_k_cut == 64
    for fit in report["fits"]:  # type: ignore[attr-defined]
        assert fit["few_rounds"]
        assert len(fit["auc_each"]) == len(fit["temperatures"]) == 7
    assert made.rules["token"]["sampled"].offsets
    run(offsets=False, rules=["token"])
    assert (
        not load_calibration(tmp_path / "drafter", block_size=7).rules["token"]["sampled"].offsets
    )
    assert len(list((tmp_path / "plots").glob("*.png"))) == 4


def test_more_may_be_of_greedy_requests_alone(tiny: Any, prompts: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text(prompts.read_text())

    def rounds(also_greedy: list[Path]) -> list[int]:
        told: Any = {"rules": ("token",), "temperatures": (1.0,), "out": tmp_path / "drafter"}
        report = calibrate(*tiny, new_tokens=6, also_greedy=also_greedy, bar=False, **told)
        return [fit["rounds_measured"] for fit in report["fits"]]

    (greedy, sampled), (more_greedy, same) = rounds([]), rounds([more])
    assert (more_greedy, same) == (2 * greedy, sampled)


def test_a_domain_that_is_null_is_none(tmp_path: Path) -> None:
    write_rows(tmp_path / "talk.jsonl", [{"turns": ["q"], "domain": None}])
    assert asked.domain_of(tmp_path / "talk.jsonl") == "talk"


def test_two_files_of_one_name_are_refused(tiny: Any, prompts: Path) -> None:
    other = prompts.parent / "elsewhere" / prompts.name
    other.parent.mkdir()
    other.write_text(prompts.read_text())
    with pytest.raises(ConfigError, match=f"{prompts} and {other} have one name"):
        calibrate(*tiny[:2], [prompts, other], new_tokens=4, bar=False)


OTHERS = [
    DATA / "eagle3",
    *(path for name in ("dflash", "dspark_rnn") if (path := GOLDEN / name).is_dir()),
]


@pytest.mark.parametrize("drafter", OTHERS, ids=lambda path: path.name)
def test_other_families_are_judged_alike(golden_target: Path, prompts: Path, drafter: Path) -> None:
    report = evaluate.evaluate(
        golden_target,
        drafter,
        [prompts],
        new_tokens=8,
        temperatures=(1.0,),
        rule="block",
        bar=False,
    )
    row = report["temperatures"]["T=1"]["datasets"]["tiny"]
    assert row["rounds"] > 0
    assert row["confidence"]["rounds"] > 0
    assert evaluate.table(report)


def test_a_drafter_without_a_head_for_it_is_fitted_and_serves_by_the_fit(
    golden_target: Path, prompts: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(DATA / "eagle3", tmp_path / "eagle3")
    plain = _confidence(folder)
    options = f"--target {golden_target} --drafter {folder} --quiet --new-tokens 16"
    assert main(f"calibrate {prompts} {options}".split()) == 0
    fit = load_calibration(folder, block_size=len(plain)).fit("greedy", "token")
    assert fit is not None
    logits = np.log(plain / (1.0 - plain))
    np.testing.assert_allclose(
        _confidence(folder), reliability.sigmoid(fit.logits(logits)), rtol=1e-4
    )


def _confidence(folder: Path) -> npt.NDArray[np.float64]:
    """Of one greedy block, as it is served."""
    engine = draft_engine(folder)
    (block,) = engine.draft([item(fill(engine, 1, range(8)))])
    return np.array(block.confidence)
