"""The command line: exit codes, sentences, and what it finds in the state folder."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from deploy import down, process_tags
from deploy.service_registry import ROOMS
from dspark import shipped
from dspark.cli.main import main
from dspark.cli.status import as_json
from dspark.client import CellStatus, LaneStatus, MeasuredCost, ProcessStatus, find_cell
from dspark.client.cell import Cell, cell_file, is_alive, write_cell
from dspark.errors import DsparkError
from tests.noted_cell import CELL
from tests.waiting import wait_until

TARGET = Path(__file__).parents[2] / "data" / "target_qwen3"
NO_CLUSTER = "dspark: no cluster is running here"


def _ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["generate"],
        ["generate", "hi", "--token-ids", "1"],
        ["generate", "--token-ids", "1,x"],
        ["generate", "hi", "--max-tokens", "many"],
        ["generate", "hi", "--rule", "typical"],
        ["generate", "hi", "--logit-bias", "5"],
        ["generate", "hi", "--logit-bias", "x=1"],
        ["generate", "hi", "--n", "two"],
        ["simulate", "f.yaml", "--output-len", "9..3"],
        ["simulate", "f.yaml", "--input-len", "0"],
        ["simulate", "f.yaml", "--warmup", "-1"],
        ["simulate", "f.yaml", "--duration", "0"],
        ["bench", "--output-len", "0"],
        ["bench", "--requests", "-1"],
        ["bench", "--warmup", "-1"],
        ["bench", "--timeout", "0"],
        ["bench", "--duration", "nan"],
        ["certificates", "d", "--days", "0"],
        ["down", "--grace-s", "-1"],
        ["serve"],
        ["serve", "kitchen"],
        ["serve", "verify", "--no-such-key", "1"],
        ["up", "--verifiers", "two"],
        ["logs", "-n", "-5"],
        ["evaluate", "f.jsonl", "--target", "t", "--drafter", "d", "--rows", "-1"],
        ["evaluate", "f.jsonl", "--target", "t", "--drafter", "d", "--seed", "-1"],
        ["train", "split", "f.jsonl", "--out", "o", "--limit", "-1"],
        ["train"],
        ["train", "drafter"],
        ["train", "drafter", "s", "--workers", "0"],
        ["train", "drafter", "s", "--target", "t", "--out", "o", "--batch", "1_0"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "usage: dspark" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "serve verify", "checkpoint check o"])
def test_an_option_that_a_command_lacks_is_told_with_the_usage_of_the_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--no-such-option"]) == 2
    named = command.removesuffix(" o")
    told = capsys.readouterr().err
    assert told.startswith(f"usage: dspark {named} ")
    assert f"dspark {named}: error: unrecognized arguments: --no-such-option" in told


def test_help_names_kinds_of_values_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["bench", "--help"], ["certificates", "--help"]):
        assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "exit codes: 0 done, 1 failed, 2 wrong command line" in said
    for known in ("--output-len N longest answer in tokens (128)", "--rate X,X", "--save FILE"):
        assert known in said
    assert "DIR for the files" in said
    assert "(0)" not in said, "a default of nothing says nothing"


@pytest.mark.parametrize(
    "words", ["status", "serve verify", "train split nowhere.jsonl --out o", "checkpoint check o"]
)
def test_debug_shows_the_traceback(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 1
    with pytest.raises(DsparkError):
        main([*words.split(), "--debug"])


def test_ctrl_c_while_the_commands_are_still_being_imported_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("dspark.cli.main.build_parser", interrupted)
    assert (main(["status"]), capsys.readouterr().err) == (130, "dspark: interrupted\n")


def test_down_without_a_cluster_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 0
    assert "nothing is up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read"),
        ("[]", "another version"),
        ('{"version": 0}', "another version"),
        ('{"version": 1, "endpoint": 5}', "lacks a proper 'endpoint'"),
        ("[" * 100_000, "cannot be read"),
        (json.dumps(asdict(replace(CELL, ray_pid=-1))), "lacks a proper 'ray_pid'"),
        (json.dumps(asdict(replace(CELL, ray_pid=10**30))), "lacks a proper 'ray_pid'"),
    ],
)
def test_a_broken_state_file_is_named_and_down_clears_it(
    content: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell_file().write_text(content)
    assert main(["status"]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert "`dspark down` clears it" in said
    assert main(["down"]) == 0
    assert not cell_file().exists()


def test_a_state_file_that_this_user_may_not_read_is_told_and_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cell may run."""
    write_cell(CELL)
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError(13, "not yours")))
    assert main(["down"]) == 1
    assert "cell.json cannot be read (not yours)\n" in capsys.readouterr().err
    assert cell_file().exists()


