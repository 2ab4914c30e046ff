"""The tiny pair of the tests, and the few things that every step of the tour does with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from dspark import plots
from dspark.model.calibration import Calibration, load_calibration
from dspark.model.checkpoint import LoadedTarget, load_drafter, load_target
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.model.target import tapped
from dspark.training.rounds import anchors_at

MODELS = Path(__file__).parents[2] / "tests" / "data" / "pair"
DRAFTER, ASSISTANT, TARGET = MODELS / "drafter", MODELS / "assistant", MODELS / "target"
QUESTIONS = MODELS / "prompts.jsonl"
PROMPT = '    def get(self, name, default=None):\n        """Return'


@dataclass(slots=True)
class Tour:
    """The pair, and how far to go."""

    target: LoadedTarget
    drafter: BlockDrafter
    calibration: Calibration
    tokenizer: Any
    folder: Path  # of the plots
    tokens: int  # of an answer
    rows: int  # prompts that a step takes
    steps: int  # of the training

    @property
    def slots(self) -> int:
        return self.drafter.config.block_size

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Every token by itself, fit for a table."""
        return [repr(self.tokenizer.decode([i]))[1:-1].replace("|", "\\|") for i in ids]

    def logits(self, ids: Sequence[int], rows: int) -> Tensor:
        """The target's logits after each of the last `rows` tokens, [rows, V]."""
        found = self.target.model(
            input_ids=torch.tensor([list(ids)]), logits_to_keep=rows, use_cache=False
        )
        logits: Tensor = found.logits[0]
        return logits

    def plain(self) -> tuple[list[int], list[int]]:
        """PROMPT and the target's answer to it, one token for every pass."""
        prompt = list(self.tokenizer.encode(PROMPT))
        ids = list(prompt)
        for _ in range(self.tokens):
            ids.append(int(self.logits(ids, 1)[0].argmax()))
        return prompt, ids[len(prompt) :]

    def propose(self, ids: Sequence[int]) -> Any:
        """One block after the last token of `ids`, the anchor, which the target has not read
        yet."""
        past = torch.tensor(list(ids[:-1]))
        features, _ = tapped(self.target.model, past[None], self.drafter.target_layer_ids)
        at = torch.tensor([len(past)])
        begun = anchors_at(self.drafter, features[0], torch.tensor(list(ids)), at)
        return self.drafter.propose(begun, self.slots)

    def draft(self, ids: Sequence[int], pick: Callable[[Tensor], int]) -> list[float]:
        """A block for the reference loop: tokens through `pick`, slot by slot; returns calibrated
        confidences."""
        proposal, previous = self.propose(ids), [ids[-1]]
        for _ in range(self.slots):
            previous.append(pick(proposal.step(torch.tensor(previous[-1:]))[0]))
        raw = proposal.confidence_logits(torch.tensor([previous[:-1]]))[0]
        return [float(c) for c in self.calibration.apply(raw, "greedy")]

    def save(self, figure: Any, name: str, *, from_zero: bool = True) -> str:
        """Writes a picture; returns what shows it on the page."""
        self.folder.mkdir(parents=True, exist_ok=True)
        plots.write(figure, self.folder / f"{name}.png", from_zero=from_zero)
        return f"![{name}]({self.folder.name}/{name}.png)"


def agreeing(draft: Sequence[int], truth: Sequence[int]) -> int:
    """How many tokens of a draft are right from its first one on."""
    return next((k for k in range(len(truth)) if draft[k] != truth[k]), len(truth))


def load(folder: Path, *, tokens: int, rows: int, steps: int) -> Tour:
    drafter = as_block(load_drafter(DRAFTER)).requires_grad_(False)
    return Tour(
        target=load_target(TARGET),
        drafter=drafter,
        calibration=load_calibration(DRAFTER, block_size=drafter.config.block_size),
        tokenizer=AutoTokenizer.from_pretrained(TARGET, local_files_only=True),
        folder=folder,
        tokens=tokens,
        rows=rows,
        steps=steps,
    )
