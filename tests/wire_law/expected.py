"""The target's law of whole answers, enumerated in float64 by transformers and plain floats.

Nothing of the product computes here: logits are the library's, and sampling parameters are applied
as their definitions say. V tokens, answers of n tokens, the first one most significant.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dspark.types import SamplingParams
from tests.definitions import plain_law, plainly

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
    params = SamplingParams(
        **{**options, "logit_bias": tuple(options.get("logit_bias", {}).items())},
        prompt_len=len(prompt),
    )
    shaped = plainly(logits.tolist(), params, [*prompt, *answer])
    return np.array(plain_law(shaped, params))
