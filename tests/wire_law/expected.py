"""The target's law of whole answers, enumerated in float64 by transformers and numpy alone.

Nothing of the product computes here: logits are the library's, and sampling parameters are applied
as their definitions say. V tokens, answers of n tokens, the first one most significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]


def answer_law(
    target: Path, prompt: Sequence[int], options: Mapping[str, Any], *, length: int
) -> Floats:
    """[V ** length] probability of every answer."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).double().eval()
    answers: list[tuple[int, ...]] = [()]
    chances = np.ones(1)
    for _ in range(length):
        ids = torch.tensor([[*prompt, *answer] for answer in answers])
        with torch.no_grad():
            logits = model(ids).logits[:, -1].numpy()
        rows = [
            next_law(row, prompt, answer, options)
            for row, answer in zip(logits, answers, strict=True)
        ]
        law = np.array(rows)
        chances = (chances[:, None] * law).ravel()
        answers = [(*answer, token) for answer in answers for token in range(law.shape[1])]
    return chances


def next_law(
    logits: Floats, prompt: Sequence[int], answer: Sequence[int], options: Mapping[str, Any]
) -> Floats:
    """[V] of the token after `answer`."""
    changed = logits.astype(np.float64)
    for token, bias in options.get("logit_bias", {}).items():
        changed[token] += bias
    factor = options.get("repetition_penalty", 1.0)
    for token in {*prompt, *answer}:
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token in set(answer):
        changed[token] -= options.get("frequency_penalty", 0.0) * answer.count(token)
        changed[token] -= options.get("presence_penalty", 0.0)
    scaled = changed / options["temperature"]
    law: Floats = np.exp(scaled - scaled.max())
    law /= law.sum()
    order = np.argsort(-law)
    kept = order[: options.get("top_k") or len(order)]
    mass = law[kept].cumsum()
    needed = options.get("top_p", 1.0) * mass[-1]
    kept = kept[: int((mass < needed - 1e-15).sum()) + 1]
    cut = np.zeros_like(law)
    cut[kept] = law[kept]
    return cut / cut.sum()
