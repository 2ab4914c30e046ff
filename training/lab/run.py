"""Makes what is missing below a folder: the target, its text, and every run of the plan, in order.

    DIR/target/            tokenizer, token streams, state, model
    DIR/text/              rows with hidden states; the answers drafters are judged on
    DIR/runs/NAME/         state of an unfinished run; result.json of a finished one, and its drafter

One process, one thread. A killed run goes on from its last state when the command is given again.
"""

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dspark.model.checkpoint import save_drafter
from training import prompts, tokenizer, tokens
from training.lab import drafters, judge, text
from training.lab import target as lab_target
from training.lab.loop import Pace, train
from training.lab.plan import BLOCKS, Run

TEMPERATURES = (1.0, 0.0)
PACE = Pace(steps=600, matrix_rate=0.1, vector_rate=0.02, warmup=20, decay_from=0.3, probes=20)
ROOM = max(BLOCKS) + 1  # tokens after the last judged one


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs share."""

    folder: Path
    target: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    train: text.Text
    held_out: text.Text
    prompts: Sequence[prompts.Prompt]

    @property
    def target_head(self) -> Tensor:
        weight: Tensor = self.target.lm_head.weight
        return weight.detach()


def prepare(folder: Path, prompt_files: Path) -> Bench:
    target, streams = lab_target.prepare(folder / "target")
    return Bench(
        folder=folder,
        target=target,
        tokenizer=tokenizer.load(folder / "target" / "tokenizer"),
        train=_text(folder, target, streams, "train", text.TRAIN_ROWS, seed=1),
        held_out=_text(folder, target, streams, "held-out", text.HELD_OUT_ROWS, seed=2),
        prompts=prompts.read(prompt_files),
    )


def _text(
    folder: Path, target: Qwen3ForCausalLM, streams: dict[str, tokens.Ids], split: str, rows: int, seed: int
) -> text.Text:
    return text.prepare(folder / "text", target, streams, split=split, rows=rows, seed=seed)


def chosen(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """The runs whose names match one of the patterns, all without patterns. A pattern without a run is an error."""
    idle = [pattern for pattern in only if not any(fnmatch.fnmatch(run.name, pattern) for run in runs)]
    if idle:
        raise ValueError(f"--only {idle[0]}: no run of the plan has such a name; see `python -m training.lab list`")
    return [run for run in runs if not only or any(fnmatch.fnmatch(run.name, pattern) for pattern in only)]


def result_path(folder: Path, run: Run) -> Path:
    return folder / "runs" / run.name / "result.json"


def read_result(folder: Path, run: Run) -> dict[str, Any] | None:
    """What a finished run left, None if it is not finished."""
    path = result_path(folder, run)
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def finish(folder: Path, runs: Sequence[Run], prompt_files: Path) -> None:
    """Makes the runs that have no result yet."""
    missing = [run for run in runs if not result_path(folder, run).exists()]
    print(f"{len(runs) - len(missing)} of {len(runs)} runs are there")
    if missing:
        bench = prepare(folder, prompt_files)
        for number, run in enumerate(missing, start=1):
            print(f"{number} of {len(missing)}: {run.name}")
            make(bench, run)


def make(bench: Bench, run: Run, pace: Pace = PACE) -> dict[str, Any]:
    """Trains and judges one drafter; the result is written last, in one piece."""
    path = result_path(bench.folder, run)
    drafter = drafters.build(run, bench.target)
    pace = Pace(**{**asdict(pace), "steps": pace.steps * run.stretch})
    trained = train(
        drafter,
        drafters.step_of(drafter, run, bench.train, bench.target_head),
        drafters.probe_of(drafter, run, bench.held_out, bench.target_head),
        pace,
        path.parent,
        facts={"run": asdict(run)},
        label=run.name,
    )
    save_drafter(drafter, path.parent / "drafter", dtype=torch.float32)
    result = {
        "run": asdict(run),
        "name": run.name,
        "pace": asdict(pace),
        "parameters": sum(p.numel() for p in drafter.parameters() if p.requires_grad),
        "seconds": round(trained.seconds, 1),
        "curve": [{key: round(value, 4) for key, value in point.items()} for point in trained.curve],
        "judged": {f"T={t:g}": judged(bench, run, drafter, t) for t in TEMPERATURES},
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result) + "\n", encoding="utf-8")
    partial.replace(path)
    (path.parent / "state.safetensors").unlink()
    return result


def judged(bench: Bench, run: Run, drafter: Any, temperature: float) -> dict[str, Any]:
    """Counts by domain at one temperature, on the answers that belong to the run's seed."""
    answers = text.judged(
        bench.folder / "text",
        bench.target,
        bench.tokenizer,
        bench.prompts,
        temperature=temperature,
        seed=run.seed if temperature else 0,
        room=ROOM,
    )
    return {
        domain: asdict(judge.count(drafter, bench.target, rows, temperature=temperature, seed=run.seed))
        for domain, rows in answers.items()
    }
