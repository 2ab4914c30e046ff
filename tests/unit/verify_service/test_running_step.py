"""Passes that are prepared while others are computed: verdicts and rows are those of passes one
after the other, and whatever is freed, opened or asked for meanwhile changes nothing of what is
under way."""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from dspark.rounds.events import OrderRow
from dspark.synthetic.spec import read_spec
from dspark.types import Cursor, Refusal, RefusalReason, Rule, SamplingParams, Verdict
from tests import engine_steps
from tests.engine_steps import GREEDY, PROMPT, judged, rows_of, why
from tests.synthetic_file import synthetic_document
from verify_service.batch_runner import FeatureRun, TooSlow
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.sequences import VerifyItem
from verify_service.synthetic import SyntheticVerifyEngine

SIZES: dict[str, Any] = {"kv_tokens": 2048, "page_size": 8}
Real = Callable[[], VerifyEngine]


@pytest.fixture
def real(load: Callable[..., VerifyEngine]) -> Real:
    return partial(load, **SIZES)


@pytest.fixture(params=["real", "synthetic"])
def engine(request: pytest.FixtureRequest, real: Real) -> Any:
    if request.param == "real":
        return real()
    document = synthetic_document([0.8] * 4, vocabulary=128)
    return SyntheticVerifyEngine(read_spec(document), VerifyConfig(**SIZES))


def take_in(
    engine: Any, sequence: int, params: SamplingParams = GREEDY, epoch: int = 1
) -> list[int]:
    """Opens and prefills by itself; all its tokens."""
    prompt = [sequence, *PROMPT]
    return [
        *prompt,
        engine_steps.take_in(engine, sequence, prompt, params=params, epoch=epoch, longest=120),
    ]


def item(sequence: int, tokens: list[int], draft: tuple[int, ...] = ()) -> VerifyItem:
    return engine_steps.item(sequence, len(tokens) - len(PROMPT) - 1, tokens, draft)


def run(*steps: Any) -> None:
    """On another thread, one after the other."""

    def work() -> None:
        for step in steps:
            step.run()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def begin(engine: Any, items: list[VerifyItem]) -> Any:
    """A step of these, which have pages for it."""
    for each in items:
        sequence, epoch, _, committed_len = each.cursor
        assert engine.grow(sequence, epoch, committed_len, len(each.draft_ids)) is not None
    return engine.begin(items)


def ended(engine: Any, step: Any) -> list[Any]:
    """The outcomes of a step that is run on another thread."""
    run(step)
    outcomes: list[Any] = engine.end(step).outcomes
    return outcomes


ALL_PARAMS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=7, rule=Rule.BLOCK),
    SamplingParams(temperature=1.0, seed=8, rule=Rule.TOKEN),
]


def rounds(engine: VerifyEngine, *, split: bool) -> Iterator[list[Verdict]]:
    """Two cohorts in turn: each step is prepared while the one before is computed, or all are run
    one by one."""
    said = {
        sequence: take_in(engine, sequence, ALL_PARAMS[sequence % 3]) for sequence in range(1, 7)
    }
    cohorts = ([1, 3, 5], [2, 4, 6])
    drafts = lambda number: tuple((11 * number + j) % 128 for j in range(number % 4))  # noqa: E731

    def asked(cohort: list[int], number: int) -> list[VerifyItem]:
        return [item(each, said[each], drafts(number + each)) for each in cohort]

    def take(cohort: list[int], judged: Any) -> list[Verdict]:
        for sequence, verdict in zip(cohort, judged.outcomes, strict=True):
            assert isinstance(verdict, Verdict), verdict
            said[sequence] += verdict.tokens
        outcomes: list[Verdict] = judged.outcomes
        return outcomes

    for number in range(6):
        if not split:
            for cohort in cohorts:
                yield take(cohort, engine.judge_cohort(asked(cohort, number)))
            continue
        steps = [begin(engine, asked(cohort, number)) for cohort in cohorts]
        run(*steps)
        for cohort, step in zip(cohorts, steps, strict=True):
            yield take(cohort, engine.end(step))


