"""Our side of a comparison: a cell of hand-started services on the cores at hand, and what its own clocks say.

Options of the services are given as --set ROLE.KEY=VALUE, e.g. --set verify.threads=2; whatever is given is printed
with the result.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.pair import Pair
from deploy.processes import ProcessCell
from dspark.client import Client, Completion, Options
from dspark.loadgen import prometheus

ROLES = ("coordinator", "verify", "draft")
TIMEOUT_S = 300.0

BOOLEANS = {"true": True, "false": False}

Settings = Mapping[str, Mapping[str, str | bool]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--set`."""
    parser.add_argument("--set", action="append", default=[], metavar="ROLE.KEY=VALUE", help="option of a service")


def settings(args: argparse.Namespace) -> Settings:
    """What --set says, by role; float32 on both sides of a comparison unless it says otherwise."""
    found: dict[str, dict[str, str | bool]] = {"coordinator": {}, "verify": {"dtype": "float32"}, "draft": {}}
    for word in args.set:
        place, given, value = word.partition("=")
        role, dot, key = place.partition(".")
        if not given or not dot or role not in ROLES or not key:
            raise SystemExit(f"--set: {word!r} is not ROLE.KEY=VALUE with a ROLE of {', '.join(ROLES)}")
        found[role][key.replace("-", "_")] = BOOLEANS.get(value, value)
    return found


def cell(pair: Pair, given: Settings, *, verifiers: int = 1, drafters: int = 1) -> ProcessCell:
    """A context manager; nothing of it outlives this process."""
    coordinator, verify, draft = (dict(given[role]) for role in ROLES)
    return ProcessCell(
        pair.target,
        pair.drafter,
        verifiers=verifiers,
        drafters=drafters,
        coordinator=coordinator,
        verify=verify,
        draft=draft,
    )


class Ours:
    """A cell under one policy; its own when none is named."""

    most = 0

    def __init__(self, client: Client, policy: str = "") -> None:
        self.name = f"dspark {policy}".strip()
        self.rounds = self.committed = 0  # of all answers so far
        self._client, self._policy = client, policy

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        with ThreadPoolExecutor(len(prompts)) as threads:
            made = list(threads.map(lambda prompt: self._answer(prompt, tokens), prompts))
        for each in made:
            told = each.end.speculation
            self.rounds += told.rounds
            self.committed += round(told.mean_acceptance_length * told.rounds)
        return [list(each.token_ids) for each in made]

    def _answer(self, prompt: list[int], tokens: int) -> Completion:
        options: Options = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        if self._policy:
            options["policy"] = self._policy
        return self._client.complete(prompt, timeout=TIMEOUT_S, **options)


@dataclass(frozen=True)
class Clocks:
    """Seconds of a round's parts, means over the rounds of a stretch of work: both passes, and the hops around them."""

    verify_s: float
    draft_s: float
    hops_s: float


class Meter:
    """Reads the clocks of a cell's processes; `lap` gives the means since the lap before."""

    SAMPLES = (
        ("verify_pass", "verify/0", "forward_seconds", 'kind="verify"'),
        ("draft_pass", "draft/0", "forward_seconds", 'kind="draft"'),
        ("verify_trip", "coordinator/0", "verify_rpc_seconds", ""),
        ("draft_trip", "coordinator/0", "draft_rpc_seconds", ""),
    )

    def __init__(self, client: Client) -> None:
        self._ports = {process.name: process.metrics_port for process in client.status().processes}
        self._before = self._read()

    def lap(self) -> Clocks:
        now = self._read()
        spent = {name: total - self._before[name][0] for name, (total, _) in now.items()}
        rounds = now["verify_pass"][1] - self._before["verify_pass"][1]
        self._before = now
        # A round that asked for no draft has spent nothing on one.
        each = {name: seconds / rounds if rounds else 0.0 for name, seconds in spent.items()}
        hops = max(0.0, each["verify_trip"] - each["verify_pass"]) + max(0.0, each["draft_trip"] - each["draft_pass"])
        return Clocks(each["verify_pass"], each["draft_pass"], hops)

    def _read(self) -> dict[str, tuple[float, float]]:
        pages = {name: prometheus.fetch(f"http://127.0.0.1:{port}/metrics") for name, port in self._ports.items()}
        return {
            name: (
                prometheus.total(pages[process], f"dspark_{metric}_sum", label),
                prometheus.total(pages[process], f"dspark_{metric}_count", label),
            )
            for name, process, metric, label in self.SAMPLES
        }
