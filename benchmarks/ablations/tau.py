"""What the accepted length owes to its parts: entries of q, rule, precision of feature rows, rows
that are missing.

One run decodes the held-out prompts as a deployment does (block rule, 64 entries, bfloat16 rows,
whole blocks). In each of its rounds every setting of the table drafts a block from the same
context, and `equal_blocks` says what that block would commit on average, the target's own token
included. So settings are compared in pairs, round by round: beside each tau stands its difference
to the deployed setting's, whose standard error comes from the spread between prompts. tau is
averaged over the rounds of a domain, and then over domains. Both engines run in this process.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.ablations.equal_blocks import committed, probs_behind
from benchmarks.engine_pair import EngineAnswer, EnginePair
from benchmarks.pair import DOMAINS, Pair
from benchmarks.row import Row, note
from dspark.model.checkpoint import load_target
from dspark.types import Block, Rule, SamplingParams
from dspark.wire.tensors import FP8

PROMPTS, TOKENS = 16, 72  # of a domain; of an answer
QUICK_PROMPTS, QUICK_TOKENS = 3, 24
LONGEST_PROMPT = 160
FORMS = ("bfloat16", FP8)


class DraftSetting(NamedTuple):
    """How a block is drafted; the defaults are those of a deployment."""

    rule: Rule = Rule.BLOCK
    entries: int = 64
    rows: str = FORMS[0]
    missing: int = 0  # newest context rows the drafter has to do without


DEPLOYED = DraftSetting()
Setting = tuple[str, str, DraftSetting]  # group, name


@dataclass
class AnswerStream:
    """One answer in progress. worth: mean tokens by setting, summed over all rounds."""

    domain: str
    answer: EngineAnswer
    rounds: int = 0
    worth: defaultdict[DraftSetting, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def committed(self) -> int:
        """Tokens committed by rounds, without the prefill's token."""
        return len(self.answer.tokens) - self.answer.prompt_len - 1


def settings(vocab: int, temperature: float) -> list[Setting]:
    """The table at one temperature; greedy drafts have one entry and one rule."""
    made: list[Setting] = []
    if temperature > 0:
        made += [
            (
                "entries",
                f"{rule.name.lower()}, K = {'full' if count == vocab else count}",
                DraftSetting(rule, count),
            )
            for rule in (Rule.BLOCK, Rule.COUPLED)
            for count in (16, 64, 256, vocab)
        ]
        made += [("rule", rule.name.lower(), DraftSetting(rule)) for rule in Rule]
    made += [("rows", form, DraftSetting(rows=form)) for form in FORMS]
    made += [
        ("missing rows", f"last {count} missing", DraftSetting(missing=count))
        for count in (0, 1, 2, 4, 8)
    ]
    return made


def row(pair: Pair, *, quick: bool, file: Path | None) -> Row:
    """Measures the table at both temperatures. file: where it is written as JSON."""
    prompts, tokens = (QUICK_PROMPTS, QUICK_TOKENS) if quick else (PROMPTS, TOKENS)
    bench = Bench(pair, prompts, tokens)
    table: list[dict[str, Any]] = []
    for temperature in (1.0, 0.0):
        wanted = settings(bench.vocab, temperature)
        streams = bench.run([drafting for _, _, drafting in wanted], temperature)
        for group, name, drafting in wanted:
            about = {"group": group, "name": name, "temperature": temperature}
            table.append(about | compared(drafting, streams))
        note(f"T = {temperature:g}: {sum(stream.rounds for stream in streams)} rounds")
    if file:
        file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    value = {"prompts": prompts * len(DOMAINS), "tokens_each": tokens, "table": table}
    return Row("B8", "tau by entries, rule, rows and missing rows", value, "a table", True)