def test_verdicts_and_rows_are_those_of_passes_that_are_not_split(real: Real) -> None:
    whole, apart = real(), real()
    for expected, outcomes in zip(
        rounds(whole, split=False), rounds(apart, split=True), strict=True
    ):
        assert [each.tokens for each in outcomes] == [each.tokens for each in expected]
    for sequence in (1, 2, 5):
        length = whole._kv_cache.states[sequence].committed_len
        kept = [engine.features(Cursor(sequence, 1, 0, length), 0) for engine in (whole, apart)]
        assert all(isinstance(each, FeatureRun) for each in kept)
        torch.testing.assert_close(rows_of(kept[0]), rows_of(kept[1]), rtol=0, atol=0)


def test_who_leaves_in_the_middle_of_a_pass_frees_its_pages_when_it_has_ended_and_harms_nobody(
    engine: Any,
) -> None:
    one, two = take_in(engine, 1), take_in(engine, 2)
    held = engine.held.pages_held
    step = begin(engine, [item(1, one), item(2, two)])
    assert engine.release(1, 1)
    assert engine.held.sequences == 1
    assert engine.held.pages_held == held, "the pass writes there"
    assert take_in(engine, 1, epoch=2) == one, "its number may be used at once"
    _, stayed = ended(engine, step)
    assert isinstance(stayed, Verdict)
    assert engine.held.pages_held == held
    assert engine.find(1, 2) is not None


@pytest.mark.parametrize("riding", [False, True])
def test_a_pass_that_fails_is_tried_again_though_one_has_left(real: Real, riding: bool) -> None:
    """Again in halves, or as it was without the prompt that rode in it."""
    engine = real()
    said = {sequence: take_in(engine, sequence) for sequence in (1, 2, 3)}
    if riding:
        line_up(engine, 7)
    drafts = {sequence: tuple(range(sequence)) for sequence in said}
    step = begin(engine, [item(sequence, said[sequence], drafts[sequence]) for sequence in said])
    inner, passes = engine._runner.run, list[list[int]]()

    def fails_once(segments: Any, rows: Any) -> Any:
        passes.append([len(segment.token_ids) for segment in segments])
        if len(passes) == 1:
            raise RuntimeError("out of memory")
        return inner(segments, rows)

    engine._runner.run = fails_once
    assert engine.release(1, 1)
    outcomes = ended(engine, step)
    assert step.failure is None
    assert passes[0][:3] == [2, 3, 4]
    assert passes[1:] == ([[2, 3, 4]] if riding else [[2], [3, 4]]), "with the same prefixes"
    calm = real()
    for sequence, outcome in list(zip(said, outcomes, strict=True))[1:]:
        assert [outcome] == judged(calm, item(sequence, take_in(calm, sequence), drafts[sequence]))
        said[sequence] += outcome.tokens
        judged(engine, item(sequence, said[sequence]))
    engine.release_owner(0)
    assert (engine.held.sequences, engine.held.pages_held) == (0, 0)
    assert engine.open(Cursor(1, 2, 0, 2), GREEDY, 60, True, token_ids=[1, 2]) is None


def line_up(engine: VerifyEngine, *sequences: int) -> None:
    for sequence in sequences:
        engine_steps.line_up(engine, sequence, [sequence, *PROMPT])


def planted(engine: VerifyEngine, *, prompt: int = 0, judged: int = 0) -> None:
    """This prompt cannot be prepared, or this sequence."""
    cache: Any = engine._kv_cache
    inner = cache.slots

    def slots(state: Any, start: int, stop: int) -> Any:
        if state.sequence in (prompt, judged):
            raise RuntimeError("planted")
        return inner(state, start, stop)

    cache.slots = slots


