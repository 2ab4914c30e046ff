"""The load generator's bookkeeping: what counts, from when, and what is left out."""

import asyncio
import itertools
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark.cli import bench
from dspark.cli.main import build_parser
from dspark.client import Options, Speculation
from dspark.errors import ConfigError, InvalidRequest, Overloaded, WrongCommand
from dspark.loadgen import prompts, report
from dspark.loadgen.answer import UNKNOWN, MeasuredAnswer, StreamPiece
from dspark.loadgen.grpc_endpoint import GrpcEndpoint
from dspark.loadgen.prometheus import read, total
from dspark.loadgen.prompts import Question
from dspark.loadgen.run import CUT, MOST_REQUESTS, LoadPlan, Outcome, run
from dspark.loadgen.summary import spread, summarise
from dspark.plots import check_output
from tests.faults.simulation import Simulation

QUESTION = Question((1, 2, 3))


class Server:
    """Answers with `messages` after a pause; one at a time if `serial`."""

    name, counted_by = "arithmetic", "ids"

    def __init__(
        self, messages: list[StreamPiece], *, pause_s: float = 0.0, serial: bool = False
    ) -> None:
        self._messages = messages
        self._pause_s = pause_s
        self._gate = asyncio.Semaphore(1 if serial else 1_000_000)
        self.running = self.most = self.asked = 0

    async def stream(self, question: Question, number: int) -> AsyncIterator[StreamPiece]:
        self.asked += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for message in self._messages:
                async with self._gate:
                    await asyncio.sleep(self._pause_s)
                yield message
        finally:
            self.running -= 1

    async def counters(self) -> dict[str, float]:
        return {"bytes_features": 100.0 * self.asked}

    async def close(self) -> None:
        pass


def measure(server: Server, plan: LoadPlan) -> Outcome:
    """In simulated time."""
    with Simulation() as simulation:
        return simulation.run(run(server, itertools.repeat(QUESTION), plan))


def test_messages_of_unknown_length_are_no_tokens_until_a_total_is_told() -> None:
    answer = MeasuredAnswer(QUESTION, intended=0.0)
    answer.take(StreamPiece(UNKNOWN, 10), 1.0)
    assert answer.tokens == 0


def test_a_closed_loop_keeps_its_users_busy_and_leaves_the_warm_up_out() -> None:
    server = Server([StreamPiece(1, 8), StreamPiece(2, 8)])
    outcome = measure(server, LoadPlan(concurrency=3, requests=10, warmup=4))
    assert (server.asked, server.most) == (14, 3)
    assert len(outcome.measured) == 10
    assert outcome.counters == {"bytes_features": 1000.0}
    point = summarise(outcome, series="x")
    assert (point["answers"], point["tokens"], point["errors"]) == (10, 30, {})
    assert point["bytes_per_token"] == {"client": round(16 / 3, 2), "features": round(1000 / 30, 2)}


def test_an_open_loop_charges_waiting_to_the_server_it_waits_for() -> None:
    server = Server([StreamPiece(1, 8)], pause_s=0.02, serial=True)
    outcome = measure(server, LoadPlan(rate=2000.0, requests=12, outstanding=1))
    waits = [answer.latency_s for answer in outcome.measured]
    # All were meant to start within milliseconds; the n-th was served after n others, and its
    # latency says so.
    assert waits == sorted(waits)
    assert waits[-1] >= 12 * 0.02 - 0.02
    assert outcome.measured[-1].sent - outcome.measured[-1].intended >= 10 * 0.02
    gaps = [b.intended - a.intended for a, b in itertools.pairwise(outcome.measured)]
    assert len({round(gap, 9) for gap in gaps}) > 6  # drawn, not even


def test_an_open_loop_counts_from_its_warm_up_until_its_time_or_its_requests_are_over() -> None:
    server, plan = Server([StreamPiece(1, 8)]), LoadPlan(rate=100.0, requests=12, warmup=30)
    one, same, other = (measure(server, replace(plan, seed=seed)) for seed in (0, 0, 1))
    assert (len(one.answers), len(one.measured)) == (42, 12)
    assert one.opened == one.measured[0].intended
    assert summarise(one, series="x")["tokens"] == 12
    starts = [[each.intended for each in outcome.answers] for outcome in (one, same, other)]
    assert starts[0] == starts[1] != starts[2]
    timed = measure(server, LoadPlan(rate=100.0, requests=1000, duration_s=2.0))
    assert timed.closed - timed.opened == pytest.approx(2.0)
    assert 100 < len(timed.measured) < 300
    assert len(measure(server, LoadPlan(rate=100.0, duration_s=9.0)).answers) > 450


