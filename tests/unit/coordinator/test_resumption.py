"""A client that lost its stream gets the rest of its answers, each token once, whoever was lost
between them."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import answer_of
from rounds_cell import RoundsCell, virtual

from coordinator.answers.output_queue import OutputQueue
from coordinator.cells.cell import SubmitRequest
from coordinator.cells.journal import Journal
from coordinator.cells.journal_file import JournalFile
from coordinator.cells.local_cell import LocalCell, LocalHandle
from coordinator.config import CoordinatorConfig
from coordinator.reception.output_processor import OutputProcessor
from coordinator.requests.request import Request
from dspark.errors import InvalidRequest, Overloaded, RequestCancelled, Unavailable
from dspark.rounds.control import Admission, PassReport, Up
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule, SamplingParams, ScoredToken
from dspark.wire.v1 import generate_pb2

PROMPT, TOKENS = (5, 6), 40
EXPECTED = answer_of(PROMPT, TOKENS)
GREEDY, ADAPTIVE = SamplingParams(temperature=0.0), parse_policy("adaptive")


class Desk:
    """A client, a front desk and the coordinator's way in, before a toy cell."""

    def __init__(self, journal: Journal | None, toy: RoundsCell | None = None) -> None:
        self.toy = toy or RoundsCell()
        self.cell = LocalCell(self.toy.admission, None, None, journal=journal)  # type: ignore[arg-type]
        self.shown: dict[int, list[int]] = {}

    def ask(
        self,
        *,
        params: SamplingParams | None = None,
        offsets: tuple[int, ...] | None = None,
        choices: int = 1,
        seeded: bool = False,
        rule: Rule | None = None,
    ) -> tuple[OutputProcessor, OutputQueue, LocalHandle]:
        message = generate_pb2.GenerateRequest(request_id="r")
        if seeded:
            message.sampling_params.seed = 3
        if rule is not None:
            message.speculation.rule = rule  # type: ignore[assignment]
        if offsets is not None:
            message.resume.offsets.extend(offsets)
        request = Request("r", PROMPT, params or GREEDY, TOKENS, ADAPTIVE, choices=choices)
        sink = OutputQueue(64 * choices)
        reader = OutputProcessor(request, None, 0.0, offsets or ())
        return reader, sink, self.cell.submit(SubmitRequest(message, request, 0.0, 60.0), sink)

    async def read(self, reader: OutputProcessor, sink: OutputQueue, *, at_least: int = 0) -> None:
        """Until the end, or until so many tokens of the first answer are held."""
        while not reader.done and not (at_least and len(self.shown.get(0, [])) >= at_least):
            waiting = await sink.take()
            assert waiting is not None
            for shown in reader.read(waiting):
                held = self.shown.setdefault(shown.index, [])
                assert shown.offset == len(held), "neither twice nor skipped"
                held += shown.tokens


def lose(desk: Desk) -> None:
    """As a killed process: nothing of it goes on."""
    desk.toy.lose_verifier()


async def to_the_end(sink: OutputQueue) -> None:
    while await sink.take() is not None:
        continue


def in_memory() -> Journal:
    return Journal(None, keep_s=60.0, metrics=Metrics())


# the toy target says the same under any law
SAMPLED = SamplingParams(temperature=0.8, seed=99, rule=Rule.BLOCK)


@pytest.mark.parametrize("held", [1, 2, 11, 39])
@virtual
async def test_the_rest_comes_after_the_coordinator_was_lost(held: int) -> None:
    journal = in_memory()  # what the next process reads
    first = Desk(journal)
    reader, sink, _ = first.ask(params=SAMPLED)
    await first.read(reader, sink, at_least=held)
    epoch = journal.find("r").answers[0].epoch  # type: ignore[union-attr]
    lose(first)
    second = Desk(journal)
    second.shown = {0: first.shown[0][:held]}  # the last words may have got lost on their way
    reader, sink, call = second.ask(params=SAMPLED, offsets=(held,))
    assert all(state.sequence.epoch > epoch for state in call.states.values()), (
        "no draw is used twice"
    )
    assert all(state.begun for state in call.states.values()), "nobody displaces half an answer"
    assert all(state.answer.since_resumed == 0 for state in call.states.values())
    await second.read(reader, sink)
    assert second.shown[0] == EXPECTED
    assert reader.answers[0].answered == TOKENS
    assert second.toy.metrics.value("prefills_total", reason="new") == 0
    await asyncio.sleep(0.1)
    assert second.toy.clean()