@pytest.mark.parametrize(("bad", "beside"), [(7, 2), (8, 2), (7, 0)])
def test_a_prompt_that_cannot_be_prepared_is_refused_and_takes_nobody_along(
    real: Real, bad: int, beside: int
) -> None:
    """First or second in line, riding with two that decode; or first, with nobody."""
    engine = real()
    said = {sequence: take_in(engine, sequence) for sequence in range(1, 1 + beside)}
    line_up(engine, 7, 8)
    planted(engine, prompt=bad)
    for _ in range(1 + beside):
        items = [item(sequence, said[sequence]) for sequence in said]
        step = begin(engine, items) if items else engine.begin_prefill()
        for sequence, outcome in zip(said, ended(engine, step), strict=True):
            said[sequence].append(outcome.tokens[-1])
    assert isinstance(engine.first_token(15 - bad), int)
    assert why(engine.first_token(bad)) is RefusalReason.INTERNAL
    assert not engine.prefill_next(), "nobody is in line"


def test_a_prompt_is_not_to_blame_for_whom_it_rides_with(real: Real) -> None:
    engine = real()
    said = take_in(engine, 1)
    line_up(engine, 7)
    planted(engine, judged=1)
    step = begin(engine, [item(1, said)])
    assert isinstance(ended(engine, step)[0], Refusal)
    assert engine.prefill_next()
    assert isinstance(engine.first_token(7), int)


def test_a_session_that_ends_in_the_middle_of_a_pass_leaves_nothing(engine: Any) -> None:
    step = begin(engine, [item(1, take_in(engine, 1))])
    assert engine.release_owner(0) == 1
    ended(engine, step)
    assert (engine.held.sequences, engine.held.pages_held) == (0, 0)


def test_prompts_in_line_go_with_their_session_and_their_numbers_are_free(engine: Any) -> None:
    prompts = {1: [9, *PROMPT], 2: [4, *PROMPT[::-1]]}  # by owner, under one number
    for owner, prompt in prompts.items():
        engine_steps.line_up(engine, 5, prompt, owner=owner)
        if owner == 1:
            assert engine.release_owner(1) == 1
    judged(engine, item(1, take_in(engine, 1)))
    while engine.prefill_next(owner=2):
        pass
    anchor = engine.first_token(5)
    rows = engine.kept_rows([OrderRow(5, 1, 9, 100, 5, 3, 0)])
    assert rows.token_ids == prompts[2]
    engine.release_owner(2)
    assert engine_steps.take_in(engine, 6, prompts[2]) == anchor


def riding(step: Any) -> list[int]:
    """The sequences whose prompts are in the first pass of a step."""
    return [chunk.state.sequence for chunk in step._batches[0].chunks]


def test_prompts_whose_clients_left_cost_the_next_one_no_pass(engine: Any) -> None:
    for sequence, owner in ((1, 1), (3, 2), (4, 1), (5, 1)):
        engine_steps.line_up(engine, sequence, [sequence, *PROMPT], owner=owner)
    engine.release(1, 1)
    with structlog.testing.capture_logs() as lines:
        step = engine.begin_prefill(owner=1)
    assert riding(step) == [4], "the first that is here, and no more"
    assert not lines, "nothing fails at one that has left"
    ended(engine, step)
    assert riding(engine.begin_prefill(owner=2)) == [3], "nobody else's is touched"


def test_a_sequence_is_in_one_pass_at_a_time(engine: Any) -> None:
    said = take_in(engine, 1)
    first, second = begin(engine, [item(1, said)]), begin(engine, [item(1, said)])
    run(first, second)
    (verdict,), (refused,) = engine.end(first).outcomes, engine.end(second).outcomes
    assert isinstance(refused, Refusal)
    judged(engine, item(1, [*said, verdict.tokens[-1]]))


def test_a_prompt_is_in_one_pass_at_a_time_and_others_ride_meanwhile(engine: Any) -> None:
    one, two = take_in(engine, 1), take_in(engine, 2)
    for sequence in (3, 4):
        engine_steps.line_up(engine, sequence, [sequence, *PROMPT] * 8)
    steps = [begin(engine, [item(1, one)]), begin(engine, [item(2, two)])]
    assert list(map(riding, steps)) == (
        [[3], [4]] if isinstance(engine, VerifyEngine) else [[3, 4], []]
    )
    run(*steps)
    for step in steps:
        engine.end(step)
    engine_steps.run_all(engine)
    assert [isinstance(engine.first_token(sequence), int) for sequence in (3, 4)] == [True, True]


