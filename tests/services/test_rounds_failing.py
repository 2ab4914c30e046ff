"""What goes wrong around rounds: drafters that hang, lie or are somebody else, passes that fail,
bugs beside them. Answers are the target's in the end, and nothing stays behind."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspark.rounds.control import DrafterAt, DrafterUse
from dspark.rounds.events import GoneReason
from dspark.rounds.plan import PlanKind, SequencePlan
from dspark.types import Cursor, RefusalReason, Rule, SamplingParams
from dspark.wire.orders import read_order
from dspark.wire.v1 import draft_pb2
from tests.conductor import Answer, Conductor, conducting, planned
from tests.services.cell import Cell
from tests.services.fake_drafter import LIES, FakeDrafter, Said, sound
from tests.synthetic_file import said, synthetic_file
from tests.waiting import until
from verify_service import drafter_stream, drafters, round_passes
from verify_service.prompts import Prompts
from verify_service.round_driver import RoundDriver
from verify_service.round_passes import RoundPasses
from verify_service.running_step import RunningStep
from verify_service.sequences import CachedSequence
from verify_service.synthetic import SyntheticVerifyEngine

VOCAB, BLOCK = 500, 4
COUPLED = SamplingParams(temperature=1.0, seed=3, rule=Rule.COUPLED)
SAMPLED = SamplingParams(temperature=1.0, seed=4, rule=Rule.TOKEN)
PLAN = planned(PlanKind.FIXED, BLOCK, window=2)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    times = {"verify_ms": 0.5, "draft_ms": 0.2}
    pair = synthetic_file(tmp_path, [0.8] * BLOCK, vocabulary=VOCAB, **times)
    async with Cell(pair=pair, shared={"measure_cost": False}) as made:
        yield made


@pytest.fixture
async def conductor(v: Any) -> AsyncIterator[Conductor]:
    async with conducting(v, PLAN) as made:
        yield made


def truth(conductor: Conductor, answer: Answer) -> list[int]:
    first, start = int(answer.prompt[0]), len(answer.prompt)
    return said(conductor.verifier.engine.spec, first, answer.params, start, answer.room)


async def answered(conductor: Conductor, answers: Sequence[Answer]) -> None:
    """All of them, with the target's tokens, and nothing is held any more."""
    for answer in answers:
        assert (await conductor.tokens(answer))[0] == truth(conductor, answer)
    await until(lambda: conductor.verifier.engine.held.sequences == 0)


LONG = 12_000  # tokens: until the test has seen enough


def some(conductor: Conductor, count: int, *, apart: bool = False) -> list[Answer]:
    """Long ones, drafted for by drafter 1, or apart by one each."""
    return [
        conductor.ask([5 + place, 6], SAMPLED, LONG, drafter=1 + apart * place)
        for place in range(count)
    ]


async def so_far(
    conductor: Conductor, answers: Sequence[Answer], enough: Callable[[], bool]
) -> None:
    """The target's tokens until then, after which their clients leave."""
    await until(lambda: enough() and all(answer.tokens for answer in answers))
    conductor.leave(*answers)
    for answer in answers:
        assert answer.tokens == truth(conductor, answer)[: len(answer.tokens)]
    await until(lambda: conductor.verifier.engine.held.sequences == 0)


def verified(answer: Answer) -> bool:
    return any(each.verified for each in answer.rounds)


def drivers_of(process: Any) -> list[RoundDriver]:
    """Those of its streams."""
    every = (each for each in gc.get_objects() if type(each) is RoundDriver)
    return [each for each in every if each._engine is process.engine]


# Drafters.


