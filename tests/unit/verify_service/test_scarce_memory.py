"""Steps of an engine whose memory is short, whose prompts ride in rounds, and whose prefixes are
kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dspark.native.compiled import kernels
from dspark.types import Cursor, Refusal, RefusalReason, Rule, SamplingParams, Verdict
from tests.engine_steps import GREEDY, PROMPT, item, judged, line_up, rows_of, run_all, take_in, why
from verify_service import packed_runner, sampler
from verify_service.engine import VerifyEngine
from verify_service.sequences import VerifyItem

Load = Callable[..., VerifyEngine]


def say(
    engine: VerifyEngine, sequences: dict[int, list[int]], epoch: int = 1
) -> list[Verdict | Refusal]:
    """One round without drafts of those that find a page; committed tokens are appended."""
    sequences = {
        n: tokens
        for n, tokens in sequences.items()
        if engine.grow(n, epoch, len(tokens), 0) is not None
    }
    items = [
        item(n, len(tokens) - len(PROMPT), tokens, epoch=epoch) for n, tokens in sequences.items()
    ]
    outcomes = engine.judge_cohort(items).outcomes
    for (_, tokens), outcome in zip(sequences.items(), outcomes, strict=True):
        if isinstance(outcome, Verdict):
            tokens.append(outcome.tokens[-1])
    return outcomes


def answered(engine: VerifyEngine, sequence: int, length: int, first: int = PROMPT[0]) -> list[int]:
    """So many tokens of a sequence that is taken in, whose prompt may begin with another one."""
    prompt = [first, *PROMPT[1:]]
    text = [*prompt, take_in(engine, sequence, prompt)]
    while len(text) < length:
        say(engine, {sequence: text})
    return text


def test_a_prefix_without_pages_is_cut_and_not_refused_for_its_length(load: Load) -> None:
    """Invariant 2: the length of a prefix depends on its own tokens, so nothing may be drawn anew
    because of it."""
    alone = load(kv_tokens=256, page_size=8, prefix_cache=False)
    text = answered(alone, 1, 40)
    # the packed path's self-test needs more
    engine = load(kv_tokens=24, page_size=8, prefix_cache=False, attention="stateful")
    assert take_in(engine, 1, PROMPT) == text[20]
    # All of the draft is right; three pages hold the anchor and three more.
    assert engine.grow(1, 1, 21, 7) == 3
    (verdict,) = judged(engine, item(1, 0, text[:21], text[21:24]))
    assert (verdict.accepted, verdict.judged, verdict.tokens[-1]) == (3, 3, text[24])
    assert engine.grow(1, 1, 25, 0) is None


def test_one_more_page_per_sequence_stays_free_when_another_comes_in(load: Load) -> None:
    engine = load(kv_tokens=56, page_size=8, prefix_cache=False)
    take_in(engine, 1, PROMPT)
    take_in(engine, 2, PROMPT)
    refusal = engine.open(Cursor(3, 1, 0, 1), GREEDY, 9, True, token_ids=[4])
    assert why(refusal) is RefusalReason.NO_PAGES


def test_a_prompt_rides_in_rounds_and_nobody_s_answer_changes(load: Load) -> None:
    calm = load(prefix_cache=False)
    long = (PROMPT * 3)[:50]
    expected = answered(calm, 1, len(PROMPT) + 13)
    first = take_in(calm, 2, long)

    engine = load(prefix_cache=False, step_prefill_tokens=7)
    text = [*PROMPT, take_in(engine, 1, PROMPT)]
    line_up(engine, 2, long)
    for number in range(12):
        made = engine.judge_cohort([item(1, 1 + number, text)])
        (outcome,) = made.outcomes
        text.append(outcome.tokens[-1])
        assert made.prefill_tokens == (7 if number < 7 else 1 if number == 7 else 0)
    assert text == expected
    assert engine.first_token(2) == first
    kept, rows = (each.features(Cursor(2, 1, 1, 51), 0) for each in (calm, engine))
    assert rows.token_ids == long
    torch.testing.assert_close(rows_of(rows), rows_of(kept), rtol=2e-2, atol=2e-2)  # bf16


@pytest.mark.parametrize("kernel", [False, True])
def test_a_kept_prefix_is_shared_with_its_feature_rows_and_the_answer_is_the_same(
    load: Load, kernel: bool
) -> None:
    if kernel and kernels() is None:
        pytest.skip("no C compiler has built the kernels")
    engine = load(page_size=8, kv_tokens=512, threads=1, attention_kernel=kernel)
    cold = answered(engine, 1, 31)
    before = rows_of(engine.features(Cursor(1, 1, 11, len(cold)), 0))
    take_in(engine, 5, PROMPT)
    states, pool = engine._kv_cache.states, engine._kv_cache.pool
    assert len(set(pool.pages(states[1])) & set(pool.pages(states[5]))) == 2
    for sequence in (1, 5):
        engine.release(sequence, 1)
    assert engine.held.pages_held == 0, "kept pages are nobody's"
    warm = [*PROMPT, take_in(engine, 2, PROMPT)]
    assert engine.find(2, 1).spared == 16, "two full pages of eight, one token left to run"
    rows = engine.features(Cursor(2, 1, 1, len(warm)), 0)
    assert (rows.start, list(rows.token_ids)) == (0, PROMPT)
    torch.testing.assert_close(rows_of(rows)[:16], before[:16], rtol=0, atol=0)
    while len(warm) < 31:
        say(engine, {2: warm})
    assert warm == cold
    # The answer's own pages were kept too: what the conversation goes on with is found.
    for sequence, salt, spared in ((3, "", 24), (4, "other", 0)):
        line_up(engine, sequence, cold[:31], salt=salt)
        assert engine.find(sequence, 1).spared == spared


def test_several_short_prompts_ride_in_one_round_and_give_what_they_give_alone(load: Load) -> None:
    engine = load(step_prefill_tokens=24, prefix_cache=False)
    # 9, 7, 20 and 3 tokens
    prompts = {2: PROMPT[:9], 3: PROMPT[4:11], 4: PROMPT[::-1], 5: PROMPT[2:5]}
    alone = {n: take_in(engine, n + 100, prompt) for n, prompt in prompts.items()}
    texts = {1: [*PROMPT, take_in(engine, 1, PROMPT)]}
    for sequence, prompt in prompts.items():
        line_up(engine, sequence, prompt)
    rode = []
    for _ in range(2):
        (verdict,) = judged(engine, item(1, len(texts[1]) - len(PROMPT), texts[1]))
        texts[1].append(verdict.tokens[-1])
        rode.append([engine._kv_cache.states[n].cached for n in prompts])
    assert rode == [[9, 7, 5, 3], [9, 7, 20, 3]], "those with least left first"
    assert {n: engine.first_token(n) for n in prompts} == alone


def test_short_prompts_do_not_wait_for_long_ones_nor_long_ones_for_ever(load: Load) -> None:
    engine = load(prefill_chunk=16, prefix_cache=False)
    for sequence in (1, 2, 3):
        line_up(engine, sequence, PROMPT * 4)  # five chunks each
    line_up(engine, 4, PROMPT[:3])
    for _ in range(2):
        engine.prefill_next()
    assert isinstance(engine.first_token(4), int)
    for sequence in range(10, 24):
        line_up(engine, sequence, PROMPT[:16])
        engine.prefill_next()
    assert isinstance(engine.first_token(1), int), "every second chunk is the oldest one's"


def test_a_prompt_that_was_let_go_gives_its_place_in_the_round_to_the_next(load: Load) -> None:
    engine = load(step_prefill_tokens=8, prefix_cache=False)
    first = item(1, 1, [*PROMPT, take_in(engine, 1, PROMPT)])
    line_up(engine, 2, PROMPT)
    line_up(engine, 3, PROMPT)
    engine.release(2, 1)
    engine.judge_cohort([first])
    state = engine.find(3, 1)
    assert state is not None
    assert state.cached == 8


class Fragile:
    """A target that cannot bear some sequences, more of them than `most`, or prompts; or a rule
    behind it."""

    def __init__(self, engine: VerifyEngine, *, behind: bool = False) -> None:
        self.bad: set[int] = set()
        self.most = 99
        self.passes = 0
        where: Any = engine._step if behind else engine._runner
        name = "_decide" if behind else "run"
        self._inner = getattr(where, name)
        setattr(where, name, self._planted)

    def _planted(self, segments: Any, *more: Any, **named: Any) -> Any:
        """segments: of a pass, or rows of its items."""
        self.passes += 1
        states = (each.key if hasattr(each, "key") else each.state for each in segments)
        keys = {state.sequence for state in states}
        if len(keys) > self.most or keys & self.bad:
            raise RuntimeError("out of memory")
        return self._inner(segments, *more, **named)


def decoding(engine: VerifyEngine, count: int) -> list[VerifyItem]:
    """So many sequences, each before its next round."""
    return [item(n, 1, [*PROMPT, take_in(engine, n, PROMPT)]) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("bad", "behind"), [(set(), False), ({3}, False), ({1, 5}, False), ({1, 5}, True)]
)
def test_a_failed_pass_costs_only_who_fails_alone(load: Load, bad: set[int], behind: bool) -> None:
    engine = load(prefix_cache=False)
    items = decoding(engine, 5)
    fragile = Fragile(engine, behind=behind)
    fragile.bad, fragile.most = bad, 2
    outcomes = engine.judge_cohort(items).outcomes
    assert {n + 1 for n, outcome in enumerate(outcomes) if isinstance(outcome, Refusal)} == bad
    verdicts = [outcome for outcome in outcomes if isinstance(outcome, Verdict)]
    assert len({verdict.tokens[-1] for verdict in verdicts}) == 1, "all say the same, none twice"
    assert all(
        engine._kv_cache.states[number].cached == len(PROMPT) + 1
        for number in range(1, 6)
        if number not in bad
    )
    fragile.bad, fragile.most = set(), 99
    again = judged(engine, *(items[n - 1] for n in bad))  # they stand where they stood
    assert {each.tokens[-1] for each in again} <= {each.tokens[-1] for each in verdicts}


def test_a_prompt_that_spoils_a_round_is_told_and_the_round_goes_on_without_it(load: Load) -> None:
    engine = load(step_prefill_tokens=8, prefix_cache=False)
    items = decoding(engine, 2)
    line_up(engine, 7, PROMPT)
    fragile = Fragile(engine)
    fragile.bad = {7}
    judged(engine, *items)
    assert why(engine.first_token(7)) is RefusalReason.INTERNAL
    assert fragile.passes == 2
    assert not engine.prefill_next(), "it does not come again"


def test_a_device_that_fails_at_everything_fails_the_round(load: Load) -> None:
    engine = load()
    items = decoding(engine, 3)
    Fragile(engine).most = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.judge_cohort(items)


@pytest.mark.parametrize(("where", "counted"), [("_with_logprobs", 2), ("judge", 0)])
def test_draws_of_a_pass_that_fails_behind_its_rule_are_told_once(
    load: Load, monkeypatch: pytest.MonkeyPatch, where: str, counted: int
) -> None:
    """Its halves run again; if the rule itself failed, cases are judged one by one, unwatched."""
    engine, sampled = load(prefix_cache=False), SamplingParams(rule=Rule.BLOCK)
    items = []
    for n in (1, 2):
        text = [*PROMPT, take_in(engine, n, PROMPT, params=sampled)]
        items.append(item(n, 1, text, [5, 7])._replace(drafter="d"))
    module: Any = packed_runner if where == "_with_logprobs" else sampler
    inner, failing = getattr(module, where), [True]

    def planted(*args: Any) -> Any:
        made = inner(*args)
        if failing and failing.pop():
            raise RuntimeError("out of memory")
        return made

    monkeypatch.setattr(module, where, planted)
    told = engine.judge_cohort(items)
    assert not failing
    assert all(isinstance(each, Verdict) for each in told.outcomes)
    assert (sum(each.blocks for each in told.draws), len(told.labels)) == (counted, counted)


def test_draws_that_a_client_can_repeat_are_in_no_statistics(load: Load) -> None:
    engine, sampled = load(prefix_cache=False), SamplingParams(rule=Rule.BLOCK)
    items = []
    for n in (1, 2):
        text = [*PROMPT, take_in(engine, n, PROMPT, params=sampled)]
        items.append(item(n, 1, text, [5, 7])._replace(drafter="d"))
    engine._kv_cache.states[1].repeatable = True
    told = engine.judge_cohort(items)
    assert (sum(each.blocks for each in told.draws), len(told.labels)) == (1, 2)


def test_prompts_that_rode_in_a_pass_before_the_one_that_failed_are_told(load: Load) -> None:
    engine = load(step_prefill_tokens=20, max_batch_tokens=1, prefix_cache=False)
    items = decoding(engine, 2)
    line_up(engine, 7, PROMPT)
    Fragile(engine).bad = {2}
    assert [type(outcome) for outcome in engine.judge_cohort(items).outcomes] == [Verdict, Refusal]
    assert isinstance(engine.first_token(7), int)


def test_kept_prefixes_leave_a_row_to_who_comes_where_rows_pay(load: Load) -> None:
    engine = load(kv_tokens=320, page_size=8, attention_kernel=False)
    for n in range(1, 21):  # two pages of each are kept
        take_in(engine, n, [n, *PROMPT[1:]])
        engine.release(n, 1)
    text = answered(engine, 99, 60, first=99)
    assert isinstance(engine._kv_cache.slots(engine._kv_cache.states[99], 0, len(text)), range)


def test_nobody_finds_pages_that_a_failed_pass_may_have_written(load: Load) -> None:
    engine = load(page_size=4, prefill_chunk=8)
    text = answered(engine, 1, 33)
    fragile = Fragile(engine)

    def found(sequence: int, prompt: list[int]) -> int:
        cursor = Cursor(sequence, 1, 0, len(prompt))
        assert engine.open(cursor, GREEDY, 90, True, token_ids=prompt) is None
        spared = engine.find(sequence, 1).spared
        engine.release(sequence, 1)
        return spared

    fragile.bad = {1}
    with pytest.raises(RuntimeError, match="out of memory"):
        say(engine, {1: text})
    engine.release(1, 1)
    assert found(2, text) == len(PROMPT), "what was kept before is sound"
    other = PROMPT[::-1]
    line_up(engine, 3, other)
    assert engine.prefill_next()
    fragile.bad = {3}
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.prefill_next()
    engine.release(3, 1)
    assert found(4, other) == 0


def test_a_prompt_of_an_older_epoch_gives_way_to_the_newer_one(load: Load) -> None:
    engine = load(prefix_cache=False)
    first = take_in(engine, 1, PROMPT)
    other = [*PROMPT[:10], *PROMPT[:10]]
    line_up(engine, 2, other)
    assert isinstance(
        engine.open(Cursor(2, 0, 0, 20), GREEDY, 60, True, token_ids=other), Refusal
    ), "it was followed"
    line_up(engine, 2, PROMPT, epoch=2)
    assert [engine.prefill_next(), engine.prefill_next()] == [True, False]
    assert isinstance(engine.first_token(2, epoch=1), Refusal), "nor does it take the newer one's"
    assert engine.first_token(2) == first
    assert engine.features(Cursor(2, 1, 0, 20), 0) is None, "rows are those of an epoch"


def test_what_made_no_numbers_is_in_no_cache(load: Load) -> None:
    engine = load(page_size=8)
    prefixes = engine._kv_cache.prefixes
    take_in(engine, 1, PROMPT)
    engine.release(1, 1)
    assert len(prefixes.match(PROMPT, "", needs_rows=False)) == 2
    line_up(engine, 2, PROMPT)
    run_all(engine)
    engine._kv_cache.states[2].last_logits.fill_(torch.nan)  # type: ignore[union-attr]
    refusal = engine.first_token(2)
    assert isinstance(refusal, Refusal)
    engine.release(2, 1)
    assert prefixes.match(PROMPT, "", needs_rows=False) == []
    assert engine.held.pages_held == 0


@pytest.mark.parametrize("ahead", [False, True], ids=["processor", "card"])
@pytest.mark.parametrize("step", ["project", "put"])
def test_rows_that_cannot_be_kept_cost_drafts_and_no_verdict(
    load: Load, step: str, ahead: bool
) -> None:
    engine = load(page_size=8)
    engine._step._ahead = ahead
    calm = answered(engine, 1, len(PROMPT) + 2)
    other = [*PROMPT, take_in(engine, 2, PROMPT)]

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    store = engine._kv_cache.store
    setattr(store, step, full)
    if step == "project":
        store.under_way = full
    say(engine, {2: other})
    assert other == calm
    assert not engine._kv_cache.states[2].keep_features