class Bench:
    """Both engines, the target by itself, and the prompts."""

    def __init__(self, pair: Pair, prompts: int, tokens: int) -> None:
        self._tokens = tokens
        self._engines = EnginePair.load(pair, prompts * len(DOMAINS), 64 * 1024, FORMS)
        self._deployed = self._engines.drafter.config
        self._target = load_target(pair.target).model.eval()
        self.vocab = self._engines.verifier.target.vocab_size
        self._asked = [
            (domain, pair.token_ids(prompt)[:LONGEST_PROMPT])
            for domain in DOMAINS
            for prompt in pair.prompts(domain, prompts)
        ]

    def run(self, wanted: Sequence[DraftSetting], temperature: float) -> list[AnswerStream]:
        """Decodes every prompt; each stream ends with the worth of every setting."""
        room = self._tokens + self._engines.drafter.shape.block_size + 2
        streams = []
        for number, (domain, prompt) in enumerate(self._asked):
            params = SamplingParams(temperature, seed=number, rule=Rule.BLOCK)
            streams.append(AnswerStream(domain, self._engines.begin(number, prompt, params, room)))
        while running := [stream for stream in streams if stream.committed < self._tokens]:
            self._round(running, wanted)
        self._engines.release(stream.answer for stream in streams)
        return streams

    def _round(self, running: Sequence[AnswerStream], wanted: Sequence[DraftSetting]) -> None:
        answers = [stream.answer for stream in running]
        drafted = {drafting: self._drafts(answers, drafting) for drafting in (DEPLOYED, *wanted)}
        for place, stream in enumerate(running):
            self._weigh(stream, {drafting: blocks[place] for drafting, blocks in drafted.items()})
            stream.rounds += 1
        self._engines.judge(answers, drafted[DEPLOYED])

    def _drafts(self, answers: Sequence[EngineAnswer], how: DraftSetting) -> list[Block]:
        self._engines.drafter.config = replace(self._deployed, q_entries=how.entries)
        return self._engines.draft(answers, form=how.rows, missing=how.missing, rule=how.rule)

    def _weigh(self, stream: AnswerStream, blocks: dict[DraftSetting, Block]) -> None:
        """Adds the worth of each block; the target computes blocks of equal ids once."""
        answer = stream.answer
        different = list(dict.fromkeys(tuple(block.token_ids) for block in blocks.values()))
        behind = probs_behind(self._target, answer.tokens, different, answer.params)
        probs = dict(zip(different, behind, strict=True))
        for drafting, block in blocks.items():
            params = replace(answer.params, rule=drafting.rule)
            worth = committed(
                block, probs[tuple(block.token_ids)], params, answer.cursor.anchor_position
            )
            stream.worth[drafting] += worth


def compared(drafting: DraftSetting, streams: Sequence[AnswerStream]) -> dict[str, Any]:
    """tau of one setting. more: over the deployed setting's tau, in shares of it. error,
    more_error: standard errors of tau and of more."""
    rounds = np.array([float(stream.rounds) for stream in streams])
    own = np.array([stream.worth[drafting] for stream in streams])
    base = np.array([stream.worth[DEPLOYED] for stream in streams])
    domains = np.array([DOMAINS.index(stream.domain) for stream in streams])
    tau, error = _ratio(own, rounds, domains)
    more, more_error = _ratio(own - base, rounds, domains)
    scale = float(_ratio(base, rounds, domains)[0].mean())
    return {
        "tau": round(float(tau.mean()), 4),
        "error": round(error, 4),
        "more": round(float(more.mean()) / scale, 4),
        "more_error": round(more_error / scale, 4),
        "by_domain": {
            domain: round(value, 3) for domain, value in zip(DOMAINS, tau.tolist(), strict=True)
        },
    }


Floats = npt.NDArray[np.float64]


def _ratio(sums: Floats, rounds: Floats, domains: npt.NDArray[np.int64]) -> tuple[Floats, float]:
    """Sums over rounds by domain, and the standard error of the domains' mean, from each prompt's
    distance to its domain's ratio."""
    made, variance = [], 0.0
    for domain in range(len(DOMAINS)):
        its = domains == domain
        ratio = float(sums[its].sum() / rounds[its].sum())
        variance += (
            float(((sums[its] - ratio * rounds[its]) ** 2).sum()) / float(rounds[its].sum()) ** 2
        )
        made.append(ratio)
    return np.array(made), math.sqrt(variance) / len(DOMAINS)