@pytest.mark.parametrize("back", [True, False])
@virtual
async def test_the_rest_is_drawn_by_the_target_that_began_it(back: bool) -> None:
    journal = in_memory()
    first = Desk(journal)
    reader, sink, _ = first.ask(params=SAMPLED)
    await first.read(reader, sink, at_least=9)
    lose(first)
    second = Desk(journal, RoundsCell(verifiers=0))
    second.toy.add_verifier(fingerprint="another target")
    second.shown = {0: list(first.shown[0])}
    reader, sink, _ = second.ask(params=SAMPLED, offsets=(len(second.shown[0]),))
    await second.toy.answered(second.toy.ask())
    assert len(journal.find("r").answers[0].tokens) < TOKENS  # type: ignore[union-attr]
    if back:
        second.toy.lose_verifier()
        second.toy.add_verifier()
        await second.read(reader, sink)
        assert second.shown[0] == EXPECTED
    else:
        with pytest.raises(Unavailable, match="no verifier came within 20 s; the answer stands at"):
            await second.read(reader, sink)


@virtual
async def test_what_a_client_was_shown_is_on_disk(tmp_path: Path) -> None:
    """After every token, with nothing going on that could have written it since."""

    def on_disk(folder: Path) -> Journal:
        file = JournalFile(folder, sync="interval", sync_s=60.0, segment_bytes=1 << 20)
        return Journal(file, keep_s=60.0, metrics=Metrics())

    journal = on_disk(tmp_path / "written")
    desk = Desk(
        journal, RoundsCell(write=journal.write, drafters=0, config=CoordinatorConfig(window=0))
    )
    reader, sink, _ = desk.ask(params=SAMPLED)
    while True:
        await desk.read(reader, sink, at_least=len(desk.shown.get(0, [])) + 1)
        there = tmp_path / str(len(desk.shown[0]))
        shutil.copytree(tmp_path / "written", there)
        after = on_disk(there)
        known = after.find("r")
        assert known is not None
        assert known.answers[0].tokens == desk.shown[0]
        after.close()
        if reader.done:
            break
    assert desk.shown[0] == EXPECTED
    journal.close()


@virtual
async def test_it_goes_on_under_the_seed_it_began_with_and_a_higher_epoch_every_time() -> None:
    """A front end draws a seed for every message that brings none; draws of the first must go on,
    and never repeat."""
    journal, epochs, shown = in_memory(), [], 0
    for seed, held in ((99, 3), (5, 9), (7, 15)):
        desk = Desk(journal)
        desk.shown = {0: EXPECTED[:shown]}
        reader, sink, call = desk.ask(
            params=replace(SAMPLED, seed=seed), offsets=(shown,) if shown else None
        )
        all_params = {state.request.params.seed for state in call.states.values()}
        assert all_params == {99}
        epochs.append(call.states[0].sequence.epoch)
        await desk.read(reader, sink, at_least=held)
        shown = len(desk.shown[0])
        lose(desk)
    assert epochs == sorted(set(epochs))


@virtual
async def test_answers_of_one_request_have_their_own_noise_and_resume_under_their_own_epochs() -> (
    None
):
    journal = in_memory()
    first = Desk(journal)
    reader, sink, call = first.ask(params=SAMPLED, choices=2)
    assert [call.states[index].request.params.choice for index in range(2)] == [0, 1]
    await first.read(reader, sink, at_least=3)
    entry = journal.find("r")
    assert entry is not None
    entry.answers[1].epoch = 4  # the second one has been handed over more often
    lose(first)
    second = Desk(journal)
    second.shown = {index: list(said.tokens) for index, said in enumerate(entry.answers)}
    held = tuple(len(second.shown[index]) for index in range(2))
    reader, sink, call = second.ask(params=SAMPLED, choices=2, offsets=held)
    assert [call.states[index].sequence.epoch for index in range(2)] == [1, 5]
    await second.read(reader, sink, at_least=held[0] + 3)
    assert [said.epoch for said in entry.answers] == [1, 5]


