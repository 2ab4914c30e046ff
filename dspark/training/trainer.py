"""Trains a drafter of any family for a target, alone or as one of several workers.

A step is a function of (settings, step, state): batches and anchors are keyed by step and
conversation, never drawn from a running generator. So a run that was killed and resumed ends with
the same weights and logged figures as one that was not. Numerators, their gradients and
denominators are added up over the pieces and workers of a step and divided once at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from dspark.errors import ConfigError
from dspark.model.checkpoint import save_drafter
from dspark.model.weights_file import SINGLE_NAME
from dspark.progress import progress
from dspark.training import checkpoint, record
from dspark.training.batches import numbers_of
from dspark.training.disk import check_same_run, only_writer, write_json
from dspark.training.loss import LossSums, figures
from dspark.training.objective import own_weights
from dspark.training.optimisers import make_optimisers, set_step
from dspark.training.run import TrainingRun, WorkerGroup, open_run
from dspark.training.settings import Settings, settled
from dspark.whole_file import remove_partial

STATE, LOG, CURVE, MODEL = "state.safetensors", "log.csv", "loss.png", "drafter"
CURVES = {name: (name, f"held_out_{name}") for name in ("loss", "tau")}
HELD_OUT_KEY = 0x7E57  # anchors of held-out conversations are the same at every evaluation


def train_drafter(settings: Settings) -> Path:
    """Trains a drafter in `settings.out`, or resumes the run there; returns the folder of the
    drafter in the released format.

    Beside it are `state.safetensors`, `log.csv` and `loss.png`. ConfigError if the folder holds
    another run, or another process is training there. For several workers, who starts them holds
    the folder: a refusal of one would leave the others waiting for it.
    """
    world = WorkerGroup.of_process_group()
    run = open_run(settings, world)
    with only_writer(Path(settings.out)) if world.size == 1 else nullcontext():
        return _train(run)


def _train(run: TrainingRun) -> Path:
    settings, world = run.settings, run.world
    out, plan = Path(settings.out), run.plan
    optimisers = make_optimisers(run.drafter, settings)
    done, before = 0, 0.0
    if (out / STATE).exists():
        # Checked before weights of another shape are copied.
        kept = checkpoint.read_header(out / STATE)["facts"]
        check_same_run(out, kept["settings"], settled(run.settings))
        check_same_run(out, kept["identity"], dict.fromkeys(kept["identity"]) | run.identity)
        checkpoint.load(out / STATE, run.drafter, optimisers)
        done, before = kept["step"], kept["seconds"]
    log = record.StepLog(out / LOG) if world.leads else None
    if log:
        log.keep_until(done)
        for path in (out / STATE, out / MODEL / SINGLE_NAME):
            remove_partial(path)
    start = saved = time.perf_counter()
    with progress(f"train {settings.family}", plan.steps, shown=world.size == 1) as tell:
        for step in range(done, plan.steps):
            set_step(optimisers, settings, step, plan.steps)
            shown = learn(run, optimisers, step)
            last = step + 1 == plan.steps
            seconds = before + time.perf_counter() - start
            if last or (step + 1) % settings.log_every == 0:
                held = plan.used < len(run.samples)
                if held and (last or (step + 1) % settings.evaluate_every == 0):
                    shown |= held_out(run)
                if log:
                    log.row(_row(step + 1, seconds, shown, held))
            tell(completed=step + 1, note=f"loss {shown['loss']:.4f} tau {shown['tau']:.2f}")
            now = time.perf_counter()
            if world.leads and (
                last or (step + 1) % settings.save_every == 0 or now - saved > settings.save_every_s
            ):
                state = {"step": step + 1, "seconds": seconds, "settings": asdict(run.settings)}
                state["identity"] = run.identity
                checkpoint.save(out / STATE, run.drafter, optimisers, state)
                saved = now
    if world.leads:
        _finish(run, out)
    world.wait()
    return out / MODEL


def learn(
    run: TrainingRun, optimisers: Mapping[str, torch.optim.Optimizer], step: int
) -> dict[str, float]:
    """Takes one training step; returns its figures. ConfigError if the gradient is not finite."""
    settings, world = run.settings, run.world
    numbers = numbers_of(run.plan, seed=settings.seed, step=step, rank=world.rank, size=world.size)
    sums = run.sums(numbers, (settings.seed, step), learn=True)
    world.add_gradients(run.drafter.parameters())
    sums = LossSums(*(world.add(value.clone()) for value in sums))
    trained = [p for p in run.drafter.parameters() if p.requires_grad and p.grad is not None]
    for parameter in trained:
        assert parameter.grad is not None
        parameter.grad.mul_(1.0 / (float(sums.denominator) + 1e-6))
    norm = nn.utils.clip_grad_norm_(trained, settings.clip)
    if not torch.isfinite(norm):
        raise ConfigError(
            f"rate: the gradient of step {step + 1} is not finite; nothing of it was applied"
        )
    for optimiser in optimisers.values():
        optimiser.step()
        optimiser.zero_grad()
    return figures(sums, own_weights(run.drafter.config)) | {"grad_norm": float(norm)}


@torch.no_grad()
def held_out(run: TrainingRun) -> dict[str, float]:
    """Loss and tau of the held-out conversations, of which every worker computes a part."""
    numbers = list(range(run.plan.used, len(run.samples)))[run.world.rank :: run.world.size]
    run.drafter.eval()
    # of more workers than conversations some have none: what they compute counts nothing
    sums = run.sums(numbers or [run.plan.used], (HELD_OUT_KEY,), learn=False)
    run.drafter.train()
    own = [value.clone() if numbers else torch.zeros_like(value) for value in sums]
    sums = LossSums(*map(run.world.add, own))
    shown = figures(sums, own_weights(run.drafter.config))
    return {f"held_out_{name}": shown[name] for name in ("loss", "tau")}


def _row(step: int, seconds: float, shown: Mapping[str, float], held: bool) -> dict[str, float]:
    """One row of the log; its columns are the same at every step."""
    blank = {"held_out_loss": float("nan"), "held_out_tau": float("nan")} if held else {}
    return {"step": step, "seconds": seconds} | blank | dict(shown)


def _finish(run: TrainingRun, out: Path) -> None:
    dtype = torch.bfloat16 if run.settings.precision == "bf16" else torch.float32
    save_drafter(run.drafter, out / MODEL, dtype=dtype)
    write_json(out / "settings.json", asdict(run.settings))
    record.draw(record.StepLog(out / LOG), CURVES, out / CURVE)
