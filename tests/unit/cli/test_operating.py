"""What operators type: sizes, logs, targets for Prometheus, the view of a cell, the doctor."""

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from deploy import up
from deploy.load_report import LoadWindow
from dspark.cli import discovery, extras, top
from dspark.cli.checks import Finding, Level, cluster, machine
from dspark.cli.checks import pair as pair_checks
from dspark.cli.discovery import groups, serve
from dspark.cli.lifecycle import read_sizes
from dspark.cli.logs import LogTail, readable
from dspark.cli.main import main
from dspark.cli.status import _print
from dspark.cli.top import frame
from dspark.client import CellStatus, Client, LaneStatus, MeasuredCost, ProcessStatus
from dspark.client.cell import cell_file, write_cell
from dspark.errors import ConfigError, Unavailable
from tests.noted_cell import CELL

LOGS = Path("ray/session_latest/logs")
FLAT = str(Path(__file__).parents[3] / "benchmarks" / "synthetic" / "flat.yaml")


def test_sizes_are_read_as_typed() -> None:
    assert read_sizes(["verify=2", "draft=0"]) == ({"verify": 2, "draft": 0}, None)
    assert read_sizes(["autoscale=off"]) == ({}, False)


@pytest.mark.parametrize(
    "word", ["verify", "verify=-1", "draft=two", "autoscale=maybe", "drafter=1"]
)
def test_a_wrong_word_is_named(word: str) -> None:
    with pytest.raises(ConfigError, match=word.split()[0]):
        read_sizes([word])
    with pytest.raises(ConfigError, match="twice"):
        read_sizes(["draft=1", "draft=2"])