@virtual
async def test_log_probabilities_are_told_again_with_their_tokens() -> None:
    told = [ScoredToken(-float(token)) for token in EXPECTED]
    params = replace(SAMPLED, logprobs=0)

    def scored(each: PassReport) -> list[Up]:
        rows = each.report.rounds
        logprobs = [[ScoredToken(-float(token)) for token in row.tokens] for row in rows]
        return [each._replace(logprobs=logprobs)]

    journal = in_memory()
    first = Desk(journal)
    first.toy.port.in_reports(scored)
    reader, sink, _ = first.ask(params=params)
    await first.read(reader, sink, at_least=9)
    lose(first)
    for held in (2, 5, 9):
        second = Desk(journal)
        second.toy.port.in_reports(scored)
        reader, sink, _ = second.ask(params=params, offsets=(held,))
        got: list[ScoredToken] = []
        while not reader.done:
            waiting = await sink.take()
            assert waiting is not None
            for shown in reader.read(waiting):
                assert len(shown.tokens) == len(shown.logprobs)
                got += shown.logprobs
        assert got == told[held:]


@virtual
async def test_an_answer_that_ended_unseen_is_told_without_any_work() -> None:
    journal = in_memory()
    first = Desk(journal)
    reader, sink, _ = first.ask()
    await first.read(reader, sink)
    known = journal.find("r")
    second = Desk(journal)
    second.cell.draining = True  # there is nothing to do for it
    second.shown = {0: EXPECTED[:TOKENS]}
    reader, sink, call = second.ask(offsets=(TOKENS,))
    await second.read(reader, sink)
    assert not call.states
    assert journal.find("r") is known, "told, and not written again"
    assert not second.toy.port.orders(Admission)
    assert reader.answers[0].end is not None
    assert reader.answers[0].end.reason.value == "length"


@virtual
async def test_of_several_answers_only_those_that_lack_something_go_on() -> None:
    journal = in_memory()
    first = Desk(journal)
    reader, sink, call = first.ask(choices=3)
    await first.read(reader, sink, at_least=5)
    call.finish(1)  # its text ended it
    await asyncio.sleep(0.001)
    first.shown.setdefault(1, []), first.shown.setdefault(2, [])
    second = Desk(journal)
    second.shown = {index: list(first.shown[index]) for index in range(3)}
    reader, sink, call = second.ask(
        choices=3, offsets=tuple(len(second.shown[index]) for index in range(3))
    )
    assert sorted(call.states) == [0, 2]
    assert all(state.begun for state in call.states.values()), "an error of one ends them all"
    await second.read(reader, sink)
    assert second.shown[0] == second.shown[2] == EXPECTED
    assert second.shown[1] == EXPECTED[: len(second.shown[1])]


@virtual
async def test_a_running_request_is_taken_over() -> None:
    desk = Desk(in_memory())
    reader, sink, _ = desk.ask()
    await desk.read(reader, sink, at_least=5)
    reader, again, _ = desk.ask(offsets=(len(desk.shown[0]),))
    await desk.read(reader, again)
    assert desk.shown[0] == EXPECTED
    with pytest.raises(RequestCancelled):
        await to_the_end(sink)
    await asyncio.sleep(0.1)
    assert desk.toy.clean()
    assert desk.toy.admission.running == 0


@pytest.mark.parametrize(
    ("params", "seeded"),
    [
        (GREEDY, False),
        (SamplingParams(temperature=1.0, seed=3, rule=Rule.COUPLED), True),
    ],
)
@virtual
async def test_without_a_journal_repeatable_answers_are_computed_anew(
    params: SamplingParams, seeded: bool
) -> None:
    desk = Desk(None)
    desk.shown = {0: EXPECTED[:17]}
    reader, sink, _ = desk.ask(params=params, seeded=seeded, offsets=(17,))
    await desk.read(reader, sink)
    assert desk.shown[0] == EXPECTED


