"""Simulated time, and the coordinator's own code in it: a run is a function of its inputs."""

import asyncio
import itertools
import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.simulation.run import simulate
from coordinator.simulation.scenario import Scenario, scenarios
from coordinator.simulation.virtual_loop import Deadlock, run_virtual
from coordinator.simulation.world import Device, HopDelays
from dspark.cli.main import main
from dspark.errors import InvalidRequest
from dspark.synthetic.spec import SyntheticSpec, load_spec, read_spec

ACCEPT = [0.9, 0.8, 0.8, 0.7]


def spec(**changes: Any) -> SyntheticSpec:
    document: dict[str, Any] = {
        "verify": {"tokens": [1, 101], "ms": [10, 20], "prefill_ms": 0.01},
        "draft": {"sequences": [1], "ms": [1]},
        "domains": {"all": {"accept": ACCEPT, "concentration": 1.0}},
    }
    return read_spec({**document, **changes})


def run(**settings: Any) -> dict[str, Any]:
    return simulate(Scenario(**{"spec": spec(), "warmup_s": 1.0, **settings}))


def test_waiting_costs_nothing_and_happens_in_order() -> None:
    said: list[tuple[str, float]] = []

    async def speak(name: str, after: float) -> None:
        await asyncio.sleep(after)
        said.append((name, asyncio.get_running_loop().time()))

    async def everybody() -> None:
        await asyncio.gather(speak("b", 3600.0), speak("a", 1.5), speak("c", 86400.0 * 3))

    began = time.perf_counter()
    run_virtual(everybody())
    assert time.perf_counter() - began < 60
    assert said == [("a", 1.5), ("b", 3600.0), ("c", 86400.0 * 3)]


def test_waiting_for_nobody_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(Deadlock):
        run_virtual(asyncio.Event().wait())


@pytest.mark.xfail(raises=TimeoutError, strict=True)
async def test_a_test_that_hangs_while_others_tick_on_has_an_end() -> None:
    async def tick() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1.0)

    ticking = [asyncio.create_task(tick()) for _ in range(9)]
    await asyncio.wait(ticking)


def test_a_device_does_one_thing_at_a_time_urgent_ones_first() -> None:
    async def use() -> tuple[list[tuple[str, float]], float]:
        device, done = Device(), []

        def ask(name: str, seconds: float, urgent: bool) -> None:
            device.submit(
                lambda: seconds,
                lambda _: done.append((name, asyncio.get_running_loop().time())),
                urgent=urgent,
            )

        ask("first", 1.0, False)
        ask("prompt", 1.0, False)
        ask("round", 0.5, True)
        await asyncio.sleep(1.25)
        half = device.busy_until_now_s
        await asyncio.sleep(10.0)
        return done, half

    done, half = run_virtual(use())
    assert done == [("first", 1.0), ("round", 1.5), ("prompt", 2.5)]
    assert half == pytest.approx(1.25)


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def seeded(seed: int) -> dict[str, Any]:
        found = run(seed=seed, concurrency=6, answer_tokens=(8, 40), warmup_s=0.5, window_s=1.0)
        return {**found, "wall_s": 0}

    assert json.dumps(seeded(0)) == json.dumps(seeded(0))
    assert seeded(0) != seeded(1)


def test_plain_decoding_takes_what_the_table_says() -> None:
    free = HopDelays(0.0, 0.0, 0.0, 0.0)
    found = run(concurrency=1, policy="off", hops=free, answer_tokens=(400, 400), window_s=10.0)
    assert found["tok_s"] == pytest.approx(100.0, rel=0.02)  # a token in 10 ms
    assert found["verify_busy"]["mean"] == pytest.approx(1.0, abs=0.02)
    assert found["tau"] == 1.0


def test_fixed_lengths_commit_what_the_chances_say() -> None:
    found = run(concurrency=8, policy="fixed:4", answer_tokens=(256, 256), window_s=12.0)
    alive, tau = 1.0, 1.0
    for chance in ACCEPT:
        alive *= chance
        tau += alive
    assert found["tau"] == pytest.approx(tau, rel=0.05)
    assert found["failed"] == 0


def test_a_drafter_serves_the_cohorts_of_several_lanes_in_one_pass() -> None:
    found = run(concurrency=12, verifiers=3, policy="fixed:4", warmup_s=0.5, window_s=2.0)
    assert found["verify_busy"]["least"] > 0.5
    assert 0.0 < found["draft_busy"]["mean"] < 0.5


def test_an_open_loop_serves_what_arrives() -> None:
    found = run(rate=8.0, answer_tokens=(10, 10), warmup_s=2.0, window_s=25.0)
    assert found["tok_s"] == pytest.approx(80.0, rel=0.25)
    assert found["ttft_ms"]["p50"] < 100.0


def test_without_drafters_everything_is_plain_decoding() -> None:
    found = run(concurrency=2, drafters=0, window_s=2.0)
    assert found["tau"] == 1.0
    assert found["draft_busy"] is None