@pytest.mark.parametrize("kept", [signal.SIG_DFL, signal.SIG_IGN])
def test_signals_that_come_together_end_up_once_and_a_closed_terminal_not_under_nohup(
    kept: signal.Handlers, handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, nohup = 0, kept is signal.SIG_IGN
    ends = {signal.SIGHUP} if nohup else {signal.SIGHUP, signal.SIGTERM, signal.SIGINT}

    def bring_up(*_: object, **__: object) -> None:
        nonlocal told
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        for each in ends:
            signal.raise_signal(each)
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
        except KeyboardInterrupt:
            told += 1
            os.getpid()  # another one would be raised here, and end the clean-up
        raise Unavailable("no cluster")

    monkeypatch.setattr(up, "bring_up", bring_up)
    signal.signal(signal.SIGHUP, kept)
    assert main(["up", "--engine", "synthetic", "--synthetic", FLAT]) == 1
    assert told == (0 if nohup else 1)


def _write(path: Path, *records: dict[str, object] | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write((record if isinstance(record, str) else json.dumps(record)) + "\n")


def _line(at: int, process: str, event: str, **more: object) -> dict[str, object]:
    return {"timestamp": f"{at:02d}", "process": process, "event": event, **more}


def test_logs_of_a_request_are_its_own_and_its_sequences_in_every_process(tmp_path: Path) -> None:
    logs = tmp_path / LOGS
    _write(
        logs / "worker-a.err",
        _line(3, "verify/0", "sequence.prefilled", sequence=7),
        _line(4, "verify/0", "sequence.prefilled", sequence=8),
        _line(9, "verify/0", "verify.serving"),
    )
    _write(
        logs / "worker-b.err",
        _line(1, "coordinator/0", "request.accepted", request="mine", sequence=7),
        _line(2, "coordinator/0", "request.accepted", request="yours", sequence=8),
        _line(5, "coordinator/0", "request.ended", request="mine", sequence=7),
    )
    events = [line["event"] for line in LogTail(tmp_path, "", "mine").new()]
    assert events == ["request.accepted", "sequence.prefilled", "request.ended"]
    assert [line["sequence"] for line in LogTail(tmp_path, "verify", "mine").new()] == [7]
    assert LogTail(tmp_path, "", "nobody").new() == []
    tails = LogTail(tmp_path, "", "mine")
    tails.new()
    _write(logs / "worker-a.err", _line(10, "verify/0", "sequence.resent", sequence=7))
    (line,) = tails.new()
    assert line["event"] == "sequence.resent", "its sequences are known from before"


def test_logs_are_those_of_the_replica_whichever_process_it_was(tmp_path: Path) -> None:
    logs = tmp_path / LOGS
    _write(logs / "worker-1-2-100.err", _line(1, "draft/0", "a"), "not json", "[1]")
    _write(logs / "worker-2-2-200.err", _line(2, "draft/0", "b"))
    _write(logs / "worker-3-2-300.err", _line(3, "draft/10", "c"), {"event": "of nobody"})
    assert sorted(line["event"] for line in LogTail(tmp_path, "draft/0").new()) == ["a", "b"]
    assert sorted(line["event"] for line in LogTail(tmp_path, "draft").new()) == ["a", "b", "c"]
    tails = LogTail(tmp_path, "")
    assert len(list(tails.new())) == 3
    with (logs / "worker-1-2-100.err").open("a") as file:
        file.write('{"process": "draft/0", "ev')
    assert list(tails.new()) == [], "half a line is none yet"
    with (logs / "worker-1-2-100.err").open("a") as file:
        file.write('ent": "d"}\n')
    _write(logs / "worker-4-2-400.err", _line(4, "verify/0", "late"))
    assert [line["event"] for line in tails.new()] == ["d", "late"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "no line of nosuch; there are lines of draft/0, verify/0"),
        (["verify", "--request", "x"], "no line of verify about request 'x'; there are lines of"),
        (["--request", "x"], "no line of any process about request 'x'; there are lines of"),
    ],
)
def test_logs_of_what_is_not_there_say_what_is(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cell(replace(CELL, ray_pid=1, ray_dir=str(tmp_path)))
    _write(tmp_path / LOGS / "worker-a.err", _line(1, "verify/0", "a"), _line(2, "draft/0", "b"))
    assert main(["logs", *words]) == 1
    assert capsys.readouterr().err.startswith(f"dspark: {said}")
    assert main(["logs", "verify/0"]) == 0


def test_a_line_for_people_says_when_who_what_and_how_much() -> None:
    record = _line(7, "controller", "replica.lost", level="warning", reason="is gone")
    assert readable(record) == '07 controller     WARNING replica.lost reason="is gone"'
    record = _line(7, "verify/0", "request.ended", request="\x1b]0;owned\x07\n07 verify/0")
    assert readable(record).isprintable(), "a client chose the id"


STATUS = CellStatus(
    version="0.1.0",
    queue_limit=9,
    processes=(
        ProcessStatus(
            role="coordinator", name="coordinator/0", endpoint="10.0.0.1:7000", state="serving",
            metrics_port=9100, incarnation=5,
        ),
        ProcessStatus(
            role="draft", name="draft/0", endpoint="10.0.0.2:7000", state="draining", pid=3,
            busy_s=1,
        ),
    ),
    lanes=(LaneStatus(verifier="verify/0", drafters=("draft/0",), running=3, policy="adaptive"),),
    totals={"dspark_generation_tokens_total": 10, "dspark_rounds_total": 4},
)  # fmt: skip


def test_targets_are_those_that_show_metrics() -> None:
    assert groups(STATUS, "10.0.0.1:7000") == [
        {
            "targets": ["10.0.0.1:9100"],
            "labels": {"role": "coordinator", "replica": "coordinator/0", "incarnation": "5"},
        }
    ]


@pytest.mark.parametrize("scheme", ["", "dns:///"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_a_process_that_listens_everywhere_is_where_the_cell_was_asked(
    host: str, scheme: str
) -> None:
    process = ProcessStatus(name="coordinator/0", endpoint=f"{host}:7000", metrics_port=9100)
    (found,) = groups(CellStatus(processes=(process,)), f"{scheme}cell.example.org:7000")
    assert found["targets"] == ["cell.example.org:9100"]


def test_targets_are_asked_for_anew_and_a_lost_coordinator_is_told() -> None:
    asked = Mock(side_effect=[groups(STATUS, "10.0.0.1:7000"), Unavailable("nobody is there")])
    with closing(serve("127.0.0.1:0", asked)) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{url}/sd", timeout=10) as reply:
            assert reply.headers["Content-Type"] == "application/json"
            assert json.load(reply)[0]["targets"] == ["10.0.0.1:9100"]
        for path, status in (("/sd", 503), ("/other", 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(url + path, timeout=10)
            assert caught.value.code == status
            caught.value.close()


def test_targets_are_those_of_the_cell_that_is_there_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Mock(side_effect=ConfigError("enough is known"))
    monkeypatch.setattr(discovery, "serve", served)
    for endpoint in ("127.0.0.1:9", "127.0.0.1:8"):
        write_cell(replace(CELL, endpoint=endpoint))
        main(["sd", "--serve", "127.0.0.1:0"])
        with pytest.raises(Unavailable, match=f"^{endpoint} "):
            served.call_args_list[0].args[1]()


def test_top_looks_at_the_cell_that_is_there_by_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [Mock(endpoint=f"cell:{number}", status=lambda: CellStatus()) for number in (1, 2)]
    monkeypatch.setattr(top, "open_client", lambda _: nullcontext(cells.pop(0)))
    assert main(["top", "--once", "--every", "0.1"]) == 0
    assert "at cell:2" in capsys.readouterr().out


def test_top_goes_on_while_certificates_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = nullcontext(Mock(endpoint="cell:1", status=lambda: CellStatus()))
    looks = Mock(side_effect=[there, ConfigError("half a pair"), there, KeyboardInterrupt])
    monkeypatch.setattr(top, "open_client", looks)
    assert main(["top", "--every", "0.1"]) == 130
    assert "at cell:1" in capsys.readouterr().out


def test_logs_are_not_followed_beyond_their_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cell(replace(CELL, ray_pid=1, ray_dir=str(tmp_path / "gone")))
    assert main(["logs", "-f"]) == 1
    assert f"dspark: {tmp_path}/gone is gone, and this cluster with it" in capsys.readouterr().err


def test_a_frame_shows_rates_of_the_window() -> None:
    window = LoadWindow(10)
    window.add(0.0, STATUS)
    totals = {
        "dspark_generation_tokens_total": 210,
        "dspark_rounds_total": 104,
        "dspark_spec_decode_num_accepted_tokens_total": 150,
    }
    window.add(2.0, replace(STATUS, totals=totals))
    title, names, numbers, *rest = frame(window, "10.0.0.1:7000")
    assert title == "dspark 0.1.0 at 10.0.0.1:7000"
    shown = dict(zip(names.split(), numbers.split(), strict=False))
    assert (shown["tok/s"], shown["streams"], shown["tau"]) == ("100", "3", "2.50")
    assert any(line.startswith("draft/0") and "draining" in line for line in rest)
    assert any(line.startswith("verify/0") and "adaptive" in line for line in rest)


def test_the_doctor_says_what_is_wrong_with_a_pair_and_how_to_mend_it(
    golden_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert main(f"doctor --target {golden_target} --drafter {nothing} --json".split()) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["ok"]
    wrong = [each for each in said["findings"] if each["level"] == "fail"]
    assert [each["what"] for each in wrong] == ["drafter"]
    assert all(each["mend"] for each in said["findings"] if each["level"] != "ok")


def test_the_doctor_finds_a_pair_that_fits_and_one_that_does_not(
    golden_target: Path, golden_drafter: Path
) -> None:
    def checked(target: Path) -> Finding:
        found = pair_checks.models(str(target), str(golden_drafter), None)
        return next(each for each in found if each.what == "pair")

    assert checked(golden_target).level is Level.OK
    raw = json.loads((golden_drafter / "config.json").read_text())
    pair = checked(Path(__file__).parents[2] / "data" / "pair" / "target")
    assert pair.level is Level.FAIL
    assert str(raw["vocab_size"]) in pair.said


def test_the_doctor_fetches_and_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (found,) = pair_checks.models("smollm2", "none", None)
    assert (found.level, "on first use" in found.said) == (Level.OK, True)
    assert not list(tmp_path.iterdir())
    (found,) = pair_checks.models(str(tmp_path / "nothing.gguf"), "none", None)
    assert found.level is Level.FAIL


def test_the_doctor_asks_for_no_extra_that_only_a_checkout_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        machine.extras,
        "wanted",
        lambda: [extras.Requirement("not-there", "", extra) for extra in ("docs", "web", "tls")],
    )
    assert [each.what for each in machine.versions()][2:] == ["extra tls"]


def test_a_check_of_the_doctor_that_breaks_is_a_finding_and_a_traceback_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "versions", Mock(side_effect=ZeroDivisionError("in the check")))
    words = "doctor --json --target nowhere --drafter none --http 127.0.0.1:0"
    main(words.split())
    found = json.loads(capsys.readouterr().out)["findings"]
    (broken,) = [each for each in found if "in the check" in each["said"]]
    assert "--debug" in broken["mend"]
    assert len(found) > 1, "the others are looked at all the same"
    with pytest.raises(ZeroDivisionError):
        main(f"{words} --debug".split())


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        (found,) = machine.http_port(f"127.0.0.1:{held.getsockname()[1]}")
    assert found.level is Level.WARN
    assert "sport" in found.said


def test_a_state_file_of_a_dead_cluster_is_told() -> None:
    (clean,) = cluster.state()
    assert clean.level is Level.OK
    for pid in (2**22 - 1, os.getpid()):  # the second is another process by now
        write_cell(replace(CELL, ray_pid=pid, ray_dir="/tmp/none"))
        (stale,) = cluster.state()
        assert (stale.level, stale.mend) == (Level.FAIL, "dspark down")


@pytest.mark.parametrize("there", [False, True])
def test_a_state_folder_or_file_that_cannot_be_is_one_finding_and_not_one_for_down(
    there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if there:
        cell_file().mkdir()
    else:
        (tmp_path / "file").touch()
        monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "file" / "home"))
        assert list(cluster.cell(Client)) == []
    (found,) = cluster.state()
    assert (found.level, found.mend) == (Level.FAIL, "set DSPARK_HOME to a folder of yours")
    (port,) = machine.http_port("127.0.0.1:0")
    assert port.what == "port http"


def test_a_ray_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.ray_environment.ASK_TIMEOUT_S", 0.5)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # held, so that nobody else listens there
        port = held.getsockname()[1]
        *_, found = cluster.ray_access(f"127.0.0.1:{port}", {})
    assert found.what == "ray"
    assert found.level is Level.FAIL
    assert "GCS" in found.mend


def test_a_long_reason_widens_no_line_but_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = STATUS.processes
    told = replace(STATUS, processes=(first, replace(second, detail="a long reason " * 20)))
    window = LoadWindow(10)
    for at in (0.0, 1.0):
        window.add(at, told)
    _print(told)
    for lines in (capsys.readouterr().out.splitlines(), frame(window, "10.0.0.1:7000")):
        assert sum(len(line) > 120 for line in lines) == 1


def test_the_status_marks_what_was_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    cost = MeasuredCost((1, 4), (64, 128), ((0.1, 0.1), (0.3, 0.4)), "measured", (1,))
    _print(CellStatus(lanes=(LaneStatus(verifier="verify/0", verify_cost=cost),)))
    said = capsys.readouterr().out
    assert "1  100.00  100.00*" in said
    assert "not measured: a neighbour's value" in said