def test_when_its_time_is_over_a_run_cuts_what_is_under_way_and_counts_its_tokens_alone() -> None:
    server = Server([StreamPiece(1, 8)] * 1000, pause_s=0.005)
    outcome = measure(server, LoadPlan(concurrency=2, duration_s=0.2))
    assert server.running == 0
    assert [answer.error for answer in outcome.measured] == [CUT, CUT]
    point = summarise(outcome, series="x")
    assert (point["answers"], point["cut"], point["errors"]) == (0, 2, {})
    assert (point["itl_ms"], point["latency_ms"]) == (None, None)
    assert point["tokens"] == sum(answer.tokens for answer in outcome.answers) > 0
    assert point["bytes_per_token"] == {"features": round(200 / point["tokens"], 2)}


def test_refusals_are_counted_by_kind_and_a_wrong_request_ends_the_run() -> None:
    class Full(Server):
        async def stream(self, question: Question, number: int) -> AsyncIterator[StreamPiece]:
            if number % 2:
                raise Overloaded("full", 1.0)
            yield StreamPiece(1, 8)

    outcome = measure(Full([]), LoadPlan(concurrency=1, requests=6))
    assert summarise(outcome, series="x")["errors"] == {"Overloaded": 3}
    late = measure(Server([StreamPiece(1, 8)], pause_s=2.0), LoadPlan(2, requests=2, timeout_s=1.0))
    assert summarise(late, series="x")["errors"] == {"Expired": 2}
    silent = measure(Server([StreamPiece(0, 8)]), LoadPlan(concurrency=2, requests=2))
    assert summarise(silent, series="x")["errors"] == {"Empty": 2}

    class Picky(Server):
        async def stream(self, question: Question, number: int) -> AsyncIterator[StreamPiece]:
            raise InvalidRequest("max_tokens", "too many")
            yield StreamPiece(1, 8)

    for plan in (
        LoadPlan(concurrency=2, requests=6, warmup=2),
        LoadPlan(rate=500.0, duration_s=0.1),
    ):
        with pytest.raises(InvalidRequest, match="too many"):
            measure(Picky([]), plan)


def test_every_figure_of_a_point() -> None:
    """Of a message before the window, one answer in one message, and two that were sent late."""
    outcome = Outcome(LoadPlan(rate=2.0, requests=3), opened=10.0, closed=20.0)
    for intended, sent, times in ((9.0, 9.0, [9.5]), (10.0, 10.0, [12.0]), (11.0, 12.0, [13, 14])):
        answer = MeasuredAnswer(QUESTION, intended, sent=sent, ended=times[-1] + 1)
        for when in times:
            answer.take(StreamPiece(4, 10), when)
        outcome.answers.append(answer)
    last = MeasuredAnswer(QUESTION, 12.0, sent=15.0, ended=18.0)
    for when, count in ((15.0, 1), (15.5, 6), (17.0, 6)):
        last.take(StreamPiece(count, 10, (), figures(1, 2.0, 3)), when)
        last.take(StreamPiece(0, 0), when)
    outcome.answers += [last, last]
    point = summarise(outcome, series="x", counted_by="usage")
    means = {"ttft": 2500, "itl": 178.571, "gap": 1000, "latency": 4750, "late": 1750}
    assert {name: value["mean"] if "_ms" in name else value for name, value in point.items()} == {
        "series": "x", "loop": "open", "concurrency": None, "rate": 2.0, "answers": 4, "cut": 0,
        "errors": {}, "window_s": 10.0, "tokens": 38, "tok_s": 3.8, "tok_s_user": 5.33,
        "tok_s_user_p50": 6.0, **{f"{name}_ms": mean for name, mean in means.items()},
        "counted_by": "usage", "tau": 2.0, "tau_over": "all rounds", "budget": 3.0,
        "verified_per_token": 0.2308, "bytes_per_token": {"client": 2.37},
    }  # fmt: skip


def figures(rounds: int, committed: float, verified: int) -> Speculation:
    tau = committed / rounds
    return Speculation(rounds, 0, verified, 0, tau, (), (), policy="off", rule="token")


