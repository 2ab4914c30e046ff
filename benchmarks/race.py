"""Contestants that take turns on the same questions, and what a turn showed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.ours import Clocks, Meter, Ours
from benchmarks.peers.contestant import Contestant, Reply

WARM_TOKENS = 24


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
            first = number % len(self._contestants)
            for contestant in [*self._contestants[first:], *self._contestants[:first]]:
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
        pairs = {name: zip(own, self.rates(domain, name), strict=True) for name in others}
        ratios = {name: statistics.median(a / b for a, b in both) for name, both in pairs.items()}
        told = self._speculation[domain]
        rounds = max(sum(spec[1] for spec in told), 1)
        tau, verified = sum(spec[0] for spec in told) / rounds, sum(spec[2] for spec in told) / rounds
        single, drafted = self._median_clocks(domain, plain), self._median_clocks(domain, ahead)
        round_s = drafted.verify_s + drafted.draft_s + drafted.hops_s
        return {
            "tok_s": {name: round(statistics.median(self.rates(domain, name)), 1) for name in (ahead, *others)},
            "ratio": {name: round(ratio, 3) for name, ratio in ratios.items()},
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

    def answers(self, name: str) -> list[tuple[int, ...]]:
        """Ids of the first turn, in order."""
        return [reply.ids for domain in self._questions for reply in self._replies[domain, name][0]]
