"""Short stories, one a promise: each hurts a cell of the real tiny pair in simulated time and tells
what was not kept.

Rows run them many times and larger; `make broken` runs each against builds that break its
promise. A story is drawn from a seed and made of requests under all laws: greedy, `coupled`, and
the ratio rules.
"""

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from coordinator.lanes.request_state import LifeEvent
from dspark.client import AsyncClient
from dspark.client.request import write_request
from dspark.wire.v1 import generate_pb2_grpc
from tests.faults import pair
from tests.faults.plan import Action, Plan, once
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream
from tests.keys import key_files

T = TypeVar("T")
TOKENS = 28
POLICIES = ("fixed:4", "adaptive", "fixed:2", "threshold:0.5")
PATIENT = {"max_handovers": 1000, "flap_limit": 0}


def drawn(
    story: Callable[[SimulatedCell, random.Random], Awaitable[T]],
    name: str,
    seed: int,
    **settings: Any,
) -> T:
    """What a story tells that draws from a seed of this name."""
    draw = random.Random(f"{name}/{seed}")
    return simulate(lambda cell: story(cell, draw), seed=seed, **settings)


def judged(cell: SimulatedCell, answers: Sequence[Stream]) -> list[str]:
    """What is wrong with answers that should all have ended in good order, with what lies behind
    them, and with what is still held now."""
    tape = cell.tape
    assert tape is not None
    found = [f"failed: {answer.error}" for answer in answers if answer.error is not None]
    found += filter(None, (tape.problem(answer.prompt, answer.ids) for answer in answers))
    found += tape.problems
    found += filter(
        None, [tape.rows_problem([[*answer.prompt, *answer.ids] for answer in answers])]
    )
    return found


async def freed(cell: SimulatedCell) -> list[str]:
    try:
        await cell.until(lambda: not cell.left_over(), within_s=20.0)
    except AssertionError:
        return [f"held for nobody: {cell.left_over()}"]
    return []


