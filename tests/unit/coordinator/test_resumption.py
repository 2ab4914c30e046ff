"""A client that lost its stream gets the rest of its answers, each token once, whoever was lost
between them."""

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.answers.output_queue import OutputQueue
from coordinator.cells.cell import SubmitRequest
from coordinator.cells.journal import Journal
from coordinator.cells.local_cell import LocalCell, LocalHandle
from coordinator.reception.output_processor import OutputProcessor
from coordinator.requests.request import Request
from dspark.errors import InvalidRequest, Overloaded, RequestCancelled, Unavailable
from dspark.rounds.control import Admission
from dspark.rounds.events import RoundReport
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule, SamplingParams, ScoredToken
from dspark.wire.v1 import generate_pb2
from tests.fakes import answer_of
from tests.rounds_cell import RoundsCell
from tests.unit.coordinator.test_journal import on_disk

PROMPT, TOKENS = (5, 6), 40
EXPECTED = answer_of(PROMPT, TOKENS)
GREEDY, ADAPTIVE = SamplingParams(temperature=0.0), parse_policy("adaptive")
# the toy target says the same under any law
SAMPLED = SamplingParams(temperature=0.8, seed=99, rule=Rule.BLOCK)


class Desk:
    """A client, a front desk and the coordinator's way in, before a toy cell."""

    reader: OutputProcessor
    sink: OutputQueue

    def __init__(
        self,
        journal: Journal | None,
        toy: RoundsCell | None = None,
        shown: Iterable[list[int]] = (),
    ) -> None:
        """shown: what the client holds of each answer."""
        self.toy = toy or RoundsCell()
        self.cell = LocalCell(self.toy.admission, None, None, journal=journal)
        self.shown = dict(enumerate(shown))
        self.logprobs: list[ScoredToken] = []

    def ask(
        self,
        *,
        params: SamplingParams | None = None,
        offsets: tuple[int, ...] | None = None,
        choices: int = 1,
        seeded: bool = False,
        rule: Rule | None = None,
    ) -> LocalHandle:
        message = generate_pb2.GenerateRequest(request_id="r")
        if seeded:
            message.sampling_params.seed = 3
        if rule is not None:
            message.speculation.rule = rule
        if offsets is not None:
            message.resume.offsets.extend(offsets)
        request = Request("r", PROMPT, params or SAMPLED, TOKENS, ADAPTIVE, choices=choices)
        sink = OutputQueue(64 * choices)
        call = self.cell.submit(SubmitRequest(message, request, 0.0, 60.0), sink)
        self.reader, self.sink = OutputProcessor(request, None, 0.0, offsets or ()), sink
        return call

    def resume(self, **asked: Any) -> LocalHandle:
        """From what the client holds on."""
        return self.ask(offsets=tuple(map(len, self.shown.values())), **asked)

    async def read(self, *, at_least: int = 0) -> None:
        """Until the end, or until so many tokens of the first answer are held."""
        while not self.reader.done and not (at_least and len(self.shown.get(0, [])) >= at_least):
            waiting = await self.sink.take()
            for shown in self.reader.read(waiting):
                held = self.shown.setdefault(shown.index, [])
                assert shown.offset == len(held), "neither twice nor skipped"
                held += shown.tokens
                self.logprobs += shown.logprobs


async def lost(
    journal: Journal, at_least: int, toy: RoundsCell | None = None, **asked: Any
) -> Desk:
    """One whose process was killed once its client held so many tokens: nothing of it goes on."""
    desk = Desk(journal, toy)
    desk.ask(**asked)
    await desk.read(at_least=at_least)
    desk.toy.lose_verifier()
    return desk


async def to_the_end(sink: OutputQueue) -> None:
    while await sink.take() is not None:
        continue


def in_memory() -> Journal:
    return Journal(None, keep_s=60.0, metrics=Metrics())


@pytest.mark.parametrize("held", [1, 2, 11, 39])
async def test_the_rest_comes_after_the_coordinator_was_lost(held: int) -> None:
    journal = in_memory()  # what the next process reads
    first = await lost(journal, held)
    epoch = journal.find("r").answers[0].epoch
    # the last words may have got lost on their way
    second = Desk(journal, shown=[first.shown[0][:held]])
    call = second.resume()
    assert all(state.sequence.epoch > epoch for state in call.states.values()), "no draw used twice"
    assert all(state.begun for state in call.states.values()), "nobody displaces half an answer"
    assert all(state.answer.since_resumed == 0 for state in call.states.values())
    await second.read()
    assert second.shown[0] == EXPECTED
    assert second.reader.answers[0].answered == TOKENS
    assert second.toy.metrics.value("prefills_total", reason="new") == 0
    await asyncio.sleep(0.1)
    assert second.toy.clean()


