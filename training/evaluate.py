"""Accepted length by domain on held-out prompts, and how varied the text is that it was measured on.

tau = emitted tokens / rounds, the bonus token included, the prefill's token excluded, pooled over prompts.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dspark.model.drafter import BlockDrafter
from training import lockstep, record, rounds
from training.corpus import DOMAINS
from training.prompts import Prompt
from training.tokenizer import END_OF_TEXT_ID

NEW_TOKENS = 128
TEMPERATURES = (0.0, 1.0)


@dataclass(slots=True)
class Tally:
    """Counts of one domain at one temperature."""

    rounds: int = 0
    emitted: int = 0
    survived: list[int] = field(default_factory=lambda: [0] * 7)
    scores: list[list[float]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    distinct_tokens: list[float] = field(default_factory=list)
    distinct_words: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {
            "tau": self.emitted / max(1, self.rounds),
            "rounds": self.rounds,
            "prefix_acceptance": [count / max(1, self.rounds) for count in self.survived],
            "distinct_4_tokens": sum(self.distinct_tokens) / max(1, len(self.distinct_tokens)),
            "distinct_4_words": sum(self.distinct_words) / max(1, len(self.distinct_words)),
        }


def distinct_4(items: Sequence[object]) -> float | None:
    """Different runs of four over all runs of four; None for a text too short to have one."""
    runs = [tuple(items[n : n + 4]) for n in range(len(items) - 3)]
    return len(set(runs)) / len(runs) if runs else None


def texts_of(
    target: Qwen3ForCausalLM, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int, room: int
) -> torch.Tensor:
    """The target's own continuation of every prompt, [n, T], with `room` tokens after the longest one's last round."""
    ids, _ = lockstep.generate(
        target,
        prompts=prompts,
        total=max(map(len, prompts)) + NEW_TOKENS + room,
        temperatures=torch.full((len(prompts),), temperature),
        generator=torch.Generator().manual_seed(seed),
        end_id=END_OF_TEXT_ID,
        beginning=lambda _row: [],
    )
    return ids


def tally(
    target: Qwen3ForCausalLM,
    drafter: BlockDrafter,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    seed: int,
) -> Tally:
    """Rounds of all prompts of one domain at one temperature, full blocks drafted."""
    size = drafter.config.block_size
    ids = texts_of(target, prompts, temperature=temperature, seed=seed, room=size + 1)
    generator = torch.Generator().manual_seed(seed + 1)
    result = Tally(survived=[0] * size)
    for row, prompt in enumerate(prompts):
        first = len(prompt)
        text = ids[row, first : first + NEW_TOKENS].tolist()
        ends = [token == END_OF_TEXT_ID for token in ids[row, first:].tolist()]
        last = ends.index(True) if True in ends[:NEW_TOKENS] else NEW_TOKENS
        if last == 0:
            continue
        blocks = rounds.judge(
            drafter,
            target,
            ids[row : row + 1, : first + last + size + 1],
            torch.arange(first, first + last),
            temperature=temperature,
            generator=generator,
        )
        accepted = blocks.accepted.tolist()
        for anchor, emitted in rounds.walk([*accepted, 0], ends, NEW_TOKENS):
            result.rounds += 1
            result.emitted += emitted
            for slot in range(size):
                result.survived[slot] += accepted[anchor] > slot
            result.kept.append(accepted[anchor])
            result.scores.append(blocks.confidence[anchor].tolist())
        words = tokenizer.decode(text[:last]).split()
        for found, place in ((text[:last], result.distinct_tokens), (words, result.distinct_words)):
            share = distinct_4(found)
            if share is not None:
                place.append(share)
    return result


def evaluate(
    target: Qwen3ForCausalLM,
    drafter: BlockDrafter,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[Prompt],
    *,
    seed: int,
) -> dict[str, Any]:
    """Figures by temperature and domain, and their plain means over the domains."""
    report: dict[str, Any] = {}
    with record.progress() as bar:
        task = bar.add_task("evaluate", total=len(TEMPERATURES) * len(DOMAINS), note="")
        for temperature in TEMPERATURES:
            domains: dict[str, Any] = {}
            for domain in DOMAINS:
                encoded = [tokenizer.encode(p.prompt) for p in prompts if p.domain == domain]
                counted = tally(target, drafter, tokenizer, encoded, temperature=temperature, seed=seed)
                domains[domain] = counted.figures()
                bar.update(task, advance=1, note=f"T={temperature:g} {domain} tau {domains[domain]['tau']:.2f}")
            mean = {
                key: sum(domains[d][key] for d in DOMAINS) / len(DOMAINS)
                for key in ("tau", "distinct_4_tokens", "distinct_4_words")
            }
            report[f"T={temperature:g}"] = domains | {"mean": mean}
    return report


def table(report: dict[str, Any]) -> str:
    """The report for people: one line per temperature and domain."""
    lines = [f"{'':6}{'domain':8}{'tau':>6}{'rounds':>8}{'d4 tok':>8}{'d4 wrd':>8}  survival by slot"]
    for temperature, domains in report.items():
        for domain, row in domains.items():
            slots = " ".join(f"{share:.2f}" for share in row.get("prefix_acceptance", []))
            lines.append(
                f"{temperature:6}{domain:8}{row['tau']:6.2f}{row.get('rounds', 0):8}"
                f"{row['distinct_4_tokens']:8.2f}{row['distinct_4_words']:8.2f}  {slots}"
            )
    return "\n".join(lines)


def write(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
