"""This project's side of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dspark.client import Client, Completion, Options

TIMEOUT_S = 300.0


class Ours:
    """A cell under one policy; the cell's own when none is named."""

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
