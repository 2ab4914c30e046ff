"""The target alone, by transformers: what a token may be, whatever served it.

Three kinds of promises. At temperature 0 and under `coupled` each token follows from those before
it, so an answer is right or wrong by itself: one forward pass over prompt and answer tells, and a
token that is led by less than a near-tie is counted. Under a ratio rule an answer is what the
recorded choices lead to, see `tape`. Where no choices were recorded, a token at least has to be one
that its law can give.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dspark.decoding.gumbel import NEAR_TIE, checked_argmax, exponentials
from dspark.decoding.sampling import SamplingColumns, distribution
from dspark.decoding.shaping import Shaper, shaped
from dspark.types import Rule, SamplingParams
from tests.faults.pair import TARGET

SLACK = 1e-3  # nats by which rounding may move a token over the edge of a truncation
NOT_LAW = (
    "max_tokens",
    "n",
    "policy",
    "timeout",
    "cache_salt",
    "ignore_eos",
    "request_id",
    "drafter",
    "resume_s",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """wrong: what is not as promised, or empty. near_ties: tokens that rounding decided."""

    wrong: str = ""
    near_ties: int = 0


@functools.cache
def model(target: Path = TARGET) -> Any:
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()


def logits(tokens: Sequence[int], rows: int, target: Path = TARGET) -> torch.Tensor:
    """[rows, V] after each of the last `rows` tokens."""
    with torch.inference_mode():
        out: torch.Tensor = model(target)(
            input_ids=torch.tensor([list(tokens)]), use_cache=False
        ).logits
    return out[0, -rows:].float()


def params_of(options: Mapping[str, Any], prompt_len: int) -> SamplingParams:
    """As workers read it: request fields travel as float32."""
    given = {name: _float32(value) for name, value in options.items() if name not in NOT_LAW}
    if "logit_bias" in given:
        given["logit_bias"] = tuple(
            sorted((token, _float32(by)) for token, by in given["logit_bias"].items())
        )
    if "stop_token_ids" in given:
        given["stop_token_ids"] = tuple(sorted(given["stop_token_ids"]))
    rule = Rule[given.pop("rule", "coupled" if "seed" in given else "block").upper()]
    return SamplingParams(**given, rule=rule, prompt_len=prompt_len)


def examine(
    prompt: Sequence[int], answer: Sequence[int], params: SamplingParams, target: Path = TARGET
) -> Finding:
    """Whether each token of the answer is the one, or one of those, that its law says."""
    if not answer:
        return Finding()
    params = replace(params, prompt_len=len(prompt))
    rows = shaped(
        logits([*prompt, *answer], len(answer) + 1, target)[:-1],
        [(0, answer[:-1], Shaper.of(params, prompt))],
    )
    if params.greedy:
        best = rows.topk(2).values
        own, leads = rows.argmax(dim=-1), best[:, 0] - best[:, 1]
    elif params.rule is Rule.COUPLED:
        noise = exponentials(
            [params] * len(answer), range(len(prompt), len(prompt) + len(answer)), rows.shape[-1]
        )
        own, leads = checked_argmax(distribution(rows, SamplingColumns.of([params])), noise)
    else:
        return _possible(answer, rows, params)
    near = leads < NEAR_TIE
    for place, (token, said, close) in enumerate(
        zip(own.tolist(), answer, near.tolist(), strict=True)
    ):
        if token != said and not close:
            return Finding(f"token {place} is {said}, and {token} by its law", int(near.sum()))
    return Finding("", int(near.sum()))


def _possible(answer: Sequence[int], rows: torch.Tensor, params: SamplingParams) -> Finding:
    chances = distribution(rows, SamplingColumns.of([params]))
    scaled = rows.double() / params.temperature
    least = torch.where(chances > 0, scaled, torch.inf).amin(dim=-1)  # of what is kept
    for place, said in enumerate(answer):
        if scaled[place, said] < least[place] - SLACK:
            return Finding(f"token {place} is {said}, which its law cannot give")
    return Finding()


def _float32(value: Any) -> Any:
    return float(torch.tensor(value)) if isinstance(value, float) else value


def plain_greedy(target: Path, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """So many greedy ids for each prompt, past stop tokens, by transformers' own loop."""
    own = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    own.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        out = own.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            pad_token_id=0,
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers
