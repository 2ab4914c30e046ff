"""The one training loop of the lab: every model, the target included, is trained by these lines.

What a step reads is a function of (seed, step) alone and the curve travels with the state, so a run that was
killed goes on from its last state and ends in the same numbers as one that was not.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training import checkpoint, record
from training.optimisers import muon_and_adamw, set_rates
from training.schedule import rate

Figures = dict[str, float]
# Of matrices, those that are read by token rather than multiplied through, and a head of a single row.
TABLES = ("lm_head.weight", "markov_head.markov_w2.weight", "confidence_head.proj.weight")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run is, how fast it learns, and how often it looks up."""

    steps: int
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    warmup: int = 20
    decay_from: float = 0.4
    probes: int = 20  # points of the held-out curve
    save_every_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Trained:
    """What a finished run knows about itself."""

    curve: list[Figures]
    seconds: float  # of training, interruptions left out


def optimizers_of(model: nn.Module, pace: Pace) -> dict[str, Optimizer]:
    """Muon for the matrices that are trained, AdamW for tables by token, norms and biases."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    tables |= {id(p) for name, p in model.named_parameters() if name in TABLES}
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim == 2 and id(p) not in tables]
    return muon_and_adamw(trained, matrices, matrix_rate=pace.matrix_rate, vector_rate=pace.vector_rate)


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],  # step -> scalar with gradient
    probe: Callable[[], Figures],  # held-out figures of the model as it is
    pace: Pace,
    folder: Path,
    *,
    facts: Mapping[str, object],
    label: str,
) -> Trained:
    """Trains or resumes below `folder`. `facts` must be what the state was made with, or it is refused."""
    optimizers = optimizers_of(model, pace)
    made_with = json.loads(json.dumps({"pace": asdict(pace), **facts}))  # as the state will spell it
    state = checkpoint.load(folder, "state", model, optimizers)
    if state is not None and state["made_with"] != made_with:
        raise ValueError(f"{folder}: the state there was made with {state['made_with']}, this run wants {made_with}")
    done, curve, before = (state["step"], state["curve"], state["seconds"]) if state else (0, [], 0.0)
    peaks = {"muon": pace.matrix_rate, "adamw": pace.vector_rate}
    every = max(1, pace.steps // pace.probes)
    recent: list[float] = []
    # Processor time: a stopped or crowded machine does not count.
    start, saved = time.process_time(), time.perf_counter()
    with record.progress() as bar:
        task = bar.add_task(label, total=pace.steps, completed=done, note="")
        for step in range(done, pace.steps):
            set_rates(optimizers, peaks, rate(step, pace.steps, warmup=pace.warmup, decay_from=pace.decay_from))
            model.train()
            loss = loss_of(step)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            recent.append(loss.item())
            if not math.isfinite(recent[-1]):
                raise FloatingPointError(f"{label}: the loss of step {step} is {recent[-1]}")
            last = step + 1 == pace.steps
            bar.update(task, advance=1, note=f"loss {recent[-1]:.3f}")
            if (step + 1) % every == 0 or last:
                model.eval()
                with torch.no_grad():
                    figures = probe()
                curve.append({"step": step + 1, "loss": sum(recent) / len(recent)} | figures)
                recent.clear()
                shown = "  ".join(f"{key} {value:.4g}" for key, value in curve[-1].items())
                print(f"{label}  {time.process_time() - start + before:.0f} s  {shown}", flush=True)
            # Between two points of the curve the mean loss of the next one would be lost.
            if last or (not recent and time.perf_counter() - saved > pace.save_every_s):
                seconds = before + time.process_time() - start
                state = {"step": step + 1, "curve": curve, "seconds": seconds, "made_with": made_with}
                checkpoint.save(folder, "state", model, optimizers, state)
                saved = time.perf_counter()
    model.eval()
    return Trained(curve, before + time.process_time() - start)
