"""What the accepted length owes to its parts: entries of q, rule, precision of feature rows, rows that are missing.

One run decodes the held-out prompts as a deployment does (block rule, 64 entries, bfloat16 rows, whole blocks). In each
of its rounds every setting of the table drafts a block from the same context, and `equal_blocks` says what that block
would commit on average, the target's own token included. So settings are compared in pairs, round by round: beside each
tau stands its difference to the deployed setting's, whose standard error comes from the spread between prompts. tau is
averaged over the rounds of a domain, and then over domains. Both engines run in this process.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.equal_blocks import committed, probs_behind
from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note, only_rows
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine
from draft_service.interface import DraftItem
from dspark.model.checkpoint import load_target
from dspark.types import Block, Cursor, Rule, SamplingParams, Verdict
from dspark.wire.tensors import FP8
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.feature_store import FeatureRows
from verify_service.sequences import VerifyItem

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
    """One answer under way."""

    domain: str
    cursor: Cursor
    params: SamplingParams
    tokens: list[int]  # the prompt and what was committed
    prompt_len: int
    rounds: int = 0
    worth: dict[tuple[Rule, int, str, int], float] = field(default_factory=dict)  # tokens by setting, over all rounds

    @property
    def committed(self) -> int:
        """By rounds: the prefill's token is nobody's merit."""
        return len(self.tokens) - self.prompt_len - 1


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablations", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PROMPTS} prompts a domain")
    parser.add_argument("--table", type=Path, metavar="FILE", help="also write the table as JSON")
    args = parser.parse_args(argv)
    only_rows()
    pair = chosen(args)
    prompts, tokens = (QUICK_PROMPTS, QUICK_TOKENS) if args.quick else (PROMPTS, TOKENS)
    bench = Bench(pair, prompts, tokens)
    lines: list[SettingResult] = []
    for temperature in (1.0, 0.0):
        wanted = settings(bench.vocab, temperature)
        streams = bench.run(wanted, temperature)
        lines += [_line(setting, temperature, streams) for setting in wanted]
        note(f"T = {temperature:g}: {sum(stream.rounds for stream in streams)} rounds")
    table = [_rounded(line) for line in lines]
    if args.table:
        args.table.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if not args.json:
        print(markdown(lines))
    value = {"prompts": prompts * len(DOMAINS), "tokens_each": tokens, "table": table}
    return Row("B8", "tau by entries, rule, rows and missing rows", value, "a table", True).show(as_json=args.json)


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


@dataclass
class Bench:
    """Both engines, the target by itself, and the prompts."""

    pair: Pair
    prompts: int
    tokens: int
    vocab: int = field(init=False)

    def __post_init__(self) -> None:
        count, room = self.prompts * len(DOMAINS), 64 * 1024
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
        held = len(FORMS)  # each sequence once per form of rows
        self._draft = DraftConfig(
            drafter=str(self.pair.drafter),
            target=str(self.pair.target),
            context_tokens=held * room,
            max_sequences=held * count,
        )
        self._drafter = DraftEngine.load(self._draft)
        self._target = load_target(self.pair.target).model.eval()
        self.vocab = self._verifier.target.vocab_size
        self._asked = [
            (domain, self.pair.token_ids(prompt)[:LONGEST_PROMPT])
            for domain in DOMAINS
            for prompt in self.pair.prompts(domain, self.prompts)
        ]

    def run(self, wanted: Sequence[Setting], temperature: float) -> list[AnswerStream]:
        """Decodes every prompt; each stream ends with the worth of every setting."""
        streams = [self._begin(number, *asked, temperature) for number, asked in enumerate(self._asked)]
        while running := [stream for stream in streams if stream.committed < self.tokens]:
            self._round(running, wanted)
        for stream in streams:
            self._verifier.release(stream.cursor.sequence, stream.cursor.epoch)
            for form in FORMS:
                self._drafter.release(self._held(stream.cursor, form).sequence, stream.cursor.epoch)
        return streams

    def _held(self, cursor: Cursor, form: str) -> Cursor:
        """The drafter's own sequence for rows of this form."""
        return cursor._replace(sequence=cursor.sequence * len(FORMS) + FORMS.index(form))

    def _begin(self, number: int, domain: str, prompt: list[int], temperature: float) -> AnswerStream:
        params = SamplingParams(temperature, seed=number, rule=Rule.BLOCK, prompt_len=len(prompt))
        cursor = Cursor(number, 1, 0, len(prompt))
        longest = len(prompt) + self.tokens + self._drafter.drafter.config.block_size + 2
        opened = [self._drafter.open(self._held(cursor, form), longest) for form in FORMS]
        for refusal in (self._verifier.open(cursor, params, longest, True, token_ids=prompt), *opened):
            if refusal is not None:
                raise SystemExit(f"a sequence was refused: {refusal.message}")
        self._verifier.prefill_chunk(number, prompt)
        anchor = self._verifier.first_token(number)
        assert isinstance(anchor, int), anchor
        cursor = cursor._replace(round=1, committed_len=len(prompt) + 1)
        self._push(cursor, 0)
        return AnswerStream(domain, cursor, params, [*prompt, anchor], len(prompt))

    def _round(self, running: Sequence[AnswerStream], wanted: Sequence[Setting]) -> None:
        deployed = Setting("", "")
        drafted = {setting.alike: self._drafts(running, setting) for setting in (deployed, *wanted)}
        for place, stream in enumerate(running):
            self._weigh(stream, {alike: blocks[place] for alike, blocks in drafted.items()})
        blocks = drafted[deployed.alike]
        items = [
            VerifyItem(stream.cursor, stream.tokens[-1], block.token_ids, block.q)
            for stream, block in zip(running, blocks, strict=True)
        ]
        for stream, block, verdict in zip(running, blocks, self._verifier.verify(items), strict=True):
            if not isinstance(verdict, Verdict):
                raise SystemExit(f"a round failed: {verdict}")
            stream.tokens += [*block.token_ids[: verdict.accepted], verdict.next_token]
            stream.rounds += 1
            start = stream.cursor.anchor_position
            stream.cursor = stream.cursor._replace(round=stream.cursor.round + 1, committed_len=len(stream.tokens))
            self._push(stream.cursor, start)

    def _drafts(self, running: Sequence[AnswerStream], setting: Setting) -> list[Block]:
        self._drafter.config = replace(self._draft, q_entries=setting.entries)
        asked = [
            DraftItem(
                self._held(s.cursor, setting.rows),
                s.tokens[-1],
                max(s.cursor.anchor_position - setting.missing, 1),
                replace(s.params, rule=setting.rule),
            )
            for s in running
        ]
        blocks = list(self._drafter.draft(asked))
        if empty := next((block for block in blocks if not block.token_ids), None):
            raise SystemExit(f"nothing was drafted: {empty.empty_reason.name}")
        return blocks

    def _weigh(self, stream: AnswerStream, blocks: dict[tuple[Rule, int, str, int], Block]) -> None:
        """Adds what each block is worth; the target looks at blocks of equal ids once."""
        different = list(dict.fromkeys(tuple(block.token_ids) for block in blocks.values()))
        probs = dict(zip(different, probs_behind(self._target, stream.tokens, different, stream.params), strict=True))
        for alike, block in blocks.items():
            params = replace(stream.params, rule=alike[0])
            worth = committed(block, probs[tuple(block.token_ids)], params, stream.cursor.anchor_position)
            stream.worth[alike] = stream.worth.get(alike, 0.0) + worth

    def _push(self, cursor: Cursor, start: int) -> None:
        """Rows from `start` on, over the wire's own format, once per form."""
        made = self._verifier.features(cursor, start)
        assert isinstance(made, FeatureRows), made
        count = len(made.token_ids)
        for form in FORMS:
            rows = self._drafter.read_rows(replace(made, form=form).message(0, count), count)
            number = self._held(cursor, form).sequence
            self._drafter.ingest(number, made.epoch, made.start, made.token_ids, rows)


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


if __name__ == "__main__":
    sys.exit(main())
