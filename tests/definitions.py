"""What a law of one token means, on plain floats: a reading of the definitions, token by token."""

import math
from collections.abc import Sequence

from dspark.types import SamplingParams


def plainly(logits: Sequence[float], params: SamplingParams, said: Sequence[int]) -> list[float]:
    """The definition, token by token, in the order the proto states."""
    row, answer = [float(value) for value in logits], list(said[params.prompt_len :])
    for token in range(len(row)):
        if len(answer) < params.min_tokens and token in params.stop_token_ids:
            row[token] = -math.inf
        row[token] += dict(params.logit_bias).get(token, 0.0)
        if token in said:
            row[token] = (
                row[token] / params.repetition_penalty
                if row[token] > 0
                else row[token] * params.repetition_penalty
            )
        row[token] -= params.frequency_penalty * answer.count(token)
        row[token] -= params.presence_penalty * (token in answer)
    return row


def plain_law(logits: list[float], params: SamplingParams) -> list[float]:
    """The definition, token by token: sort by probability then id, keep, renormalise."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.greedy:
        return [float(token == order[0]) for token in range(len(logits))]
    top = logits[order[0]]
    weight = [math.exp((value - top) / params.temperature) for value in logits]
    order = [token for token in order if weight[token] >= params.min_p]
    if 0 < params.top_k < len(logits):
        order = order[: params.top_k]
    if params.top_p < 1.0:
        whole, reached, nucleus = math.fsum(weight[token] for token in order), 0.0, []
        for token in order:
            nucleus.append(token)
            reached += weight[token] / whole
            if reached >= params.top_p:
                break
        order = nucleus
    kept = math.fsum(weight[token] for token in order)
    return [weight[token] / kept if token in order else 0.0 for token in range(len(logits))]
