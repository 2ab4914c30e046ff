"""Prompts on their way in: what is told of one that cannot go on."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

from dspark.rounds.control import Admission
from dspark.rounds.events import Admit
from dspark.types import Constraint, ConstraintKind, SamplingParams
from verify_service.batch_runner import Progress
from verify_service.prompt_line import PromptLine
from verify_service.prompts import Prompts
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