@virtual
async def test_what_cannot_be_resumed_is_refused_by_name() -> None:
    journal = in_memory()
    desk = Desk(journal)
    unknown = [
        (SAMPLED, False),
        (replace(SAMPLED, seed=3, rule=Rule.COUPLED), False),  # a seed nobody else knows
        (replace(SAMPLED, seed=3), True),  # its drafts are not known
    ]
    for params, seeded in unknown:
        with pytest.raises(InvalidRequest, match=r"resume\.offsets: nothing is known"):
            desk.ask(params=params, seeded=seeded, offsets=(3,))
    reader, sink, _ = desk.ask(params=SAMPLED)
    await desk.read(reader, sink, at_least=3)
    with pytest.raises(InvalidRequest, match="another request had this id"):
        desk.ask(offsets=(1,))
    with pytest.raises(InvalidRequest, match="the request began with another one"):
        desk.ask(params=replace(SAMPLED, seed=3), seeded=True, offsets=(1,))
    with pytest.raises(InvalidRequest, match="request_id: a running request"):
        desk.ask(params=SAMPLED)
    with pytest.raises(InvalidRequest, match="less is known of it than you hold"):
        desk.ask(params=SAMPLED, offsets=(TOKENS + 1,))
    await desk.read(reader, sink)
    assert desk.shown[0] == EXPECTED, "nothing of it has harmed the one that runs"


@virtual
async def test_a_tenant_s_request_runs_under_its_tenant_s_names() -> None:
    desk = Desk(in_memory())
    request = Request("r", PROMPT, GREEDY, TOKENS, ADAPTIVE, cache_salt="s", tenant="acme")
    message = generate_pb2.GenerateRequest(request_id="r")
    call = desk.cell.submit(SubmitRequest(message, request, 0.0, 60.0), OutputQueue(64))
    await asyncio.sleep(0.1)
    assert (call.states[0].request.id, call.states[0].request.cache_salt) == ("acme/r", "acme/s")
    assert [each.cache_salt for each in desk.toy.port.orders(Admission)] == ["acme/s"]


@virtual
async def test_the_rest_is_drawn_by_the_rule_it_began_with() -> None:
    """Whatever the deployment's rule is by now: after a restart, or when no drafter is trusted."""
    journal, by_token = in_memory(), replace(SAMPLED, rule=Rule.TOKEN)
    first = Desk(journal)
    reader, sink, _ = first.ask(params=SAMPLED)
    await first.read(reader, sink, at_least=3)
    lose(first)
    second = Desk(journal)
    with pytest.raises(InvalidRequest, match=r"speculation\.rule: .* began with another"):
        second.ask(params=by_token, offsets=(0,), rule=Rule.TOKEN)
    reader, sink, call = second.ask(params=by_token, offsets=(0,))
    assert {state.request.params.rule for state in call.states.values()} == {Rule.BLOCK}
    await second.read(reader, sink)
    assert second.shown[0] == EXPECTED


@pytest.mark.parametrize("full", [False, True])
@virtual
async def test_a_resume_of_what_runs_has_its_place_or_leaves_it(full: bool) -> None:
    desk = Desk(in_memory(), RoundsCell(config=CoordinatorConfig(max_running=1, max_queued=1)))
    reader, sink, _ = desk.ask()
    await desk.read(reader, sink, at_least=3)
    waiting = desk.toy.ask() if full else None
    desk.cell.draining = not full
    if full:
        desk.cell.check_capacity(resumed="r")
        with pytest.raises(Overloaded):
            desk.cell.check_capacity(resumed="unknown")
        reader, sink, _ = desk.ask(offsets=(len(desk.shown[0]),))
    else:
        with pytest.raises(Unavailable):
            desk.ask(offsets=(3,))
    await desk.read(reader, sink)
    assert desk.shown[0] == EXPECTED
    if waiting is not None:
        await desk.toy.finish(waiting)
