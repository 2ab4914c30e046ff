"""Contestants that take turns on the same work, and what came of it: programs on the same questions (`Race`), policies
under the same load (`Tournament`).

A turn measures everybody once; who begins changes from turn to turn. A ratio is the median over the turns of the ratio
inside a turn, since a machine's speed moves by more than contestants differ.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.ours import Clocks, Meter, Ours
from benchmarks.peers.contestant import Contestant, Reply
from benchmarks.row import note
from dspark.errors import InvalidRequest
from dspark.plots import by_streams, panels, write

WARM_TOKENS = 24
ADAPTIVE = ("greedy", "async")
BASELINES = ("off", *(f"fixed:{slots}" for slots in range(1, 8)))
HOPELESS = 0.87  # of the best baseline's median; noise of one turn stays well below what is left out here

Rate = Callable[[str, int], Awaitable[float]]  # policy, concurrency -> tokens a second


T = TypeVar("T")


def rotated(contestants: Sequence[T], turn: int) -> list[T]:
    """Everybody, from another one on in every turn."""
    first = turn % len(contestants)
    return [*contestants[first:], *contestants[:first]]


def ratios(ahead: Sequence[float], other: Sequence[float]) -> list[float]:
    """One a turn."""
    return [a / b for a, b in zip(ahead, other, strict=True)]


class Race:
    """Every contestant answers every question once a turn; who begins changes from turn to turn."""

    def __init__(
        self, contestants: Sequence[Contestant], questions: Mapping[str, list[list[int]]], tokens: int, meter: Meter
    ) -> None:
        self._contestants = list(contestants)
        self._questions = questions
        self._tokens = tokens
        self._meter = meter
        self._replies: dict[tuple[str, str], list[list[Reply]]] = {}  # (domain, name) -> turns -> questions
        self._clocks: dict[tuple[str, str], list[Clocks]] = {}
        self._speculation: dict[str, list[tuple[float, int, int]]] = {}  # domain -> (committed, rounds, verified)

    def warm_up(self) -> None:
        """One short answer of each domain from everyone, thrown away."""
        for contestant in self._contestants:
            for questions in self._questions.values():
                contestant.ask(questions[0], WARM_TOKENS)

    def turn(self, number: int) -> None:
        for domain, questions in self._questions.items():
            for contestant in rotated(self._contestants, number):
                key = (domain, contestant.name)
                if isinstance(contestant, Ours):
                    self._meter.lap()
                replies = []
                for question in questions:
                    replies.append(contestant.ask(question, self._tokens))
                    self._note(domain, contestant)
                self._replies.setdefault(key, []).append(replies)
                if isinstance(contestant, Ours):
                    self._clocks.setdefault(key, []).append(self._meter.lap())

    def _note(self, domain: str, contestant: Contestant) -> None:
        if isinstance(contestant, Ours) and contestant.policy != "off" and contestant.last is not None:
            spec = contestant.last.end.speculation
            told = (spec.mean_acceptance_length * spec.rounds, spec.rounds, spec.verified_tokens)
            self._speculation.setdefault(domain, []).append(told)

    def rates(self, domain: str, name: str) -> list[float]:
        """Tokens a second, one figure a turn."""
        turns = self._replies[domain, name]
        return [sum(len(reply.ids) for reply in turn) / sum(reply.seconds for reply in turn) for turn in turns]

    def domain(self, domain: str, ahead: str, plain: str) -> dict[str, Any]:
        """Medians of one domain: rates, ratios of `ahead` to everyone else, tau, and the ceiling it implies."""
        own = self.rates(domain, ahead)
        others = [contestant.name for contestant in self._contestants if contestant.name != ahead]
        over = {name: statistics.median(ratios(own, self.rates(domain, name))) for name in others}
        told = self._speculation[domain]
        rounds = max(sum(spec[1] for spec in told), 1)
        tau, verified = sum(spec[0] for spec in told) / rounds, sum(spec[2] for spec in told) / rounds
        single, drafted = self._median_clocks(domain, plain), self._median_clocks(domain, ahead)
        round_s = drafted.verify_s + drafted.draft_s + drafted.hops_s
        return {
            "tok_s": {name: round(statistics.median(self.rates(domain, name)), 1) for name in (ahead, *others)},
            "ratio": {name: round(ratio, 3) for name, ratio in over.items()},
            "tau": {ahead: round(tau, 3)} | self._other_taus(domain),
            "verified_a_round": round(verified, 2),
            "T_v(1)_ms": round(1e3 * single.verify_s, 3),
            "T_v(l+1)_ms": round(1e3 * drafted.verify_s, 3),
            "T_d_ms": round(1e3 * drafted.draft_s, 3),
            "N_ms": round(1e3 * drafted.hops_s, 3),
            # Wall time over rounds: prompt, client and whatever no clock above sees included.
            "round_ms": round(1e3 * self._wall_s(domain, ahead) / rounds, 3),
            "ceiling_over_off": round(tau * single.verify_s / round_s, 3) if round_s else None,
        }

    def _wall_s(self, domain: str, name: str) -> float:
        return sum(reply.seconds for turn in self._replies[domain, name] for reply in turn)

    def _median_clocks(self, domain: str, name: str) -> Clocks:
        laps = self._clocks[domain, name]
        parts = ("verify_s", "draft_s", "hops_s")
        return Clocks(**{part: statistics.median(getattr(lap, part) for lap in laps) for part in parts})

    def _other_taus(self, domain: str) -> dict[str, float]:
        """Of contestants that are not ours and count passes of the target."""
        found = {}
        for contestant in self._contestants:
            replies = [reply for turn in self._replies[domain, contestant.name] for reply in turn]
            rounds = sum(reply.rounds for reply in replies)
            if rounds and not isinstance(contestant, Ours):
                # The prefill's pass commits a token too, which is no round's.
                found[contestant.name] = round(sum(len(reply.ids) - 1 for reply in replies) / rounds, 3)
        return found

    def same_ids(self, ahead: str) -> dict[str, str]:
        """How many first-turn answers of each contestant are those of `ahead`, token by token."""
        told = {}
        for contestant in self._contestants:
            pairs = [
                (mine.ids, theirs.ids)
                for domain in self._questions
                for mine, theirs in zip(
                    self._replies[domain, ahead][0], self._replies[domain, contestant.name][0], strict=True
                )
            ]
            told[contestant.name] = f"{sum(mine == theirs for mine, theirs in pairs)} of {len(pairs)}"
        return told


class Book:
    """Measurements by (part, load, policy), in order of turns. What `path` holds is not made again; None forgets."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._rates: dict[tuple[str, int, str], list[float]] = {}
        if path is None:
            return
        head = json.loads(json.dumps({"settings": dict(settings)}))  # as it is read back: tuples are lists there
        if not path.exists():
            self._write(head)
            return
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not lines or lines[0] != head:
            raise InvalidRequest("save", f"{path} holds measurements of other settings; name another file")
        for line in lines[1:]:
            self._rates.setdefault((line["part"], line["load"], line["policy"]), []).append(line["tok_s"])

    def rates(self, part: str, load: int, policy: str) -> list[float]:
        return self._rates.get((part, load, policy), [])

    def add(self, part: str, load: int, policy: str, tok_s: float) -> None:
        self._rates.setdefault((part, load, policy), []).append(tok_s)
        if self._path is not None:
            self._write({"part": part, "load": load, "policy": policy, "tok_s": round(tok_s, 2)})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass
