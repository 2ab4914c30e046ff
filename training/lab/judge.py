"""What a trained drafter achieves: full blocks, the token rule, text of the target that no drafter has seen.

Rounds are replayed on the target's own answers (see `training/rounds.py`); q is not cut.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dspark.model.family import Drafter
from training import rounds
from training.lab.text import JUDGED_NEW, JUDGED_PROMPT
from training.tokenizer import END_OF_TEXT_ID


@dataclass(slots=True)
class Counts:
    """Of one domain: by prompt, and by slot over all prompts."""

    prompts: list[tuple[int, int]] = field(default_factory=list)  # rounds, emitted tokens
    survived: list[int] = field(default_factory=list)  # rounds that accepted more than k slots


def count(
    drafter: Drafter,
    target: Qwen3ForCausalLM,
    answers: Tensor,  # [N, 64 + 64 + room]
    *,
    temperature: float,
    seed: int,
) -> Counts:
    """Replays the rounds of every answer."""
    size = drafter.config.block_size
    generator = torch.Generator().manual_seed(seed)
    result = Counts(survived=[0] * size)
    for row in answers:
        ends = (row[JUDGED_PROMPT:] == END_OF_TEXT_ID).tolist()
        last = ends.index(True) if True in ends[:JUDGED_NEW] else JUDGED_NEW
        if not last:  # an answer that ends before its first round
            result.prompts.append((0, 0))
            continue
        blocks = rounds.judge(
            drafter,
            target,
            row[None, : JUDGED_PROMPT + last + size + 1],
            torch.arange(JUDGED_PROMPT, JUDGED_PROMPT + last),
            temperature=temperature,
            generator=generator,
            cut=None,
        )
        accepted = blocks.accepted.tolist()
        walked = rounds.walk([*accepted, 0], ends, JUDGED_NEW)
        result.prompts.append((len(walked), sum(emitted for _, emitted in walked)))
        for anchor, _ in walked:
            for slot in range(accepted[anchor]):
                result.survived[slot] += 1
    return result
