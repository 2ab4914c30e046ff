"""A whole lab in miniature: runs are made once, go on where they were stopped, and end in a result file each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from training.corpus import DOMAINS
from training.lab import drafters, run, text
from training.lab.loop import Pace
from training.lab.plan import Run, dspark
from training.lab.run import Bench, make, read_result
from training.lab.target import Shape, build
from training.tokenizer import END_OF_TEXT_ID

SHAPE = Shape(vocabulary=64, hidden=32, mlp=48, heads=2, kv_heads=1, head_dim=16, layers=6)
PACE = Pace(steps=4, warmup=1, probes=2, save_every_s=0.0)
RUNS = (
    dspark(layers=1, block=3),
    dspark(layers=1, block=3, head="rnn"),
    Run("dflash", layers=1, block=3),
    Run("eagle3", layers=1, block=3),
    Run("mtp", layers=1, block=1),
    Run("lm", layers=1, block=3),
)


@pytest.fixture(name="bench")
def fixture_bench(tmp_path: Path) -> Bench:
    target = build(SHAPE, layers=SHAPE.layers, seed=0).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 64, (24, 40), generator=generator)
    supervised = torch.ones(24, 40, dtype=torch.bool)
    supervised[:, :6] = False
    features, last = text.hidden_states(target, ids, text.kept_taps(SHAPE.layers))
    rows = text.Text(ids, supervised, features.bfloat16(), last.bfloat16())
    answers = torch.randint(5, 64, (2, text.JUDGED_PROMPT + text.JUDGED_NEW + run.ROOM), generator=generator)
    answers[1, text.JUDGED_PROMPT] = END_OF_TEXT_ID  # ends before its first round
    (tmp_path / "text").mkdir()
    for temperature in run.TEMPERATURES:
        path = tmp_path / "text" / f"judged-t{temperature:g}-s0.safetensors"
        save_file({domain: answers.clone() for domain in DOMAINS}, path)
    return Bench(tmp_path, target, None, rows, rows, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("planned", RUNS, ids=lambda planned: planned.name)
def test_every_family_is_trained_judged_and_saved(bench: Bench, planned: Run) -> None:
    result = make(bench, planned, PACE)
    assert read_result(bench.folder, planned) == json.loads(json.dumps(result))
    assert [point["step"] for point in result["curve"]] == [2, 4]
    for judged in result["judged"].values():
        for domain in DOMAINS:
            (rounds, emitted), ended = judged[domain]["prompts"]
            assert rounds <= emitted <= rounds * (planned.block + 1)
            assert tuple(ended) == (0, 0)
            assert len(judged[domain]["survived"]) == planned.block
            assert sum(judged[domain]["survived"]) <= emitted
    folder = run.result_path(bench.folder, planned).parent
    assert sorted(path.name for path in folder.iterdir()) == ["drafter", "result.json"]


def test_a_run_killed_while_training_ends_in_the_same_result(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = RUNS[0]
    whole = make(bench, planned, PACE)
    run.result_path(bench.folder, planned).unlink()
    steps = drafters.step_of

    def killed(*given: object) -> object:
        loss = steps(*given)  # type: ignore[arg-type]

        def until_three(step: int) -> torch.Tensor:
            if step == 3:
                raise KeyboardInterrupt
            return loss(step)

        return until_three

    with monkeypatch.context() as patched:
        patched.setattr(drafters, "step_of", killed)
        with pytest.raises(KeyboardInterrupt):
            make(bench, planned, PACE)
    assert read_result(bench.folder, planned) is None
    again = make(bench, planned, PACE)
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}


def test_finished_runs_are_not_made_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Run] = []
    monkeypatch.setattr(run, "prepare", lambda folder, prompts: bench)
    monkeypatch.setattr(run, "make", lambda bench, planned: made.append(planned))
    path = run.result_path(bench.folder, RUNS[0])
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    run.finish(bench.folder, RUNS[:3], Path("unused"))
    assert made == list(RUNS[1:3])
    assert "1 of 3 runs are there" in capsys.readouterr().out


def test_the_rows_of_a_step_depend_on_seed_and_step_and_make_whole_epochs(bench: Bench) -> None:
    steps = len(bench.train.ids) // drafters.ROWS
    epoch = [drafters.rows_of(bench.train, 1, step).ids for step in range(steps)]
    assert sorted(map(tuple, torch.cat(epoch).tolist())) == sorted(map(tuple, bench.train.ids.tolist()))
    assert torch.equal(drafters.rows_of(bench.train, 1, 1).ids, epoch[1])
    assert not torch.equal(drafters.rows_of(bench.train, 1, steps).ids, epoch[0])
    assert not torch.equal(drafters.rows_of(bench.train, 2, 0).ids, epoch[0])
