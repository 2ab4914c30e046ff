"""The text all drafters are trained on and judged by: the target's own, with its hidden states beside it.

Hidden states of every token are computed once and kept: drafters read them thirty times.
N rows, T tokens, m taps, H the target's width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dspark.model.target import TargetTaps
from training import lockstep, prompts, tokens
from training.corpus import DOMAINS
from training.tokenizer import END_OF_TEXT_ID

TRAIN_ROWS, HELD_OUT_ROWS, LENGTH = 2048, 96, 160
PROMPT = (16, 40)  # tokens a row is begun with
TEMPERATURES = (0.0, 0.7, 1.0, 1.0)
AT_ONCE = 256
JUDGED_PROMPT, JUDGED_NEW = 64, 64  # tokens


def taps_of(layers: int, taps: int = 5) -> tuple[int, ...]:
    """Evenly spaced layer ids that leave the last layer out."""
    return tuple(int(place) for place in np.linspace(0, layers - 2, taps).round())


def kept_taps(layers: int) -> tuple[int, ...]:
    """What the cache holds: those, and the last layer, which a multi-token-prediction module reads alone."""
    return (*taps_of(layers), layers - 1)


@dataclass(frozen=True, slots=True)
class Text:
    """Rows of one length with what the target saw there."""

    ids: Tensor  # [N, T] int64
    supervised: Tensor  # [N, T] bool, written by the target
    features: Tensor  # [N, T, (m+1)*H] bf16, tapped layers and the last one
    last: Tensor  # [N, T, H] bf16, after the final norm

    def rows(self, index: Tensor) -> "Text":
        """Some of the rows, hidden states in fp32."""
        return Text(self.ids[index], self.supervised[index], self.features[index].float(), self.last[index].float())


@torch.inference_mode()
def hidden_states(target: Qwen3ForCausalLM, ids: Tensor, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """ids [B, T] -> features [B, T, m*H] and last hidden states [B, T, H]."""
    with TargetTaps(target, taps) as tapped:
        last = target.model(input_ids=ids, use_cache=False).last_hidden_state
        return tapped.collect(), last


def write(
    target: Qwen3ForCausalLM, streams: Mapping[str, tokens.Ids], split: str, rows: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Continuations of corpus text of a split, domains and temperatures in turn: ids and supervised, [rows, LENGTH]."""
    ids, supervised = [], []
    for first in range(0, rows, AT_ONCE):
        rng = np.random.default_rng([seed, first])
        count = min(AT_ONCE, rows - first)

        def beginning(row: int, length: int = PROMPT[0], rng: np.random.Generator = rng) -> list[int]:
            stream = streams[f"{DOMAINS[row % len(DOMAINS)]}/{split}"]
            place = int(rng.integers(len(stream) - length))
            return [int(token) for token in stream[place : place + length]]

        temperatures = [TEMPERATURES[row // len(DOMAINS) % len(TEMPERATURES)] for row in range(count)]
        made, forced = lockstep.generate(
            target,
            prompts=[beginning(row, int(rng.integers(PROMPT[0], PROMPT[1] + 1))) for row in range(count)],
            total=LENGTH,
            temperatures=torch.tensor(temperatures),
            generator=torch.Generator().manual_seed(int(rng.integers(2**31))),
            end_id=END_OF_TEXT_ID,
            beginning=beginning,
        )
        ids.append(made)
        supervised.append(~forced)
    return torch.cat(ids), torch.cat(supervised)


def prepare(
    folder: Path,
    target: Qwen3ForCausalLM,
    streams: Mapping[str, tokens.Ids],
    *,
    split: str,
    rows: int,
    seed: int,
) -> Text:
    """The text of a split with its hidden states, from `folder` if it is there."""
    path = folder / f"{split}.safetensors"
    if not path.exists():
        ids, supervised = write(target, streams, split, rows, seed)
        taps = kept_taps(target.config.num_hidden_layers)
        parts = [hidden_states(target, part, taps) for part in torch.split(ids, 64)]
        tensors = {
            "ids": ids,
            "supervised": supervised,
            "features": torch.cat([features.bfloat16() for features, _ in parts]),
            "last": torch.cat([last.bfloat16() for _, last in parts]),
        }
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)
    return Text(**load_file(path))


def judged(
    folder: Path,
    target: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    held_out: Sequence[prompts.Prompt],
    *,
    temperature: float,
    seed: int,
    room: int,
) -> dict[str, Tensor]:
    """The target's answers to held-out prompts, by domain: [prompts, 64 + 64 + room], prompts cut to 64 tokens.

    Every drafter of a seed is judged on the same answers. At temperature 0 they are the same for all seeds.
    """
    path = folder / f"judged-t{temperature:g}-s{seed}.safetensors"
    if not path.exists():
        answers = {}
        for domain in DOMAINS:
            encoded = [tokenizer.encode(p.prompt)[:JUDGED_PROMPT] for p in held_out if p.domain == domain]
            encoded = [ids for ids in encoded if len(ids) == JUDGED_PROMPT]
            answers[domain], _ = lockstep.generate(
                target,
                prompts=encoded,
                total=JUDGED_PROMPT + JUDGED_NEW + room,
                temperatures=torch.full((len(encoded),), temperature),
                generator=torch.Generator().manual_seed(seed + 1000 * DOMAINS.index(domain)),
                end_id=END_OF_TEXT_ID,
                beginning=lambda _row: [],
            )
        folder.mkdir(parents=True, exist_ok=True)
        save_file(answers, path.with_suffix(".partial"))
        path.with_suffix(".partial").replace(path)
    return dict(load_file(path))