def test_a_state_file_that_cannot_be_removed_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell_file().write_text("{")
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=PermissionError(13, "not yours")))
    assert main(["down"]) == 1
    assert "this state folder cannot be written (not yours)" in capsys.readouterr().err


def test_the_state_file_comes_back_whole_and_private() -> None:
    cell = replace(CELL, ray_pid=7, ray_dir="/x")
    write_cell(cell)
    assert find_cell() == cell
    assert cell_file().stat().st_mode & 0o077 == 0
    assert [path.name for path in cell_file().parent.iterdir()] == ["cell.json"]


def test_a_process_that_has_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert is_alive(process.pid)
    process.kill()
    wait_until(lambda: not is_alive(process.pid))  # before it is reaped, too
    process.wait()
    assert not is_alive(process.pid)


def test_up_names_the_paths_of_a_shipped_pair_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipped, "places", lambda: [tmp_path / "here", tmp_path / "there"])
    assert main(["up"]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/here, {tmp_path}/there" in said
    assert "--target PATH_OR_ID --drafter PATH_OR_ID" in said


def test_the_shipped_pair_is_the_default_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(shipped, "places", lambda: [tmp_path / "nothing", tmp_path])
    whole = {"target": "smollm2", "drafter": str(tmp_path)}
    assert shipped.pair(None, None) == shipped.pair("smollm2", None) == whole
    assert shipped.pair("a", None) == {"target": "a", "drafter": None}
    assert shipped.pair("smollm2", "none") == {"target": "smollm2", "drafter": "none"}


def test_the_drafter_is_found_in_a_checkout_and_beside_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, *installed = shipped.places()
    assert checkout == Path(__file__).parents[3] / "models" / "smollm2-dspark"
    assert Path(sys.prefix) / "share" / "dspark" / "smollm2-dspark" in installed
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["data-files"] == {
        "share/dspark/smollm2-dspark": ["models/smollm2-dspark/*"]
    }
    assert (shipped.drafter() / "config.json").is_file()


@pytest.fixture
def cell_here() -> Iterator[Cell]:
    """A cell that does not answer, with a process in the place of its cluster's leader."""
    marks = {**os.environ, process_tags.VARIABLE: "silent"}
    with subprocess.Popen(["sleep", "600"], env=marks) as leader:
        yield replace(CELL, cell_id="silent", ray_pid=leader.pid)
        leader.kill()


def test_a_cell_that_a_broken_off_down_has_ended_is_not_told_to_restart(
    cell_here: Cell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cell(cell_here)
    monkeypatch.setattr(down, "under_way", Mock(side_effect=KeyboardInterrupt))
    assert main(["down"]) == 130
    assert main(["status"]) == 1
    assert "a `dspark down` ends it; if that was broken off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ray", "said"),
    [
        (
            "here",
            r"127.0.0.1:9 is unreachable \(127.0.0.1:9 .*\), while its Ray cluster still runs",
        ),
        ("joined", r"the Ray cluster at 127.0.0.1:1 may be gone"),
        ("ended", r"the cluster .* is gone \(its process [0-9]+ has ended\); `dspark down`"),
        ("id reused", r"the cluster .* is gone \(its process [0-9]+ has ended\); `dspark down`"),
    ],
)
def test_a_cell_that_does_not_answer_is_told_with_what_is_known_of_it(
    ray: str, said: str, cell_here: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = {"joined": 0, "ended": _ended_pid(), "id reused": os.getpid()}
    pid = pids.get(ray, cell_here.ray_pid)
    write_cell(replace(cell_here, ray_pid=pid, frontends="127.0.0.1:8"))
    assert main(["status"]) == 1
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("status", NO_CLUSTER),
        ("status --json", NO_CLUSTER),
        ("generate hi", NO_CLUSTER),
        ("generate --logprobs 3 --token-ids 5", "dspark: logprobs: is told with --json alone\n"),
        ("generate --prompt-logprobs 0 hi", "dspark: prompt-logprobs: is told with --json alone\n"),
        ("health --wait 0.2", "dspark: not serving within 0.2 s: no cluster is running here"),
        ("sd --endpoint 127.0.0.1:9 --serve 0.0.0.0:0", "serve: 0.0.0.0:0 can be reached from out"),
        ("sd --endpoint 127.0.0.1:9 --serve 127.0.0.1:0 --tls-ca no", "tls_ca: cannot read no:"),
        ("sd --endpoint 127.0.0.1:9 --serve nowhere", "serve: 'nowhere' is not host:port\n"),
        ("scale", "say what to change, as in `dspark scale verify=2 draft=3`"),
        ("scale verify=0", "at least one verifier"),
        ("scale drafter=1", "'drafter=1' is not verify=N, draft=N"),
        ("bench --with saved.json", "dspark: with: needs --plot\n"),
        ("bench --plot p.jpg", "dspark: plot: p.jpg must end in one of"),
        ("bench --concurrency 10000000", "dspark: concurrency: 10000000 is above"),
        ("bench --openai http://127.0.0.1:9/v1", "dspark: model: say which model"),
        ("bench --endpoint 127.0.0.1:9 --domains food", "dspark: domains: ['food'] are none of"),
        ("status --endpoint 127.0.0.1:9", "dspark: the coordinator at 127.0.0.1:9 is unreachable"),
        ("serve verify", "dspark: verify.target: required and not given\n"),
        ("up --target /no/where --drafter b", "cluster.target: /no/where is not a folder with a"),
        ("serve verify --target /no/where", "verify.target: /no/where is not a folder with a"),
        ("serve draft --drafter ../no", "draft.drafter: ../no is not a folder with a"),
        ("serve coordinator --target /no/where", "target: /no/where is not a folder with a"),
        ("up --target org/model", "cluster.drafter: required"),
        ("up --target a/b --drafter c/d --verifiers 0", "cluster.verifiers: 0 is not in 1..4096"),
        ("up --target a/b --drafter c/d --config cell.yaml", "cluster.verifierz: unknown key"),
        ("certificates file/out", "dspark: file/out: Not a directory\n"),
        ("train split --out file/out p.jsonl", "dspark: file/out: Not a directory\n"),
        ("train split --out file p.jsonl", "dspark: file"),
        ("train split nowhere.jsonl --out o", "dspark: nowhere.jsonl"),
        (f"train all --prompts file/x --target {TARGET} --out o", "dspark: file/x"),
        ("train encode nowhere.jsonl --target nowhere --out o", "dspark: nowhere"),
        ("train drafter s --target t --out o --rate 0", "dspark: rate"),
        ("train drafter s --target t --out o --family gpt", "dspark: family"),
        ("train drafter s --target t", "dspark: train.out: required"),
    ],
)
def test_what_cannot_be_is_a_sentence_before_anything_starts(
    words: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cell.yaml").write_text("cluster:\n  verifierz: 2\n")
    Path("p.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    Path("file").touch()
    # whatever cell there is
    wrong = words.startswith(("scale", "bench")) or "logprobs" in words
    assert main(words.split()) == (2 if wrong else 1)
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert "ray" not in said.err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("train --help", "vocabulary"),
        ("train drafter --help", "--markov-rank"),
        ("serve --help", "ROLE"),
        *(("serve --help", f"\n    {role.value}") for role in ROOMS),
        ("serve verify --help", "--page-size"),
        ("serve verify --help", "Token slots of one page."),
        ("ray --help", "list actors"),
    ],
)
def test_roles_and_stages_have_options_of_their_own(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 0
    assert option in capsys.readouterr().out


def test_the_status_shape_lists_every_process_and_the_curve_in_force() -> None:
    reply = CellStatus(
        version="1",
        queue_limit=8,
        processes=(
            ProcessStatus(role="draft", name="draft/0", pid=5, incarnation=2**62, state="serving"),
        ),
        lanes=(
            LaneStatus(
                verifier="verify/0",
                drafters=("draft/0",),
                policy="adaptive",
                mean_acceptance_length=2.5,
                verify_cost=MeasuredCost((1, 4), (64, 128), ((0.1, 0.2), (0.3, 0.4))),
            ),
        ),
    )
    shape = json.loads(json.dumps(as_json("h:1", reply)))
    (process,), (found,) = shape["processes"], shape["lanes"]
    known = {"role": "draft", "name": "draft/0", "pid": 5, "incarnation": 2**62}
    assert known.items() <= process.items()
    assert {"endpoint", "state", "sequences", "pages_held", "pages_total"} <= set(process)
    assert (found["policy"], found["tau"]) == ("adaptive", 2.5)
    assert found["verify_cost"]["seconds"] == [[0.1, 0.2], [0.3, 0.4]]
    assert found["draft_cost"] is None


def test_a_process_reaped_while_one_looks_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = _ended_pid()
    # as if it had still been there to be signalled
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    assert not is_alive(pid)


def test_commands_that_need_the_state_folder_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "file" / "inside"))
    for words in (["status"], ["up"], ["down"], ["generate", "a"]):
        assert main(words) == 1, words
        said = "this state folder cannot be written (Not a directory); DSPARK_HOME names another"
        assert said in capsys.readouterr().err, words
