"""Prompts on their way in: what is told of one that cannot go on."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

from dspark.rounds.control import Admission
from dspark.rounds.events import Admit
from dspark.types import Constraint, ConstraintKind, SamplingParams
from verify_service.batch_runner import Progress, PromptPrefill
from verify_service.prompt_line import PromptLine
from verify_service.prompts import IDLE_S, Prompts
from verify_service.sequences import CachedSequence
from verify_service.under_way import FAILED


def test_a_pass_that_fails_before_the_form_is_compiled_is_why_its_prompt_is_refused() -> None:
    line, released = PromptLine(cast("Any", None)), list[tuple[int, int]]()
    engine = SimpleNamespace(
        busy=lambda sequence: False,
        open=lambda *args, **kwargs: None,
        spared=lambda *at: 0,
        compile=lambda constraint, salt: Future(),  # for ever on its way
        release=lambda *at: released.append(at),
        line=line,
    )
    prompts = Prompts(cast("Any", engine), 1, lambda: None)
    params = SamplingParams(constraint=Constraint(ConstraintKind.REGEX, "a"))
    assert prompts.begin(Admission(Admit(7, 1, 2, 9), (5, 6), params, 11, keep_rows=False)) is None
    line.tell(Progress(line.prompts[0], problem=FAILED))
    assert [began.anchor for began in prompts.collect()] == [FAILED]
    assert released == [(7, 1)]


def test_prompts_whose_clients_left_cost_the_next_one_no_pass() -> None:
    state = CachedSequence(4, 1, 1, SamplingParams(), 3, keep_features=False)
    states = {4: state, 5: CachedSequence(5, 1, 1, SamplingParams(), 3, keep_features=False)}
    holdings = SimpleNamespace(states=states, chunk_end=lambda state, most: 3)
    line = PromptLine(cast("Any", holdings))
    for number, owner in ((1, 1), (2, 1), (3, 2), (4, 1), (5, 1)):
        line.add(PromptPrefill(number, 1, (5, 6, 7), owner))
    riders = line.riders(64, (), alone=1)
    assert [prompt.sequence for prompt, _ in riders] == [4], "the first that is here, and no more"
    assert [prompt.sequence for prompt in line.prompts] == [3, 4, 5], "nobody else's is touched"


def test_a_number_that_a_pass_of_another_stream_holds_is_looked_at_again() -> None:
    busy = {7}
    engine = SimpleNamespace(busy=busy.__contains__, line=PromptLine(cast("Any", None)))
    prompts = Prompts(cast("Any", engine), 1, lambda: None)
    assert prompts.chunk_at(5.0) is None
    admission = Admission(Admit(7, 1, 2, 9), (5, 6), SamplingParams(), 11, keep_rows=False)
    assert prompts.begin(admission) is None
    assert prompts.chunk_at(5.0) == 5.0 + IDLE_S