@pytest.mark.parametrize("back", [True, False])
async def test_the_rest_is_drawn_by_the_target_that_began_it(back: bool) -> None:
    journal = in_memory()
    first = await lost(journal, 9)
    second = Desk(journal, RoundsCell(verifiers=0), [first.shown[0]])
    second.toy.add_verifier(fingerprint="another target")
    second.resume()
    await second.toy.answered(second.toy.ask())
    assert len(journal.find("r").answers[0].tokens) < TOKENS
    if back:
        second.toy.lose_verifier()
        second.toy.add_verifier()
        await second.read()
        assert second.shown[0] == EXPECTED
    else:
        with pytest.raises(Unavailable, match="no verifier came within 20 s; the answer stands at"):
            await second.read()


async def test_what_a_client_was_shown_is_on_disk(tmp_path: Path) -> None:
    """After every token, with nothing going on that could have written it since."""
    journal = on_disk(tmp_path / "written", sync="interval")
    desk = Desk(journal, RoundsCell(write=journal.write, drafters=0, window=0))
    desk.ask()
    while not desk.reader.done:
        await desk.read(at_least=len(desk.shown.get(0, [])) + 1)
        there = tmp_path / str(len(desk.shown[0]))
        shutil.copytree(tmp_path / "written", there)
        after = on_disk(there)
        known = after.find("r")
        assert known.answers[0].tokens == desk.shown[0]
        after.close()
    assert desk.shown[0] == EXPECTED
    journal.close()


async def test_it_goes_on_under_the_seed_it_began_with_and_a_higher_epoch_every_time() -> None:
    """A front end draws a seed for every message that brings none; draws of the first must go on,
    and never repeat."""
    journal, epochs, shown = in_memory(), [], list[int]()
    for seed, held in ((99, 3), (5, 9), (7, 15)):
        desk = Desk(journal, shown=[shown])
        params = replace(SAMPLED, seed=seed)
        call = desk.resume(params=params) if shown else desk.ask(params=params)
        assert {state.request.params.seed for state in call.states.values()} == {99}
        epochs.append(call.states[0].sequence.epoch)
        await desk.read(at_least=held)
        shown = desk.shown[0]
        desk.toy.lose_verifier()
    assert epochs == sorted(set(epochs))


async def test_answers_of_one_request_have_their_own_noise_and_resume_in_own_epochs() -> None:
    journal = in_memory()
    first = Desk(journal)
    call = first.ask(choices=2)
    assert [call.states[index].request.params.choice for index in range(2)] == [0, 1]
    await first.read(at_least=3)
    entry = journal.find("r")
    entry.answers[1].epoch = 4  # the second one has been handed over more often
    first.toy.lose_verifier()
    held = [list(said.tokens) for said in entry.answers]
    second = Desk(journal, shown=held)
    call = second.resume(choices=2)
    assert [call.states[index].sequence.epoch for index in range(2)] == [1, 5]
    await second.read(at_least=len(held[0]) + 3)
    assert [said.epoch for said in entry.answers] == [1, 5]


async def test_log_probabilities_are_told_again_with_their_tokens() -> None:
    told, params = [ScoredToken(-float(token)) for token in EXPECTED], replace(SAMPLED, logprobs=0)

    def toy() -> RoundsCell:
        """Its verifier scores tokens so."""
        made = RoundsCell()
        made.port.in_reports(lambda each: [each._replace(logprobs=scored(each.report.rounds))])
        return made

    def scored(rows: Sequence[RoundReport]) -> list[list[ScoredToken]]:
        return [[ScoredToken(-float(token)) for token in row.tokens] for row in rows]

    journal = in_memory()
    await lost(journal, 9, toy(), params=params)
    for held in (2, 5, 9):
        second = Desk(journal, toy(), [EXPECTED[:held]])
        second.resume(params=params)
        await second.read()
        assert second.shown[0] == EXPECTED
        assert second.logprobs == told[held:]


async def test_an_answer_that_ended_unseen_is_told_without_any_work() -> None:
    journal = in_memory()
    await lost(journal, TOKENS)
    known = journal.find("r")
    second = Desk(journal, shown=[[*EXPECTED]])
    second.cell.draining = True  # there is nothing to do for it
    call = second.resume()
    await second.read()
    assert not call.states
    assert journal.find("r") is known, "told, and not written again"
    assert not second.toy.port.orders(Admission)
    assert second.reader.answers[0].end.reason.value == "length"