def test_speculation_is_averaged_over_rounds_or_read_off_the_counters() -> None:
    outcome = Outcome(LoadPlan(concurrency=1, requests=2), opened=0.0, closed=2.0)
    for rounds, committed, verified in ((2, 8.0, 10), (6, 8.0, 6)):
        answer = MeasuredAnswer(QUESTION, intended=0.5)
        answer.take(StreamPiece(8, 10), 1.0)
        answer.take(StreamPiece(0, 10, (), figures(rounds, committed, verified)), 1.1)
        outcome.answers.append(answer)
    point = summarise(outcome, series="x")
    assert (point["tau"], point["budget"], point["verified_per_token"]) == (2.0, 2.0, 1.0)
    assert (point["tok_s"], point["tau_over"]) == (8.0, "all rounds")
    for answer in outcome.answers:
        answer.speculation = None
    outcome.counters = {"drafts": 10.0, "draft_tokens": 40.0}
    outcome.counters |= {"accepted_tokens": 5.0, "generation_tokens": 16.0}
    point = summarise(outcome, series="x")
    assert (point["tau"], point["budget"], point["tau_over"]) == (1.5, 4.0, "rounds with a draft")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"requests": 1}, "concurrency"),
        ({"concurrency": 1}, "requests"),
        ({"concurrency": 1, "rate": 1.0, "requests": 1}, "concurrency"),
        ({"concurrency": 10**9, "requests": 1}, "concurrency"),
        ({"rate": 1e9, "duration_s": 1.0}, "requests"),
        ({"concurrency": 1, "requests": MOST_REQUESTS, "warmup": 1}, "requests"),
        ({"rate": 1e-9, "duration_s": 1.0, "warmup": 2}, "rate"),
    ],
)
def test_a_plan_of_too_little_or_too_much_is_refused(wrong: dict[str, float], field: str) -> None:
    with pytest.raises(WrongCommand, match=f"^{field}: "):
        LoadPlan(**wrong)  # type: ignore[arg-type]


def test_prompts_come_from_files_by_name_of_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    ids = '{"prompt_token_ids": [0, 2], "max_tokens": 3, "domain": "d"}'
    path.write_text(f'\ufeff{{"prompt": "a\u2028b"}}\n\n{ids}\n', encoding="utf-8")
    assert prompts.from_file(path) == [Question("a\u2028b"), Question((0, 2), "d", 3)]
    for line in (
        "[]",
        "{",
        '{"prompt": 1}',
        '{"prompt_token_ids": [-1]}',
        '{"prompt": "a", "max_tokens": 0}',
    ):
        path.write_text(line)
        with pytest.raises(InvalidRequest, match=r"prompts: .*:1"):
            prompts.from_file(path)


def test_a_question_has_its_own_length_and_draws() -> None:
    common = Options(max_tokens=9, seed=5)
    assert Question("a", max_tokens=3).options(common, 2) == {"max_tokens": 3, "seed": 7}
    assert Question("a").options(common, 3) == {"max_tokens": 9, "seed": 8}
    random = prompts.random_ids(20, 30, vocabulary=20, seed=1)
    assert {token for each in random for token in each.prompt} == {16, 17, 18, 19}


def test_built_in_prompts_take_domains_in_turns_and_orders_repeat_by_seed() -> None:
    questions = prompts.built_in()
    assert tuple(question.domain for question in questions[:4]) == prompts.DOMAINS
    one, two, other = (prompts.cycle(questions, seed) for seed in (1, 1, 2))
    drawn = [next(one) for _ in range(300)]
    assert drawn == [next(two) for _ in range(300)]
    assert drawn != [next(other) for _ in range(300)]
    assert set(drawn[: len(questions)]) == set(questions)


def test_metrics_pages_are_summed_by_name_and_label() -> None:
    samples = read(
        '# HELP x\nx_total{kind="a",d="s"} 2\nx_total{kind="b",d="s"} 3.5\n'
        "x_total_s 9\nx seven\nx 7\nbroken\n"
    )
    assert (total(samples, "x_total", 'd="s"', 'kind="b"'), total(samples, "x")) == (3.5, 7.0)
    assert total(samples, "x_total") == 5.5
    assert total(samples, "x_total", 'kind="a"') == 2.0


