"""What the accepted length owes to its parts: entries of q, rule, precision of feature rows, rows that are missing.

The verifier's and the drafter's engines run in this process, all prompts side by side, whole blocks verified. tau
counts the target's own token, is averaged over the rounds of a domain and then over domains; its standard error comes
from the spread between prompts of a domain. Every line decodes the same held-out prompts with the same seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from draft_service.interface import DraftItem
from dspark.types import Cursor, Law, Rule, Verdict
from dspark.wire.tensors import FP8
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.feature_store import FeatureRows
from verify_service.sequences import VerifyItem

PROMPTS, TOKENS = 20, 96  # of a domain; of an answer
QUICK_PROMPTS, QUICK_TOKENS = 4, 48
CONTEXT = 4096


@dataclass(frozen=True)
class Setting:
    """One line of the table; the defaults are those of a deployment."""

    group: str
    name: str
    rule: Rule = Rule.BLOCK
    entries: int = 64
    rows: str = "bfloat16"
    missing: int = 0  # newest context rows the drafter has to do without
    temperature: float = 1.0


@dataclass
class Line:
    """What a setting gave."""

    group: str
    name: str
    temperature: float
    tau: float
    error: float
    by_domain: dict[str, float]
    rounds: int


@dataclass
class Stream:
    """One answer under way."""

    domain: str
    cursor: Cursor
    law: Law
    tokens: list[int]  # the prompt and what was committed
    prompt_len: int
    rounds: int = 0

    @property
    def committed(self) -> int:
        """By rounds: the prefill's token is nobody's merit."""
        return len(self.tokens) - self.prompt_len - 1


def settings(vocab: int) -> list[Setting]:
    """The table."""
    made = [
        Setting("entries", f"K = {'full' if count == vocab else count}", rule, count)
        for rule in (Rule.BLOCK, Rule.COUPLED)
        for count in (16, 64, 256, vocab)
    ]
    made = [replace(each, name=f"{each.rule.name.lower()}, {each.name}") for each in made]
    made += [Setting("rule", rule.name.lower(), rule) for rule in Rule]
    for temperature in (1.0, 0.0):
        made += [Setting("rows", form, rows=form, temperature=temperature) for form in ("bfloat16", FP8)]
        made += [
            Setting("missing rows", f"last {count} missing", missing=count, temperature=temperature)
            for count in (0, 1, 2, 4, 8)
        ]
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablations", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PROMPTS} prompts a domain")
    parser.add_argument("--table", type=Path, metavar="FILE", help="also write the table as JSON")
    args = parser.parse_args(argv)
    pair = chosen(args)
    prompts, tokens = (QUICK_PROMPTS, QUICK_TOKENS) if args.quick else (PROMPTS, TOKENS)
    bench = Bench(pair, prompts, tokens)
    done: dict[Setting, Line] = {}
    lines = []
    for setting in settings(bench.vocab):
        alike = replace(setting, group="", name="")
        line = done[alike] if alike in done else bench.run(setting)
        done[alike] = line = replace(line, group=setting.group, name=setting.name)
        lines.append(line)
        note(f"{line.group:12s} {line.name:20s} T={line.temperature:g}  tau {line.tau:.3f} +- {line.error:.3f}")
    table = [_rounded(line) for line in lines]
    if args.table:
        args.table.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if not args.json:
        print(markdown(lines))
    value = {"prompts": prompts * len(DOMAINS), "tokens_each": tokens, "table": table}
    return Row("3.12", "tau by entries, rule, rows and missing rows", value, "a table", True).show(as_json=args.json)


def markdown(lines: Sequence[Line]) -> str:
    """The table for people."""
    head = ["| | | T | tau | " + " | ".join(DOMAINS) + " |", "| --- | --- | --- | --- |" + " --- |" * len(DOMAINS)]
    body = [
        f"| {line.group} | {line.name} | {line.temperature:g} | {line.tau:.2f} ± {line.error:.2f} | "
        + " | ".join(f"{line.by_domain[domain]:.2f}" for domain in DOMAINS)
        + " |"
        for line in lines
    ]
    return "\n".join(head + body)


@dataclass
class Bench:
    """Both engines and the prompts."""

    pair: Pair
    prompts: int
    tokens: int
    vocab: int = field(init=False)

    def __post_init__(self) -> None:
        count = self.prompts * len(DOMAINS)
        room = 64 * 1024
        self._verifier = VerifyEngine.load(
            VerifyConfig(
                target=str(self.pair.target),
                drafter=str(self.pair.drafter),
                kv_tokens=room,
                max_sequences=count,
                prefix_cache=False,
                measure_cost=False,
            )
        )
        self._draft = DraftConfig(drafter=str(self.pair.drafter), context_tokens=room, max_sequences=count)
        self._drafter = DraftEngine.load(self._draft)
        self.vocab = self._verifier.target.vocab_size
        self._asked = [
            (domain, self.pair.token_ids(prompt)[:256])
            for domain in DOMAINS
            for prompt in self.pair.prompts(domain, self.prompts)
        ]

    def run(self, setting: Setting) -> Line:
        """Decodes every prompt under one setting."""
        self._drafter.config = replace(self._draft, q_entries=setting.entries)
        streams = [self._begin(number, *asked, setting) for number, asked in enumerate(self._asked)]
        while running := [stream for stream in streams if stream.committed < self.tokens]:
            self._round(running, setting)
        for stream in streams:
            self._verifier.release(stream.cursor.sequence, stream.cursor.epoch)
            self._drafter.release(stream.cursor.sequence, stream.cursor.epoch)
        return _line(setting, streams)

    def _begin(self, number: int, domain: str, prompt: list[int], setting: Setting) -> Stream:
        law = Law(setting.temperature, seed=number, rule=setting.rule, prompt_len=len(prompt))
        cursor = Cursor(number, 1, 0, len(prompt))
        longest = len(prompt) + self.tokens + self._drafter.drafter.config.block_size + 2
        for refusal in (
            self._verifier.open(cursor, law, longest, False, token_ids=prompt),
            self._drafter.open(cursor, longest),
        ):
            if refusal is not None:
                raise SystemExit(f"a sequence was refused: {refusal.message}")
        made = self._verifier.prefill_chunk(number, prompt)
        assert isinstance(made, FeatureRows), made
        self._push(made, setting)
        anchor = self._verifier.first_token(number)
        assert isinstance(anchor, int), anchor
        return Stream(
            domain, replace(cursor, round=1, committed_len=len(prompt) + 1), law, [*prompt, anchor], len(prompt)
        )

    def _round(self, running: Sequence[Stream], setting: Setting) -> None:
        blocks = self._drafter.draft(
            [
                DraftItem(s.cursor, s.tokens[-1], max(s.cursor.anchor_position - setting.missing, 1), s.law)
                for s in running
            ]
        )
        items = [
            VerifyItem(stream.cursor, stream.tokens[-1], block.token_ids, block.q)
            for stream, block in zip(running, blocks, strict=True)
        ]
        judged = self._verifier.judge_cohort(items)
        for stream, block, verdict, rows in zip(running, blocks, judged.outcomes, judged.features, strict=True):
            if not isinstance(verdict, Verdict) or not block.token_ids:
                raise SystemExit(f"a round failed: {verdict if block.token_ids else block.empty_reason.name}")
            assert isinstance(rows, FeatureRows)
            self._push(rows, setting)
            stream.tokens += [*block.token_ids[: verdict.accepted], verdict.next_token]
            stream.rounds += 1
            stream.cursor = replace(stream.cursor, round=stream.cursor.round + 1, committed_len=len(stream.tokens))

    def _push(self, made: FeatureRows, setting: Setting) -> None:
        """Over the wire's own format."""
        chunk = replace(made, form=setting.rows).message(0, len(made.token_ids))
        rows = self._drafter.read_rows(chunk, len(made.token_ids))
        self._drafter.ingest(made.sequence, made.epoch, made.start, made.token_ids, rows)


def _line(setting: Setting, streams: Sequence[Stream]) -> Line:
    def tau(these: Sequence[Stream]) -> float:
        return sum(s.committed for s in these) / sum(s.rounds for s in these)

    by_domain, variance = {}, 0.0
    for domain in DOMAINS:
        its = [s for s in streams if s.domain == domain]
        by_domain[domain] = tau(its)
        # Of a ratio of sums: what each prompt misses of its rounds' share.
        missed = np.array([s.committed - by_domain[domain] * s.rounds for s in its])
        variance += float((missed**2).sum()) / sum(s.rounds for s in its) ** 2
    mean, error = float(np.mean(list(by_domain.values()))), math.sqrt(variance) / len(DOMAINS)
    rounds = sum(s.rounds for s in streams)
    return Line(setting.group, setting.name, setting.temperature, mean, error, by_domain, rounds)


def _rounded(line: Line) -> dict[str, object]:
    numbers = {name: round(value, 3) for name, value in line.by_domain.items()}
    return {**asdict(line), "tau": round(line.tau, 3), "error": round(line.error, 3), "by_domain": numbers}


if __name__ == "__main__":
    sys.exit(main())