def asking(
    cell: SimulatedCell,
    draw: random.Random,
    count: int = 8,
    *,
    prompts: tuple[int, ...] = (9, 17, 30),
    laws: Sequence[dict[str, Any]] = pair.ALL_PARAMS,
    into: Sequence[Stream] = (),
    **more: Any,
) -> list[asyncio.Task[Stream]]:
    """By turns under each law. prompts: lengths in tokens; into: answers that grow meanwhile."""
    first = draw.randrange(32)
    return [
        asyncio.create_task(
            cell.ask(
                pair.prompt(first + number, draw.choice(prompts)),
                into=into[number] if into else None,
                **{
                    "max_tokens": TOKENS,
                    "policy": POLICIES[number // 4 % 4],
                    **laws[number % len(laws)],
                    **more,
                },
            )
        )
        for number in range(count)
    ]


async def killed(
    cell: SimulatedCell, draw: random.Random, count: int = 8, **more: Any
) -> tuple[list[Stream], list[str]]:
    """Answers of which the verifier that holds most dies, and what is wrong with them."""
    asked = asking(cell, draw, count, **more)
    await cell.after(draw.uniform(0.001, 0.14))
    cell.kill(lost := cell.holder())
    await cell.after(draw.choice([0.0, 0.01, 0.2]))
    await cell.restart(lost)
    answers = await asyncio.gather(*asked)
    await cell.connected()
    return answers, judged(cell, answers) + await freed(cell)


async def _kill(cell: SimulatedCell, draw: random.Random) -> list[str]:
    return (await killed(cell, draw))[1]


async def _preempt(cell: SimulatedCell, draw: random.Random) -> list[str]:
    asked = asking(cell, draw)
    for _ in range(5):
        await cell.after(draw.uniform(0.01, 0.05))
        take_out_youngest(cell)
    return judged(cell, await asyncio.gather(*asked)) + await freed(cell)


def take_out_youngest(cell: SimulatedCell) -> None:
    """Of each lane, as where pages run out: it is settled, and begins again."""
    for lane in cell.processes["coordinator/0"].cell.membership.lanes:
        placed = max(
            (each for each in lane._members if each.admitted),
            key=lambda each: each.number,
            default=None,
        )
        if placed is not None and placed.leaving is None:
            lane._settle(placed, LifeEvent.PREEMPTED)


async def _drafters_gone(cell: SimulatedCell, draw: random.Random) -> list[str]:
    """Two drafters die one after the other and come back: rows are sent again, drafts return."""
    # More rows than an order carries: they are sent again in pieces.
    asked = asking(cell, draw, prompts=(90, 130), max_tokens=60, policy="fixed:4")
    await cell.after(0.06)
    cell.kill("draft/0")
    await cell.after(draw.uniform(0.01, 0.04))
    cell.kill("draft/1")
    await cell.after(0.3)  # until rounds that were drafted are reported
    before = cell.metric("spec_decode_num_drafts_total")
    prefills = cell.metric("prefills_total")
    await cell.restart("draft/0")
    answers = await asyncio.gather(*asked)
    found = judged(cell, answers)
    if cell.metric("prefills_total") > prefills:
        found.append("a lost drafter cost a prefill")
    if cell.metric("spec_decode_num_drafts_total") <= before:
        found.append("drafts do not come back")
    if cell.metric("worker_losses_total", pool="draft") != 2:
        found.append("not every lost drafter is counted")
    return found + await freed(cell)


async def _leave(cell: SimulatedCell, draw: random.Random) -> list[str]:
    asked = asking(cell, draw, max_tokens=200)
    for task in asked:
        await cell.after(draw.uniform(0.0, 0.02))
        task.cancel()
    await asyncio.wait(asked)
    return await freed(cell)


async def _prefixes(cell: SimulatedCell, draw: random.Random) -> list[str]:
    """Turns that end at the edge of a page, and pages that are shared behind different ones."""
    page, answers = 16, []
    first = draw.randrange(32)
    for number, count in enumerate((page - 1, page, page + 1)):
        asked = pair.prompt(first + number, 2 * page)
        answers.append(await cell.ask(asked, max_tokens=count))
        answers.append(await cell.ask([*asked, *answers[-1].ids, 9, 5, 9], max_tokens=8))
    a, b, x, y = (pair.prompt(first + 7 + number, page) for number in range(4))
    for asked in ([*b, *y, 5], [*a, *x, 5], [*b, *x, 5]):
        answers.append(await cell.ask(asked, max_tokens=8))
    found = judged(cell, answers)
    spared = sum(answer.end.usage.cached_tokens for answer in answers if answer.end is not None)
    if not spared:
        found.append("no page was found again")
    looked_up = sum(len(answer.prompt) for answer in answers)
    for name, count in (("hits", spared), ("queries", looked_up)):
        if cell.metric(f"prefix_cache_{name}_total", "verify/0") != count:
            found.append(f"{name} of the prefix cache are not the {count} that were told")
    return found + await freed(cell)


async def _rules(cell: SimulatedCell, draw: random.Random) -> list[str]:
    laws = (pair.BLOCK, pair.TOKEN)
    asked = asking(cell, draw, prompts=(20,), laws=laws, max_tokens=48, policy="fixed:5")
    return judged(cell, await asyncio.gather(*asked))


async def _tenants(cell: SimulatedCell, draw: random.Random) -> list[str]:
    """The second tenant says what the first one said, under names that spell the first one's."""
    asked, found = pair.prompt(draw.randrange(32), 40), list[str]()

    async def spared(tenant: str, salt: str) -> int:
        answer = await cell.ask(asked, max_tokens=8, token=token(tenant), cache_salt=salt)
        return answer.end.usage.cached_tokens if answer.end is not None else -1

    await spared("ann", "mine")
    for salt in ("mine", "ann/mine", "/ann/mine", ""):
        if tokens := await spared("bob", salt):
            found.append(f"{salt!r}: {tokens} tokens of another tenant's prompt were found")
    if await spared("ann", "mine") <= 0:
        found.append("one's own prompt was not found")
    ann, bob = (AsyncClient(cell.endpoint, token=token(tenant)) for tenant in ("ann", "bob"))
    async with ann, bob, ann.generate(asked, max_tokens=64, ignore_eos=True) as stream:
        await anext(stream)
        name = stream.request_id
        if await bob.abort([name, f"ann/{name}"]):
            found.append("another tenant's answer was ended")
        if await ann.abort([name]) != (name,):
            found.append("one's own answer was not ended")
    return found


def token(tenant: str) -> str:
    return f"token-of-tenant-{tenant}"


class Journal:
    """The coordinator dies and starts again from what its journal held at that moment."""

    def __init__(self, folder: Path, *, at_first: bool = False) -> None:
        self._folder, self._at_first = folder, at_first
        self._lives = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {"coordinator": {"journal": str(self._journal), **PATIENT}}

    @property
    def _journal(self) -> Path:
        return self._folder / f"life-{self._lives}"

    async def kill(self, cell: SimulatedCell) -> None:
        before = self._journal
        self._lives += 1
        shutil.copytree(before, self._journal)  # what was with the operating system
        cell.kill("coordinator/0")
        cell.give("coordinator", journal=str(self._journal))
        await cell.after(0.05)
        await cell.restart("coordinator/0")

    async def story(self, cell: SimulatedCell, draw: random.Random) -> list[str]:
        """Ratio rules, and `coupled` without a client's seed: nothing can be computed again."""
        first, answers = draw.randrange(32), list[Stream]()
        asked, options = [], list[dict[str, Any]]()
        for number in range(1 if self._at_first else 6):
            answers.append(Stream())
            law = {"request_id": f"mine-{number}", **pair.ALL_PARAMS[3 - number % 3]}
            options.append({"max_tokens": TOKENS, "policy": "fixed:3", "ignore_eos": True, **law})
            ids = pair.prompt(first + number, 20)
            work = cell.ask(ids, into=answers[-1], resume_s=60.0, **options[-1])
            asked.append(asyncio.create_task(work))
        if self._at_first:
            await cell.until(lambda: bool(answers[0].ids), each_s=0.0001)
        else:
            await cell.after(draw.uniform(0.04, 0.12))
        shown = [list(answer.ids) for answer in answers]
        await self.kill(cell)
        await asyncio.gather(*asked)
        found = judged(cell, answers)
        for answer, before in zip(answers, shown, strict=True):
            if answer.ids[: len(before)] != before:
                found.append("what was shown has changed")
        for answer, its in zip(answers, options, strict=True):
            # who asks for all of it again is told the same
            if await _told_again(cell, answer.prompt, its) != answer.ids:
                found.append("told again it is another answer")
        return found + await freed(cell)


async def _told_again(
    cell: SimulatedCell, prompt: Sequence[int], options: dict[str, Any]
) -> list[int]:
    request = write_request(prompt, options)
    request.resume.offsets.append(0)
    stub = generate_pb2_grpc.GenerationStub(grpc.aio.insecure_channel(cell.endpoint))
    try:
        return [
            token
            async for event in stub.Generate(request, timeout=60.0)
            for token in event.chunk.token_ids
        ]
    except grpc.aio.AioRpcError:
        return []


async def _batches(cell: SimulatedCell, draw: random.Random) -> list[str]:
    """Through a front end of its own, one batch of commits comes twice."""
    answer = await cell.ask(
        pair.prompt(draw.randrange(32), 12), max_tokens=30, at="frontend/0", timeout=20.0
    )
    return judged(cell, [answer])


def lied_to(seed: int, lie: str = "random ids") -> list[str]:
    """Under rules that no draft can hurt, ids that are changed on their way change nothing."""
    from tests.faults.rows.r11_lying_drafter import LIES, Lying

    async def story(cell: SimulatedCell) -> list[str]:
        laws = pair.GREEDY, pair.COUPLED
        draw = random.Random(seed)
        asked = asking(cell, draw, 6, prompts=(20,), laws=laws, policy="fixed:4", max_tokens=40)
        return judged(cell, await asyncio.gather(*asked))

    return simulate(story, plan=Lying(LIES[lie]), seed=seed)


def gone_bad(seed: int) -> list[str]:
    """Whatever becomes of drafts, answers stay what they were, and the watchdog tells soon."""
    from tests.faults.rows.r35_watchdog import FAULTS, ROUNDS, ids

    found = []
    for name in FAULTS:
        passes, wrong = ids(name, seed)
        found += [f"{name}: {each}" for each in wrong]
        if passes > ROUNDS:
            found.append(f"{name}: no alarm within {ROUNDS} passes")
    return found


def _journal(seed: int, *, at_first: bool = False) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="dspark-journal-") as folder:
        journal = Journal(Path(folder), at_first=at_first)
        return drawn(journal.story, "journal", seed, **journal.settings)


