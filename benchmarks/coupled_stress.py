"""Seeded answers do not depend on anything but their seed: 500 requests under everything that may vary, against `off`.

Random laws (truncations, penalties, biases, least lengths, several answers), policies, lengths and arrivals over two
verifiers with small page pools and three drafters: a good one, one whose weights are noise-perturbed and one that is
noise. Two drafters and a verifier are killed on the way and come back. The same requests run once in calm, without
drafts. Every answer is also decoded by transformers and the coupled rule
alone, which tells where two tokens are led by less than 1e-4 nats: only there an id may differ, and only behind it. A
run that preempted nobody or drafted nothing shows nothing, and fails.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from deploy.head import free_ports
from deploy.processes import Child, Flags, LocalCell
from dspark.client import AsyncClient
from dspark.decoding.race import NEAR_TIE, times, winners
from dspark.decoding.sampling import LawColumns, distribution
from dspark.decoding.shaping import Shaper, shaped
from dspark.errors import DsparkError
from dspark.model.checkpoint import load_target
from dspark.types import Law, Rule

REQUESTS, QUICK = 500, 100
CONCURRENCY = 24
MOST_LOST = 10
LONG, LONG_TOKENS = 0.2, (150, 280)  # this share of answers outgrows what a verifier keeps free for them
KV_TOKENS = 480  # of each verifier: a handful of these sequences, so others wait, and long ones are preempted
POLICIES = ("off", "greedy", "async", "fixed:1", "fixed:3", "fixed:7", "threshold:0.3", "threshold:0.7")
NOISE = {1: 0.6, 2: 20.0}  # by drafter: noise on its weights, in their own standard deviations


@dataclass(frozen=True)
class Ask:
    """One request, and what varies around it."""

    prompt: list[int]
    options: dict[str, Any]
    policy: str
    gap_s: float  # after the arrival before it

    def law(self, choice: int) -> Law:
        """Of one answer, as the workers read it: request fields travel as float32."""
        given = {name: _float32(value) for name, value in self.options.items() if name not in ("max_tokens", "n")}
        if "logit_bias" in given:
            given["logit_bias"] = tuple(sorted((token, _float32(by)) for token, by in given["logit_bias"].items()))
        if "stop_token_ids" in given:
            given["stop_token_ids"] = tuple(sorted(given["stop_token_ids"]))
        return Law(**given, rule=Rule.COUPLED, choice=choice, prompt_len=len(self.prompt))


class Mixed(LocalCell):
    """Drafters of several qualities."""

    def __init__(self, pair: Pair, folder: Path, **more: Any) -> None:
        super().__init__(pair.target, pair.drafter, **more)
        self._worse = {
            number: _perturbed(pair.drafter, folder / f"drafter-{number}", by) for number, by in NOISE.items()
        }

    def _begin(self, role: str, index: int, flags: Flags) -> Child:
        if role == "draft" and index in self._worse:
            flags = {**flags, "drafter": str(self._worse[index])}
        return super()._begin(role, index, flags)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coupled_stress", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} requests")
    parser.add_argument("--seed", type=int, default=8, help="of everything that is random here")
    args = parser.parse_args(argv)
    pair = chosen(args)
    asks = requests(pair, QUICK if args.quick else REQUESTS, random.Random(args.seed))
    note(f"{len(asks)} requests, calm, without drafts")
    calm, _ = _run(asks, LocalCell(pair.target, pair.drafter), disturb=False)
    note("the same with drafts, small pools and kills")
    with tempfile.TemporaryDirectory(prefix="dspark-stress-") as folder:
        ports = free_ports(1)
        cell = Mixed(
            pair,
            Path(folder),
            verifiers=2,
            drafters=3,
            verify={"kv_tokens": KV_TOKENS},
            coordinator={"metrics_port": ports[0], "max_handovers": 100},
        )
        hurt, counted = _run(asks, cell, disturb=True, metrics_port=ports[0])
    note("every answer by transformers and the rule alone")
    model = load_target(pair.target).model.eval()
    judged = [
        _compare(model, ask, choice, one, other)
        for ask, a, b in zip(asks, calm, hurt, strict=True)
        if a is not None and b is not None
        for choice, (one, other) in enumerate(zip(a, b, strict=True))
    ]
    lost = sum(a is None or b is None for a, b in zip(calm, hurt, strict=True))
    value = {
        "requests": len(asks),
        "answers": len(judged),
        "tokens": sum(len(one) for a in calm if a is not None for one in a),
        "lost": lost,
        "differing": sum(each.differs for each in judged),
        "differing_behind_a_near_tie": sum(each.differs and each.excused for each in judged),
        "near_ties": sum(each.near_ties for each in judged),
        **counted,
    }
    wrong = value["differing"] - value["differing_behind_a_near_tie"]
    bar = f"no answer lost, no id differs but behind a lead under {NEAR_TIE:g} nats; some preempted, some drafted"
    shown = counted["num_preemptions"] > 0 and counted["spec_decode_num_drafts"] > 0
    return Row("3.8", "seeded answers repeat", value, bar, wrong == 0 and lost == 0 and shown).show(as_json=args.json)


def requests(pair: Pair, count: int, rng: random.Random) -> list[Ask]:
    """Prompts cut to random lengths, random laws; every one with its own seed."""
    whole = [pair.token_ids(prompt) for domain in DOMAINS for prompt in pair.prompts(domain, 12)]
    asks = []
    for _ in range(count):
        ids = rng.choice(whole)
        options: dict[str, Any] = {
            "temperature": rng.choice([0.6, 1.0, 1.4]),
            "top_k": rng.choice([0, 0, 20]),
            "top_p": rng.choice([1.0, 1.0, 0.9]),
            "seed": rng.getrandbits(64),
            "max_tokens": rng.randrange(*LONG_TOKENS) if rng.random() < LONG else rng.randrange(8, 49),
        }
        options |= _extras(ids, rng)
        asks.append(Ask(ids[: rng.randrange(4, 80)], options, rng.choice(POLICIES), rng.expovariate(60.0)))
    return asks


def _extras(ids: Sequence[int], rng: random.Random) -> dict[str, Any]:
    """Fields that a share of the requests have, each by itself; ids they name are likely ones."""
    options: dict[str, Any] = {}
    if rng.random() < 0.2:
        options |= {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    if rng.random() < 0.2:
        options["min_p"] = rng.choice([0.02, 0.1])
    if rng.random() < 0.2:
        options["logit_bias"] = {token: rng.choice([-4.0, -1.5, 1.5]) for token in rng.sample(sorted(set(ids)), 3)}
    if rng.random() < 0.2:
        options |= {"min_tokens": rng.randrange(2, 8), "stop_token_ids": rng.sample(sorted(set(ids)), 2)}
    if rng.random() < 0.15:
        options["n"] = rng.choice([2, 3])
    return options


def _float32(value: Any) -> Any:
    return float(torch.tensor(value)) if isinstance(value, float) else value


Answers = list[list[list[int]] | None]  # by request, by choice


def _run(
    asks: Sequence[Ask], cell: LocalCell, *, disturb: bool, metrics_port: int = 0
) -> tuple[Answers, dict[str, int]]:
    with cell:
        answers = asyncio.run(_serve(asks, cell, disturb=disturb))
        counted = (
            {}
            if not metrics_port
            else {
                name: _counter(metrics_port, name) for name in ("prefills", "num_preemptions", "spec_decode_num_drafts")
            }
        )
        return answers, counted


async def _serve(asks: Sequence[Ask], cell: LocalCell, *, disturb: bool) -> Answers:
    answers: Answers = [None] * len(asks)
    room = asyncio.Semaphore(CONCURRENCY)
    done, finished = 0, asyncio.Event()
    lost: list[str] = []

    async def one(client: AsyncClient, number: int) -> None:
        nonlocal done
        ask = asks[number]
        policy = ask.policy if disturb else "off"
        async with room:
            try:
                answer = await client.complete(ask.prompt, timeout=300, ignore_eos=True, policy=policy, **ask.options)
                answers[number] = [list(choice.token_ids) for choice in answer.choices]
            except DsparkError as error:
                lost.append(f"request {number} was lost: {error}")
                if len(lost) > MOST_LOST:
                    raise SystemExit("\n".join([*lost, "too many are lost; see the coordinator's log"])) from error
            done += 1
            finished.set()

    async def trouble() -> None:
        for share, name in ((0.2, "draft/0"), (0.5, "verify/1"), (0.75, "draft/1")):
            while done < share * len(asks):
                finished.clear()
                await finished.wait()
            cell.kill(name)
            note(f"killed {name} after {done} answers")
            began = time.monotonic()
            await asyncio.to_thread(cell.restart, name)
            note(f"{name} is back after {time.monotonic() - began:.1f} s")

    async with AsyncClient(cell.endpoint) as client:
        troubles = asyncio.create_task(trouble()) if disturb else None
        running = []
        for number, ask in enumerate(asks):
            await asyncio.sleep(ask.gap_s)
            running.append(asyncio.create_task(one(client, number)))
        await asyncio.gather(*running)
        if troubles is not None:
            await troubles
    for line in lost:
        note(line)
    return answers


@dataclass(frozen=True)
class Compared:
    """One answer in both runs, beside what the rule alone says."""

    differs: bool
    excused: bool  # the first difference stands at or behind a near-tie
    near_ties: int


@torch.inference_mode()
def _compare(model: Any, ask: Ask, choice: int, calm: list[int], hurt: list[int]) -> Compared:
    ids = [*ask.prompt, *calm]
    logits = model(torch.tensor([ids])).logits[0, len(ask.prompt) - 1 : -1].float()
    law = ask.law(choice)
    rows = shaped(logits, [(0, calm[:-1], Shaper.of(law, ask.prompt))])
    noise = times([law] * len(calm), range(len(ask.prompt), len(ids)), logits.shape[-1])
    own, leads = winners(distribution(rows, LawColumns.of([law])), noise)
    near = [place for place, lead in enumerate(leads.tolist()) if lead < NEAR_TIE]
    apart = [
        place
        for place, (token, one, other) in enumerate(zip(own.tolist(), calm, hurt, strict=False))
        if not token == one == other
    ]
    if not apart:
        return Compared(calm != hurt, False, len(near))
    return Compared(True, bool(near) and near[0] <= apart[0], len(near))


def _perturbed(drafter: Path, folder: Path, by: float) -> Path:
    """A copy whose weights are off; the context projection stays, as it runs on the verifier."""
    folder.mkdir()
    for file in drafter.iterdir():
        if file.is_file() and file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(drafter / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, weight in weights.items():
        if not name.startswith(("fc.", "hidden_norm.", "confidence_head.")):
            spread = weight.float().std() if weight.numel() > 1 else torch.tensor(0.0)
            noise = torch.randn(weight.shape, generator=generator) * spread * by
            weights[name] = (weight.float() + noise).to(weight.dtype).contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _counter(port: int, name: str) -> int:
    """Sum of a counter of the coordinator over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"dspark_{name}_total[ {{]", line)))


if __name__ == "__main__":
    sys.exit(main())
