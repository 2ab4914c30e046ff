"""Prompts on their way in: what is told of one that cannot go on."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

from dspark.rounds.control import Admission
from dspark.rounds.events import Admit
from dspark.types import Constraint, ConstraintKind, SamplingParams
from verify_service.prompts import Prompts
from verify_service.running_step import FAILED
from verify_service.sequences import CachedSequence


def test_a_pass_that_fails_before_the_form_is_compiled_is_why_its_prompt_is_refused() -> None:
    params = SamplingParams(constraint=Constraint(ConstraintKind.REGEX, "a"))
    state, released = CachedSequence(7, 1, 1, params, 2, True), list[tuple[int, int]]()
    engine = SimpleNamespace(
        open=lambda *args, **kwargs: None,
        find=lambda *at: state,
        compile=lambda constraint, salt: Future(),  # for ever on its way
        first_token=lambda *at, **options: state.broken,
        release=lambda *at: released.append(at),
    )
    prompts = Prompts(cast("Any", engine), 1, lambda: None)
    assert prompts.begin(Admission(Admit(7, 1, 2, 9), (5, 6), params, 11, keep_rows=False)) is None
    state.cached = 2
    assert list(prompts.collect()) == [], "its form may still be refused"
    state.broken = FAILED
    assert [began.anchor for began in prompts.collect()] == [FAILED]
    assert released == [(7, 1)]
