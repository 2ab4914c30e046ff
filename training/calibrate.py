"""Fits the confidence temperatures on held-out rounds and writes `calibration.json` beside the weights.

One bucket for greedy requests and one for sampled ones; drafts are cut to their largest few, as when serving.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dspark.model.calibration import FILE_NAME, Bucket, Calibration, calibration_to_json
from dspark.model.drafter import BlockDrafter
from training import evaluate, record, rounds, sts, tokens
from training.corpus import DOMAINS

# What each bucket is fitted on.
BUCKETS: Mapping[Bucket, tuple[float, ...]] = {"greedy": (0.0,), "sampled": (0.7, 1.0)}
ROWS = 32
PROMPT_TOKENS = (24, 96)


def held_out_prompts(streams: Mapping[str, tokens.Ids], domain: str, rows: int, seed: int) -> list[list[int]]:
    """Stretches of held-out text that start anywhere: not the prompts of the evaluation."""
    rng = np.random.default_rng([seed, DOMAINS.index(domain), 7])
    stream = streams[f"{domain}/held-out"]
    lengths = rng.integers(*PROMPT_TOKENS, size=rows)
    starts = rng.integers(len(stream) - PROMPT_TOKENS[1], size=rows)
    return [[int(t) for t in stream[s : s + n]] for s, n in zip(starts, lengths, strict=True)]


def fit(
    target: Qwen3ForCausalLM,
    drafter: BlockDrafter,
    tokenizer: PreTrainedTokenizerFast,
    streams: Mapping[str, tokens.Ids],
    folder: Path,
    *,
    seed: int,
    rows: int = ROWS,
) -> dict[str, sts.Fit]:
    """Fits both buckets; writes the temperatures to `folder` and reliability plots beside the log. Fits by bucket."""
    fits: dict[str, sts.Fit] = {}
    buckets: dict[Bucket, tuple[float, ...]] = {}
    with record.progress() as bar:
        task = bar.add_task("calibrate", total=sum(map(len, BUCKETS.values())) * len(DOMAINS), note="")
        for bucket, temperatures in BUCKETS.items():
            scores: list[list[float]] = []
            kept: list[int] = []
            for number, temperature in enumerate(temperatures):
                for domain in DOMAINS:
                    prompts = held_out_prompts(streams, domain, rows, seed + number)
                    counted = evaluate.tally(
                        target, drafter, tokenizer, prompts, temperature=temperature, seed=seed + 100 + number
                    )
                    scores += counted.scores
                    kept += counted.kept
                    bar.update(task, advance=1, note=f"{bucket} {len(kept)} rounds")
            logits, accepted = np.array(scores), np.array(kept)
            fits[bucket] = sts.fit(logits, accepted)
            buckets[bucket] = tuple(round(t, 4) for t in fits[bucket].temperatures)
            draw(logits, accepted, fits[bucket], folder / f"reliability-{bucket}.png")
    calibration = Calibration(rule="token", top_k_cut=rounds.TOP_K_CUT, buckets=buckets)
    (folder / FILE_NAME).write_text(json.dumps(calibration_to_json(calibration), indent=2) + "\n", encoding="utf-8")
    return fits


def draw(logits: sts.Floats, accepted: "np.ndarray[tuple[int], np.dtype[np.int64]]", fit: sts.Fit, path: Path) -> None:
    """Predicted against observed survival, before and after, every other slot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panes = pyplot.subplots(1, 2, figsize=(8, 4), sharey=True)
    ones = (1.0,) * logits.shape[1]
    for pane, title, temperatures in zip(panes, ("before", "after"), (ones, fit.temperatures), strict=True):
        predicted = sts.survival(logits, temperatures)
        for slot in range(0, logits.shape[1], 2):
            bins = np.minimum((predicted[:, slot] * sts.BINS).astype(int), sts.BINS - 1)
            used = [b for b in range(sts.BINS) if (bins == b).sum() >= 10]
            means = [predicted[bins == b, slot].mean() for b in used]
            rates = [(accepted[bins == b] > slot).mean() for b in used]
            pane.plot(means, rates, marker=".", label=f"slot {slot + 1}")
        pane.plot((0, 1), (0, 1), color="grey", linewidth=0.7)
        pane.set_title(title)
        pane.set_xlabel("predicted survival")
    panes[0].set_ylabel("observed survival")
    panes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