def test_pages_of_who_left_go_to_others_while_a_pass_is_computed(real: Real) -> None:
    """A later pass writes where somebody was who is gone, and the pass under way reads its own."""
    alone = real()
    said = take_in(alone, 1)
    (expected,) = judged(alone, item(1, said))
    crowded = real()
    mine, _ = take_in(crowded, 1), take_in(crowded, 2)
    step = begin(crowded, [item(1, mine)])
    crowded.release(2, 1)
    other = take_in(crowded, 3)  # prefilled while the first pass waits
    behind = begin(crowded, [item(3, other)])
    run(step, behind)
    assert crowded.end(step).outcomes[0].tokens[-1] == expected.tokens[-1]  # type: ignore[union-attr]
    assert isinstance(crowded.end(behind).outcomes[0], Verdict)


def test_a_prefix_is_found_while_a_pass_is_under_way(real: Real) -> None:
    engine = real()
    said = take_in(engine, 1)
    step = begin(engine, [item(1, said)])
    engine_steps.line_up(engine, 2, [1, *PROMPT])
    ended(engine, step)
    assert engine.find(2, 1).spared == 16
    engine_steps.run_all(engine)
    assert engine.first_token(2) == said[-1]
    kept = [engine.features(Cursor(each, 1, 0, len(said)), 0) for each in (1, 2)]
    torch.testing.assert_close(rows_of(kept[0]), rows_of(kept[1]), rtol=0, atol=0)


def test_nothing_of_a_pass_is_known_before_its_end(engine: Any) -> None:
    said = take_in(engine, 1)
    step = begin(engine, [item(1, said)])
    run(step)
    assert engine.kept_rows([OrderRow(1, 1, 9, 100, 5, 3, 0)]).counts == [len(said) - 1]
    engine.end(step)
    assert engine.kept_rows([OrderRow(1, 1, 9, 100, 5, 3, 0)]).counts == [len(said)]


def test_an_order_tells_what_the_form_of_each_answer_lets_come(engine: Any) -> None:
    class Stub:
        def __init__(self, word: int, *, too_slow: bool = False, over: bool = False) -> None:
            self.word, self.too_slow, self.over = word, too_slow, over

        def masks(self, drafted: Sequence[int]) -> Any:
            if self.too_slow:
                raise TooSlow
            return np.full((0 if self.over else len(drafted) + 1, 2), self.word, np.int32)

    rows = []
    for number, matcher in enumerate(
        (Stub(7), None, Stub(8), Stub(9, too_slow=True), Stub(9, over=True)), start=1
    ):
        said = take_in(engine, number)
        rows.append(OrderRow(number, 1, 9, len(said), said[-1], 3, 0))
        assert not engine.kept_rows(rows[-1:]).masks, "nobody has a form"
        engine._kv_cache.states[number].matcher = matcher
    word = [np.full(2, each, np.int32).tobytes() for each in (7, 8)]
    assert engine.kept_rows(rows).masks == [word[0], b"", word[1], b"", b""]
    assert engine.kept_rows(rows[::-1]).masks == [b"", b"", word[1], b"", word[0]]
    assert engine.kept_rows([rows[0]._replace(epoch=2), rows[2]]).masks == [b"", word[1]]


def test_a_step_that_has_ended_holds_no_result_of_its_passes(engine: Any) -> None:
    """Prompts' rows and logits of a whole pass: a step is remembered until it is reported."""
    tokens = take_in(engine, 1)
    made: list[weakref.ref[Any]] = []
    execute = engine._step.execute

    class Held(list[Any]):
        """What can be referred to weakly."""

    def executed(prepared: Any) -> Any:
        result = execute(prepared)
        mark = Held()
        made.append(weakref.ref(mark))
        return SimpleNamespace(
            **{name: getattr(result, name) for name in result._fields}, mark=mark
        )

    engine._step.execute = executed
    step = begin(engine, [item(1, tokens)])
    assert isinstance(ended(engine, step)[0], Verdict)
    assert made[0]() is None