def test_quantiles_lie_between_neighbours() -> None:
    several = {"mean": 2.5, "p50": 2.5, "p90": 3.7, "p99": 3.97}
    assert spread([0.004, 0.001, 0.003, 0.002]) == several
    assert spread([0.007]) == dict.fromkeys(several, 7.0)
    assert spread([]) is None


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plots_and_saved_runs_go_together(tmp_path: Path, kind: str) -> None:
    server = Server([StreamPiece(1, 8), StreamPiece(2, 8, (), figures(1, 2.0, 3))], pause_s=0.001)
    points = [
        summarise(measure(server, LoadPlan(concurrency=n, requests=4)), series="x") for n in (1, 2)
    ]
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps({"points": points}))
    assert report.load(saved) == points
    report.draw(points, tmp_path / f"p.{kind}")
    assert (tmp_path / f"p.{kind}").stat().st_size > 1000
    simulated = [
        point
        | {"series": "y", "verifiers": n, "drafters": 1, "verify_busy": 0.5, "draft_busy": 0.1}
        for n, point in enumerate(points, 1)
    ]
    # a simulated run may stand beside a measured one
    report.draw([*simulated, *points], tmp_path / f"both.{kind}")
    assert (tmp_path / f"both.{kind}").stat().st_size > 1000
    shown = report.table(points)
    assert "2 users" in shown
    assert "errors" not in shown
    assert "errors" in report.table([*points, points[0] | {"errors": {"Overloaded": 3}}])
    for name, kind in (("p.jpg", WrongCommand), ("nowhere/p.svg", InvalidRequest)):
        with pytest.raises(kind, match="plot"):
            check_output("plot", tmp_path / name)
    with pytest.raises(InvalidRequest, match=r"save: .*cannot be written: Is a directory"):
        check_output("save", tmp_path)
    check_output("save", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for told in ("[]", json.dumps({"points": [{**points[0], "budget": 0}, {"series": "x"}]})):
        saved.write_text(told)
        with pytest.raises(InvalidRequest, match="no saved run"):
            report.load(saved)


@pytest.mark.parametrize(
    "words", ["--save F --prompts F", "--plot F --with F", "--save F --with F"]
)
def test_a_file_that_bench_reads_is_not_written_over(words: str, tmp_path: Path) -> None:
    (read := tmp_path / "f.svg").write_text('{"prompt": "a"}')
    given = [str(read) if word == "F" else word for word in words.split()]
    args = build_parser().parse_args(["bench", *given])
    with pytest.raises(ConfigError, match=rf"^{given[0][2:]}: {read} is read here"):
        args.run(args)
    assert read.read_text() == '{"prompt": "a"}'


def test_a_simulated_pair_is_not_written_over(tmp_path: Path) -> None:
    (read := tmp_path / "pair.svg").write_text("verify: {}")
    args = build_parser().parse_args(["simulate", str(read), "--plot", str(read)])
    with pytest.raises(ConfigError, match=rf"^plot: {read} is read here"):
        args.run(args)


def test_a_commit_is_that_of_a_checkout_and_a_platform_may_not_tell_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is installed within a repository is no part of it."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    made = ["git", *author, "commit", "-q", "--allow-empty", "-m", "theirs"]
    subprocess.run(made, cwd=tmp_path, check=True)
    place = tmp_path / "site" / "dspark" / "loadgen" / "report.py"
    place.parent.mkdir(parents=True)
    monkeypatch.setattr(report, "__file__", str(place))
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    told = report.machine()
    assert told["commit"] == "unknown"
    assert told["machine"].startswith(f"{os.cpu_count()} of {os.cpu_count()} CPU cores, ")


def test_a_table_says_what_was_measured() -> None:
    point: dict[str, Any] = {
        "series": "x", "concurrency": 2, "rate": None, "tok_s": 1234.5, "tok_s_user": 60.7,
        "ttft_ms": {"p50": 10.0, "p99": 11.0}, "itl_ms": {"p50": 2.0, "p99": 3.0}, "tau": 2.5,
        "budget": 4.25, "verify_busy": {"mean": 0.9}, "draft_busy": {"mean": 0.4},
        "bytes_per_token": {"client": 12.0}, "errors": {"Expired": 1}, "wall_s": 5.0,
    }  # fmt: skip
    rows = [re.split(r"  +", line.strip()) for line in report.table([point]).splitlines()]
    assert dict(zip(*rows, strict=True)) == {
        "series": "x", "load": "2 users", "tok/s": "1,234.5", "tok/s/user": "60.7",
        "TTFT p50/p99 ms": "10.0/11.0", "ITL p50/p99 ms": "2.0/3.0", "tau": "2.50",
        "budget": "4.25", "V busy": "0.90", "D busy": "0.40", "bytes/token": "client 12",
        "errors": "Expired 1", "wall s": "5.0",
    }  # fmt: skip


async def test_words_of_bench_become_loads_and_requests() -> None:
    def told(words: str) -> Any:
        return build_parser().parse_args(f"bench --seed 3 --timeout 5 {words}".split())

    own: Any = {"timeout_s": 5.0, "seed": 3}
    assert bench._plan(told(""), concurrency=1) == LoadPlan(1, requests=16, warmup=2, **own)
    assert bench._plan(told(""), concurrency=50) == LoadPlan(50, requests=200, warmup=50, **own)
    timed = told("--duration 2 --warmup 0")
    assert bench._plan(timed, rate=3.0) == LoadPlan(rate=3.0, duration_s=2.0, **own)
    (endpoint,) = bench._endpoints(told("--endpoint e:1 --rule block --stop-at-eos --policy off"))
    assert isinstance(endpoint, GrpcEndpoint)
    assert endpoint._options == {
        "max_tokens": 128, "temperature": 0, "ignore_eos": None, "seed": None, "policy": "off",
        "rule": "block",
    }  # fmt: skip
    await endpoint.close()