class Tournament:
    """Policies under one load after the other: `rate` measures, `book` remembers.

    Every other turn runs backwards, so that nobody always follows the same neighbour. Baselines whose median falls
    below `HOPELESS` of the best baseline's leave: turns are better spent on those that may be it.
    """

    part: str
    rate: Rate
    book: Book
    turns: int
    points: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def run(self, loads: Sequence[int]) -> dict[str, dict[str, Any]]:
        """What came of each load, by its number."""
        for load in loads:
            left = [*BASELINES, *ADAPTIVE]
            for turn in range(self.turns):
                for policy in left[:: -1 if turn % 2 else 1]:
                    if len(self.book.rates(self.part, load, policy)) <= turn:
                        self.book.add(self.part, load, policy, await self.rate(policy, load))
                left = self._stay(load, left, turn)
            self.points[str(load)] = point = self._point(load, left)
            note(f"{self.part}, {load} streams: {point['best']} over {point['rival']}: {point['ratio']:.3f}x")
        return self.points

    def _stay(self, load: int, left: Sequence[str], turn: int) -> list[str]:
        medians = {policy: statistics.median(self.book.rates(self.part, load, policy)[: turn + 1]) for policy in left}
        best = max(medians[policy] for policy in left if policy in BASELINES)
        return [policy for policy in left if policy in ADAPTIVE or medians[policy] >= HOPELESS * best]

    def _point(self, load: int, left: Sequence[str]) -> dict[str, Any]:
        """Medians of everybody; the best adaptive policy over the best baseline that stayed, turn by turn."""
        rates = {policy: self.book.rates(self.part, load, policy) for policy in (*BASELINES, *ADAPTIVE)}
        medians = {policy: statistics.median(given) for policy, given in rates.items()}
        best = max(ADAPTIVE, key=medians.__getitem__)
        rival = max((policy for policy in left if policy in BASELINES), key=medians.__getitem__)
        each = ratios(rates[best], rates[rival])
        return {
            "best": best,
            "rival": rival,
            "ratio": round(statistics.median(each), 4),
            "ratios": [round(min(each), 4), round(max(each), 4)],
            "tok_s": {policy: round(median, 1) for policy, median in medians.items()},
            "turns": {policy: len(given) for policy, given in rates.items()},
        }


def draw(parts: Mapping[str, Mapping[str, Mapping[str, Any]]], path: Path) -> None:
    """Each policy's tokens a second over those of the best fixed one, against the load; one panel a part."""
    figure, row = panels(len(parts), (6.5, 4.4))
    for axes, (part, points) in zip(row, parts.items(), strict=True):
        loads = [int(load) for load in points]
        for policy in (*BASELINES, *ADAPTIVE):
            share = [point["tok_s"][policy] / point["tok_s"][point["rival"]] for point in points.values()]
            own = policy in ADAPTIVE
            axes.plot(loads, share, "o-", label=policy, linewidth=2.4 if own else 1.0, alpha=1.0 if own else 0.6)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set(xlabel="streams", ylabel="tokens a second over the best fixed policy's", title=part)
        by_streams(axes)
    write(figure, path, from_zero=False)