async def test_of_several_answers_only_those_that_lack_something_go_on() -> None:
    journal = in_memory()
    first = Desk(journal, shown=[[], [], []])
    call = first.ask(choices=3)
    await first.read(at_least=5)
    call.finish(1)  # its text ended it
    await asyncio.sleep(0.001)
    second = Desk(journal, shown=first.shown.values())
    call = second.resume(choices=3)
    assert sorted(call.states) == [0, 2]
    assert all(state.begun for state in call.states.values()), "an error of one ends them all"
    await second.read()
    assert second.shown[0] == second.shown[2] == EXPECTED
    assert second.shown[1] == EXPECTED[: len(second.shown[1])]


async def test_a_running_request_is_taken_over_and_its_former_stream_told_so() -> None:
    desk = Desk(in_memory())
    desk.ask()
    await desk.read(at_least=5)
    former = desk.sink
    desk.resume()
    with pytest.raises(RequestCancelled, match="resumed it elsewhere"):
        await to_the_end(former)
    await desk.read()
    assert desk.shown[0] == EXPECTED
    await asyncio.sleep(0.1)
    assert desk.toy.clean()
    assert desk.toy.admission.running == 0


@pytest.mark.parametrize(
    ("params", "seeded"),
    [(GREEDY, False), (SamplingParams(temperature=1.0, seed=3, rule=Rule.COUPLED), True)],
)
async def test_without_a_journal_repeatable_answers_are_computed_anew(
    params: SamplingParams, seeded: bool
) -> None:
    desk = Desk(None, shown=[EXPECTED[:17]])
    desk.resume(params=params, seeded=seeded)
    await desk.read()
    assert desk.shown[0] == EXPECTED


async def test_what_cannot_be_resumed_is_refused_by_name() -> None:
    desk = Desk(in_memory())
    unknown = [
        (SAMPLED, False),
        (replace(SAMPLED, seed=3, rule=Rule.COUPLED), False),  # a seed nobody else knows
        (replace(SAMPLED, seed=3), True),  # its drafts are not known
    ]
    for params, seeded in unknown:
        with pytest.raises(InvalidRequest, match=r"resume\.offsets: nothing is known"):
            desk.ask(params=params, seeded=seeded, offsets=(3,))
    desk.ask()
    await desk.read(at_least=3)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"params": GREEDY, "offsets": (1,)}, "another request had this id"),
        (
            {"params": replace(SAMPLED, seed=3), "seeded": True, "offsets": (1,)},
            "the request began with another one",
        ),
        ({}, "request_id: a running request"),
        ({"offsets": (TOKENS + 1,)}, "less is known of it than you hold"),
    ]
    for asked, said in refused:
        with pytest.raises(InvalidRequest, match=said):
            desk.ask(**asked)
    await desk.read()
    assert desk.shown[0] == EXPECTED, "nothing of it has harmed the one that runs"


async def test_the_rest_is_drawn_by_the_rule_it_began_with() -> None:
    """Whatever the deployment's rule is by now: after a restart, or when no drafter is trusted."""
    journal, by_token = in_memory(), replace(SAMPLED, rule=Rule.TOKEN)
    await lost(journal, 3)
    second = Desk(journal)
    with pytest.raises(InvalidRequest, match=r"speculation\.rule: .* began with another"):
        second.ask(params=by_token, offsets=(0,), rule=Rule.TOKEN)
    call = second.ask(params=by_token, offsets=(0,))
    assert {state.request.params.rule for state in call.states.values()} == {Rule.BLOCK}
    await second.read()
    assert second.shown[0] == EXPECTED


@pytest.mark.parametrize("full", [False, True])
async def test_a_resume_of_what_runs_has_its_place_or_leaves_it(full: bool) -> None:
    desk = Desk(in_memory(), RoundsCell(max_running=1, max_queued=1))
    desk.ask()
    await desk.read(at_least=3)
    waiting = [desk.toy.ask()] if full else []
    desk.cell.draining = not full
    if full:
        desk.cell.check_capacity(resumed="r")
        with pytest.raises(Overloaded):
            desk.cell.check_capacity(resumed="unknown")
        desk.resume()
    else:
        with pytest.raises(Unavailable):
            desk.resume()
    await desk.read()
    assert desk.shown[0] == EXPECTED
    await desk.toy.finish(*waiting)