def test_lanes_wait_for_each_other_where_they_share_a_coordinator_or_cores() -> None:
    slow = HopDelays(1e-4, 1e-4, 0.0, 4e-3, 0.0)
    lanes = partial(run, concurrency=8, verifiers=4, drafters=4, window_s=4.0, hops=slow)
    apart = lanes(coordinators=4)["tok_s"]
    shared = lanes()
    assert shared["coordinator_busy"]["mean"] > 0.95
    assert shared["tok_s"] < 0.8 * apart
    assert lanes(coordinators=4, cores=1)["tok_s"] < 0.8 * apart
    assert lanes(coordinators=4, cores=64)["tok_s"] == apart


def test_too_few_pages_preempt_and_everybody_is_answered_all_the_same() -> None:
    load: Any = {"concurrency": 8, "prompt_tokens": (16, 16), "answer_tokens": (150, 150)}
    roomy, tight = (run(**load, warmup_s=0.0, window_s=9.0, kv_tokens=size) for size in (0, 480))
    assert roomy["preempted"] == 0
    assert tight["preempted"] > 0
    assert tight["failed"] == 0
    assert 0 < tight["answers"] < roomy["answers"]


def test_lost_workers_cost_speed_and_no_answer() -> None:
    pools = partial(run, concurrency=8, verifiers=2, drafters=2, window_s=6.0)
    whole, hurt = pools(), pools(verifiers_lost_s=(2.0,), drafters_lost_s=(2.5,))
    assert hurt["failed"] == 0
    assert hurt["tok_s"] < whole["tok_s"]
    undrafted = pools(drafters_lost_s=(0.5, 0.5))
    assert undrafted["tau"] < 1.1 < whole["tau"]


@pytest.mark.slow
def test_verified_tokens_shrink_with_the_load_as_in_the_papers_figure_8() -> None:
    flash = load_spec(Path(__file__).parents[3] / "benchmarks" / "synthetic" / "flash.yaml")
    pair = partial(run, spec=flash, warmup_s=2.0, window_s=3.0, hops=HopDelays(1e-4, 0.0, 0.0, 0.0))
    curve = [1 + pair(concurrency=load)["budget"] for load in (5, 20, 44, 92, 204)]
    # 0.03: a short window
    assert all(after <= before + 0.03 for before, after in itertools.pairwise(curve))
    assert all(4 <= verified <= 6 for verified in curve[1:4])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1, "rate": 2.0}, "concurrency"),
        ({"concurrency": 1, "verifiers": 0}, "verifiers"),
        ({"concurrency": 1, "drafters": -1}, "drafters"),
        ({"concurrency": 1, "cores": -1}, "cores"),
        ({"concurrency": 1, "verifiers_lost_s": (1.0,)}, "verifiers_lost_s"),
        ({"concurrency": 1, "drafters_lost_s": (1.0, 2.0)}, "drafters_lost_s"),
        ({"concurrency": 1, "answer_tokens": (5, 4)}, "answer_tokens"),
        ({"concurrency": 1, "window_s": 0.0}, "window_s"),
        ({"concurrency": 1, "policy": "best"}, "policy"),
    ],
)
def test_an_impossible_scenario_is_named_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        Scenario(spec(), **changes)


def test_sweeps_are_every_combination() -> None:
    base = Scenario(spec(), concurrency=1)
    wanted = list(
        scenarios(base, {"policy": ["off", "adaptive"], "verifiers": [1, 2], "rate": [3.0]})
    )
    assert [(one.policy, one.verifiers, one.rate, one.concurrency) for one in wanted] == [
        ("off", 1, 3.0, 0),
        ("off", 2, 3.0, 0),
        ("adaptive", 1, 3.0, 0),
        ("adaptive", 2, 3.0, 0),
    ]


def test_the_command_prints_a_table_and_json_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text(
        "verify: {tokens: [1], ms: [10]}\ndraft: {sequences: [1], ms: [1]}\ndomains: {a: {accept: "
        "[0.9, 0.8]}}\n",
        encoding="utf-8",
    )
    words = ["simulate", str(file), "--concurrency", "1,2", "--duration", "1"]
    words += ["--warmup", "0.5", "--policy", "off"]
    assert main(words) == 0
    head, *rows = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert [len(row) for row in rows] == [len(head)] * 2
    assert {"V", "load", "tok/s", "TTFT p50/p99 ms", "C busy", "wall s"} < set(head)
    assert not {"bytes/token", "errors"} & set(head), "nobody measured any"
    assert main([*words, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["concurrency"] for point in points] == [1, 2]
    assert main([*words, "--plot", str(tmp_path / "plot.txt")]) == 2
    assert "plot" in capsys.readouterr().err


def test_of_timers_that_are_due_together_the_one_set_first_comes_first() -> None:
    async def many() -> list[int]:
        rang: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_at(1.0, rang.append, number)
        await asyncio.sleep(2.0)
        return rang

    assert run_virtual(many()) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 8, 64])
@pytest.mark.parametrize("pair", ["paper", "flash"])
def test_the_default_policy_is_seldom_behind_the_best_fixed_one(pair: str, streams: int) -> None:
    synthetic = load_spec(Path(__file__).parents[3] / "benchmarks" / "synthetic" / f"{pair}.yaml")
    under = partial(run, spec=synthetic, concurrency=streams, warmup_s=3.0, window_s=6.0)
    best = max(under(policy=policy)["tok_s"] for policy in ("off", "fixed:5", "fixed:7"))
    assert under(policy="adaptive")["tok_s"] >= 0.97 * best