async def test_an_order_brings_the_mask_of_each_sequence(
    conductor: Conductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: set[tuple[int, bytes]] = set()

    def reply(order: draft_pb2.Order) -> list[Said] | None:
        read = read_order(order)
        heard.update(zip(read.sequences, read.masks, strict=True))
        return [sound(order)]

    with FakeDrafter(reply) as fake:
        monkeypatch.setattr(
            CachedSequence, "first_mask", property(lambda state: b"mask" * (state.sequence % 3))
        )
        conductor.know(1, fake)
        asked = some(conductor, 4)
        await so_far(conductor, asked, lambda: len({sequence for sequence, _ in heard}) == 4)
    assert heard == {(sequence, b"mask" * (sequence % 3)) for sequence, _ in heard}


@pytest.mark.parametrize("lie", LIES)
async def test_whatever_a_drafter_says_answers_are_the_targets(
    conductor: Conductor, lie: str
) -> None:
    with FakeDrafter(LIES[lie]) as liar:
        conductor.know(1, liar)
        asked = [
            conductor.ask([5 + place, 6], params, LONG, drafter=1)
            for place, params in enumerate((SAMPLED, SAMPLED, COUPLED))
        ]

        def enough() -> bool:
            """Blocks are judged, or their drafter is given up: those that come too late for a round
            show nothing."""
            given_up = lie != "twice" and any(
                event.what.startswith(("lost", "malformed")) for event in conductor.health
            )
            unheard = lie == "watermarks ahead" and liar.orders > 2
            return given_up or unheard or any(map(verified, asked))

        await so_far(conductor, asked, enough)
        assert (verified(asked[0]) or verified(asked[1])) is (lie in ("honest", "twice"))
        assert not verified(asked[2]) or lie == "no distributions", "a coupled sequence takes none"
        assert not any(answer.refused or answer.moves for answer in asked)


async def test_a_drafter_that_never_greets_and_one_that_never_answers(
    conductor: Conductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafters, "GREETING_S", 0.3)
    with FakeDrafter(lambda order: []) as mute, FakeDrafter(lambda order: []) as slow:
        mute.greets = False
        conductor.know(1, mute)
        conductor.know(2, slow)
        asked = some(conductor, 2, apart=True)
        await so_far(
            conductor, asked, lambda: {event.drafter for event in conductor.health} == {1, 2}
        )
        what = {event.drafter: event.what for event in conductor.health}
        assert what[1].startswith("lost")
        assert what[2] == "late"
        assert slow.orders == 1, "whoever owes a reply is asked nothing more"


async def test_another_process_at_a_drafters_address_is_not_that_drafter(
    cell: Cell, conductor: Conductor
) -> None:
    d = await cell.drafter()
    conductor.port.tell(
        [DrafterAt(1, d.endpoint, d.incarnation + 1), DrafterAt(2, "unix:/etc/passwd", 5)]
    )
    asked = some(conductor, 2, apart=True)
    await so_far(conductor, asked, lambda: {event.drafter for event in conductor.health} == {1, 2})
    assert not any(map(verified, asked))
    assert {event.what for event in conductor.health if event.drafter == 2} == {
        "lost: cannot be asked now"
    }


async def test_a_drafter_without_room_says_so_and_others_are_drafted_for(
    cell: Cell, conductor: Conductor
) -> None:
    conductor.know(1, await cell.drafter(max_sequences=1))
    asked = some(conductor, 2)
    full = lambda: "full" in {event.what for event in conductor.health}  # noqa: E731
    await so_far(conductor, asked, lambda: full() and any(map(verified, asked)))
    assert not all(map(verified, asked))


async def test_a_drafter_that_is_gone_is_let_go_and_one_that_leaves_opens_nobody(
    cell: Cell, conductor: Conductor
) -> None:
    d = await cell.drafter()
    conductor.know(1, d)
    asked = some(conductor, 2)
    await until(lambda: all(map(verified, asked)))
    conductor.port.tell([DrafterAt(1, d.endpoint, d.incarnation, DrafterUse.GONE)])
    await until(lambda: d.engine.held.sequences == 0)
    await so_far(
        conductor,
        asked,
        lambda: any(event.what == "lost: gone" for event in conductor.health),
    )


@pytest.mark.parametrize("broken", ["sync_channel", "auth_metadata"])
async def test_a_stream_that_cannot_be_begun_is_a_lost_drafter_and_begun_later(
    cell: Cell, conductor: Conductor, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, left = getattr(drafter_stream, broken), [1]

    def planted(*args: Any, **more: Any) -> Any:
        if left and left.pop():
            raise OSError("planted")
        return inner(*args, **more)

    monkeypatch.setattr(drafter_stream, broken, planted)
    conductor.know(1, await cell.drafter())
    first = conductor.ask([5, 6], SAMPLED, 60, drafter=1)
    await answered(conductor, [first])
    assert (left, conductor.why_lost) == ([], None)
    await asyncio.sleep(drafters.PAUSE_S)
    second = conductor.ask([5, 6], SAMPLED, LONG, drafter=1)
    await so_far(conductor, [second], lambda: verified(second))


async def test_what_is_told_and_taken_back_in_one_message_harms_nobody(
    cell: Cell, v: Any, conductor: Conductor
) -> None:
    plan = planned(PlanKind.FIXED, BLOCK, window=0)
    conductor.set(plan)
    conductor.know(1, await cell.drafter())
    conductor.holds_back = True
    held = conductor.ask([5, 6], SAMPLED, 40)
    await until(lambda: held.tokens)
    conductor.set(replace(plan, sequences={held.number: SequencePlan(drafter=1)}))
    conductor.leave(held, conductor.ask([6, 6], SAMPLED, 40))
    conductor.holds_back = False
    await answered(conductor, [conductor.ask([7, 6], SAMPLED, 40, drafter=1)])
    assert conductor.why_lost is None
    assert [each._admitted for each in drivers_of(v)] == [{}], "no prompt is kept"
    conductor.leave(held)
    await until(lambda: not v.engine.held.sequences, within_s=10.0)


# The verifier.


@pytest.mark.parametrize("when", ["its row is read", "prepared"])
async def test_a_pass_that_fails_takes_only_those_with_it_that_fail_alone(
    cell: Cell, v: Any, conductor: Conductor, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is computed, too: see `test_scarce_memory`."""
    where, name = (v.engine._step, "inputs") if when == "prepared" else (round_passes, "VerifyItem")
    inner = getattr(where, name)

    def planted(first: Any, *more: Any) -> Any:
        """first: the cursor of a row, or its item."""
        cursor = first if isinstance(first, Cursor) else first.cursor
        if cursor.sequence == 2 and cursor.round > 4:
            raise RuntimeError("planted")
        return inner(first, *more)

    monkeypatch.setattr(where, name, planted)
    conductor.begin_again = False
    conductor.know(1, await cell.drafter())
    asked = [conductor.ask([5 + place, 6], COUPLED, 40, drafter=1) for place in range(3)]
    await conductor.tokens(asked[1])
    assert [each.why for each in conductor.released if each.sequence == 2] == [GoneReason.FAILED]
    assert asked[1].tokens == truth(conductor, asked[1])[: len(asked[1].tokens)]
    await answered(conductor, [asked[0], asked[2]])


@pytest.mark.parametrize("method", ["open", "first_token"])
async def test_a_bug_at_one_prompt_refuses_that_one(
    v: Any, conductor: Conductor, method: str
) -> None:
    inner = getattr(v.engine, method)

    def planted(first: Any, *args: Any, **more: Any) -> Any:
        if 2 in (first, getattr(first, "sequence", 0)):
            raise RuntimeError("planted")
        return inner(first, *args, **more)

    setattr(v.engine, method, planted)
    asked = [conductor.ask([5 + place, 6], SAMPLED, 40) for place in range(3)]
    await conductor.tokens(asked[1])
    assert [each.reason for each in asked[1].refused] == [RefusalReason.INTERNAL]
    await answered(conductor, [asked[0], asked[2]])


BUGS: dict[str, tuple[type, str]] = {
    "a pass was judged": (RoundPasses, "_note"),
    "beside a pass": (RunningStep, "run"),
    "behind a pass": (RoundDriver, "_take"),
    "a prompt is begun": (SyntheticVerifyEngine, "begin_prefill"),
    "a prompt was run": (Prompts, "_begin_answer"),
    "a stream of a drafter ends": (drafters.Drafters, "end"),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_a_bug_beside_a_pass_ends_the_stream_and_frees_everything(
    v: Any, conductor: Conductor, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    inner = RoundDriver._after

    def after(*args: Any) -> None:
        monkeypatch.setattr(*BUGS[bug], planted)  # whatever else came with it
        inner(*args)

    if bug == "behind a pass":
        monkeypatch.setattr(RoundDriver, "_after", after)
    else:
        monkeypatch.setattr(*BUGS[bug], planted)
    answer = conductor.ask([5, 6], SAMPLED, LONG)
    if bug == "a stream of a drafter ends":
        await until(lambda: answer.tokens)
        conductor.port.close("the test is over")
    await until(lambda: conductor.why_lost is not None)
    await until(lambda: v.engine.held.sequences == v.engine.held.pages_held == 0)
    monkeypatch.undo()
    async with conducting(v, PLAN) as later:  # its numbers are free
        again = [later.ask([5, 6], SAMPLED, 20) for _ in range(2)]
        await answered(later, again)


@pytest.mark.parametrize(
    "v", [{"prefill_chunk": 64, "step_prefill_tokens": 16}], indirect=True, ids=["small chunks"]
)
async def test_a_prompt_runs_without_pauses_while_nothing_decodes(
    v: Any, conductor: Conductor
) -> None:
    await answered(conductor, [conductor.ask([5] * 400, SAMPLED, 1)])
    assert v.metrics.value("forward_seconds_count", kind="prefill") == 7, "not 25 small ones"


async def test_a_verifier_that_leaves_says_so_and_takes_nobody(
    v: Any, conductor: Conductor
) -> None:
    conductor.set(planned(PlanKind.OFF, 0, window=2))
    first = conductor.ask([5, 6], SAMPLED, 300)
    await until(lambda: first.tokens)
    v.draining.begin(30.0)
    await until(lambda: conductor.draining)
    assert 25.0 < conductor.draining[0].finish_within_s <= 30.0
    second = conductor.ask([5, 6], SAMPLED, 300)
    await conductor.tokens(second)
    assert [each.reason for each in second.refused] == [RefusalReason.NO_PAGES]
    await answered(conductor, [first])


async def test_prompts_that_cannot_be_taken_are_refused_by_field(conductor: Conductor) -> None:
    for field, answer in (
        ("token_ids", conductor.ask([VOCAB + 1, 6], SAMPLED, 10)),
        ("sampling.temperature", conductor.ask([5, 6], SamplingParams(temperature=-1.0), 10)),
        ("sampling.prompt_logprobs", conductor.ask([5, 6], SAMPLED, 10, prompt_logprobs=3)),
        ("longest", conductor.ask([5, 6], SAMPLED, 1 << 21)),
    ):
        await conductor.tokens(answer)
        assert [each.message.split(":")[0] for each in answer.refused] == [field]
    await answered(conductor, [conductor.ask([5, 6], SAMPLED, 10)])