@contextlib.contextmanager
def knowing(*tenants: str) -> Iterator[dict[str, Any]]:
    """Settings of a simulated cell that knows these tenants, by their `token`."""
    with tempfile.TemporaryDirectory(prefix="dspark-tenants-") as folder:
        yield key_files(Path(folder), {tenant: token(tenant) for tenant in tenants})


def _of_tenants(seed: int) -> list[str]:
    with knowing("ann", "bob") as settings:
        found = drawn(_tenants, "tenants", seed, **settings)
        settings["verify"] = {**settings["verify"], "attention": "stateful"}
        return found + drawn(_tenants, "tenants", seed, **settings)


def _twice(seed: int) -> list[str]:
    plan = Plan(once("CellBatch", Action.TWICE, at=3 + seed % 3))
    return drawn(_batches, "batches", seed, frontends=1, plan=plan)


PROMISES: dict[str, Callable[[int], list[str]]] = {
    "kill": partial(drawn, _kill, "kill", verifiers=2, drafters=2, coordinator=PATIENT),
    "preempt": partial(drawn, _preempt, "preempt", coordinator=PATIENT),
    "drafters gone": partial(
        drawn, _drafters_gone, "gone", drafters=2, seconds={"judge_cohort": 0.05}
    ),
    "leave": partial(drawn, _leave, "leave"),
    "prefixes": partial(drawn, _prefixes, "prefixes"),
    "rules": partial(drawn, _rules, "rules"),
    "tenants": _of_tenants,
    "journal": _journal,
    "first token": partial(_journal, at_first=True),
    "batches": _twice,
    "lying drafter": lied_to,
    "bad drafter": gone_bad,
}
