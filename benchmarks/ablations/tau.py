"""What the accepted length owes to its parts: entries of q, rule, precision of feature rows, rows that are missing.

One run decodes the held-out prompts as a deployment does (block rule, 64 entries, bfloat16 rows, whole blocks). In each
of its rounds every setting of the table drafts a block from the same context, and `equal_blocks` says what that block
would commit on average, the target's own token included. So settings are compared in pairs, round by round: beside each
tau stands its difference to the deployed setting's, whose standard error comes from the spread between prompts. tau is
averaged over the rounds of a domain, and then over domains. Both engines run in this process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Setting:
    """One line of the table; the defaults are those of a deployment."""

    group: str
    name: str
    rule: Rule = Rule.BLOCK
    entries: int = 64
    rows: str = FORMS[0]
    missing: int = 0  # newest context rows the drafter has to do without

    @property
    def alike(self) -> tuple[Rule, int, str, int]:
        """Settings of equal parts draft the same blocks."""
        return (self.rule, self.entries, self.rows, self.missing)


@dataclass
class SettingResult:
    """What a setting gave. error, more_error: standard errors of tau and of `more`."""

    group: str
    name: str
    temperature: float
    tau: float
    error: float
    more: float  # over the deployed setting, in shares of its tau
    more_error: float
    by_domain: dict[str, float]


@dataclass
class AnswerStream:
    """One answer under way. worth: tokens by setting, over all rounds."""

    domain: str
    answer: EngineAnswer
    rounds: int = 0
    worth: dict[tuple[Rule, int, str, int], float] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        """By rounds: the prefill's token is nobody's merit."""
        return len(self.answer.tokens) - self.answer.prompt_len - 1


def settings(vocab: int, temperature: float) -> list[Setting]:
    """The table at one temperature; greedy drafts have one entry and one rule."""
    made = []
    if temperature > 0:
        made += [
            Setting("entries", f"{rule.name.lower()}, K = {'full' if count == vocab else count}", rule, count)
            for rule in (Rule.BLOCK, Rule.COUPLED)
            for count in (16, 64, 256, vocab)
        ]
        made += [Setting("rule", rule.name.lower(), rule) for rule in Rule]
    made += [Setting("rows", form, rows=form) for form in FORMS]
    made += [Setting("missing rows", f"last {count} missing", missing=count) for count in (0, 1, 2, 4, 8)]
    return made


def row(pair: Pair, *, quick: bool, table: Path | None, shown: bool) -> Row:
    """table: where it is written as JSON. shown: for people, too."""
    prompts, tokens = (QUICK_PROMPTS, QUICK_TOKENS) if quick else (PROMPTS, TOKENS)
    bench = Bench(pair, prompts, tokens)
    lines: list[SettingResult] = []
    for temperature in (1.0, 0.0):
        wanted = settings(bench.vocab, temperature)
        streams = bench.run(wanted, temperature)
        lines += [_line(setting, temperature, streams) for setting in wanted]
        note(f"T = {temperature:g}: {sum(stream.rounds for stream in streams)} rounds")
    rounded = [_rounded(line) for line in lines]
    if table:
        table.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
    if shown:
        print(markdown(lines))
    value = {"prompts": prompts * len(DOMAINS), "tokens_each": tokens, "table": rounded}
    return Row("B8", "tau by entries, rule, rows and missing rows", value, "a table", True)


def markdown(lines: Sequence[SettingResult]) -> str:
    """The table for people."""
    head = [
        "| | | T | tau | against the deployed | " + " | ".join(DOMAINS) + " |",
        "| --- | --- | --- | --- | --- |" + " --- |" * len(DOMAINS),
    ]
    body = [
        f"| {line.group} | {line.name} | {line.temperature:g} | {line.tau:.2f} ± {line.error:.2f} | "
        + (f"{line.more:+.1%} ± {line.more_error:.1%}" if line.more_error else "itself")
        + "".join(f" | {line.by_domain[domain]:.2f}" for domain in DOMAINS)
        + " |"
        for line in lines
    ]
    return "\n".join(head + body)


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

    def run(self, wanted: Sequence[Setting], temperature: float) -> list[AnswerStream]:
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

    def _round(self, running: Sequence[AnswerStream], wanted: Sequence[Setting]) -> None:
        deployed, answers = Setting("", ""), [stream.answer for stream in running]
        drafted = {setting.alike: self._drafts(answers, setting) for setting in (deployed, *wanted)}
        for place, stream in enumerate(running):
            self._weigh(stream, {alike: blocks[place] for alike, blocks in drafted.items()})
            stream.rounds += 1
        self._engines.judge(answers, drafted[deployed.alike])

    def _drafts(self, answers: Sequence[EngineAnswer], setting: Setting) -> list[Block]:
        self._engines.drafter.config = replace(self._deployed, q_entries=setting.entries)
        return self._engines.draft(answers, form=setting.rows, missing=setting.missing, rule=setting.rule)

    def _weigh(self, stream: AnswerStream, blocks: dict[tuple[Rule, int, str, int], Block]) -> None:
        """Adds what each block is worth; the target looks at blocks of equal ids once."""
        answer, different = stream.answer, list(dict.fromkeys(tuple(block.token_ids) for block in blocks.values()))
        probs = dict(zip(different, probs_behind(self._target, answer.tokens, different, answer.params), strict=True))
        for alike, block in blocks.items():
            params = replace(answer.params, rule=alike[0])
            worth = committed(block, probs[tuple(block.token_ids)], params, answer.cursor.anchor_position)
            stream.worth[alike] = stream.worth.get(alike, 0.0) + worth


def _line(setting: Setting, temperature: float, streams: Sequence[AnswerStream]) -> SettingResult:
    deployed = Setting("", "").alike
    rounds = np.array([float(stream.rounds) for stream in streams])
    own = np.array([stream.worth[setting.alike] for stream in streams])
    base = np.array([stream.worth[deployed] for stream in streams])
    domains = np.array([DOMAINS.index(stream.domain) for stream in streams])
    tau, error = _ratio(own, rounds, domains)
    more, more_error = _ratio(own - base, rounds, domains)
    scale = float(_ratio(base, rounds, domains)[0].mean())
    return SettingResult(
        setting.group,
        setting.name,
        temperature,
        float(tau.mean()),
        error,
        float(more.mean()) / scale,
        more_error / scale,
        dict(zip(DOMAINS, tau.tolist(), strict=True)),
    )


Floats = npt.NDArray[np.float64]


def _ratio(sums: Floats, rounds: Floats, domains: npt.NDArray[np.int64]) -> tuple[Floats, float]:
    """Sums over rounds by domain, and the standard error of the domains' mean: what each prompt misses of its share."""
    made, variance = [], 0.0
    for domain in range(len(DOMAINS)):
        its = domains == domain
        ratio = float(sums[its].sum() / rounds[its].sum())
        variance += float(((sums[its] - ratio * rounds[its]) ** 2).sum()) / float(rounds[its].sum()) ** 2
        made.append(ratio)
    return np.array(made), math.sqrt(variance) / len(DOMAINS)


def _rounded(line: SettingResult) -> dict[str, Any]:
    plain = asdict(line)
    return {
        **{name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()},
        "by_domain": {domain: round(value, 3) for domain, value in line.by_domain.items()},
    }
