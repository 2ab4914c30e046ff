"""States kept for prompts that begin alike: found by tokens and tenant, within their bytes, and
right."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.types import NO_Q, Cursor, Refusal, RefusalReason, Verdict
from tests.architectures import deepseek_v4
from tests.architectures.families import FAMILIES, model_of
from tests.architectures.serving import prompt
from tests.engine_steps import GREEDY, line_up, rows_of, run_all
from verify_service import state_cache, stateful
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine
from verify_service.kept_state import copied, size
from verify_service.sequences import VerifyItem

KINDS = ("deepseek_v4", "qwen3_5", "mamba2", "lfm2")


def engine(folder: Path, **settings: Any) -> VerifyEngine:
    told = {"dtype": "float32", "kv_tokens": 2048, "prefill_chunk": 64, **settings}
    return VerifyEngine.load(VerifyConfig(target=str(folder), **told))


@pytest.fixture
def mamba(tmp_path: Path) -> Path:
    """The folder of a target whose states are of one size."""
    model_of(FAMILIES["mamba2"]).save_pretrained(tmp_path)
    return tmp_path


def full(cache: Any, *, apart: bool = False) -> Any:
    raise torch.OutOfMemoryError("no memory is left")


def prefilled(
    engine: VerifyEngine, key: int, ids: list[int], *, salt: str = "", rows: bool = False
) -> int:
    """Opens a sequence and runs its prompt as the line does; returns the tokens it was spared."""
    line_up(engine, key, ids, longest=len(ids) + 20, salt=salt, keep=rows)
    spared = engine.find(key, 1).spared
    run_all(engine)
    return spared


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_goes_on_from_the_longest_state_of_its_tenant(kind: str, tmp_path: Path) -> None:
    model_of(FAMILIES[kind]).save_pretrained(tmp_path)
    served = engine(tmp_path)
    assert served.attention_path == "stateful"
    first, others = prompt(150, 1), [prompt(150, 2), [*prompt(150, 1)[:100], *prompt(60, 3)]]
    assert prefilled(served, 0, first, salt="one") == 0
    logits = served._kv_cache.states[0].last_logits.clone()
    found = [prefilled(served, 1, first, salt="one"), prefilled(served, 2, first, salt="two")]
    found += [prefilled(served, 3 + n, ids, salt="one") for n, ids in enumerate(others)]
    assert found == [144, 0, 0, 64]  # the last state is where a chunk ended
    assert prefilled(served, 5, first, salt="one") == 144, "again, and the state is as it was kept"
    for key in (1, 2, 5):
        torch.testing.assert_close(
            served._kv_cache.states[key].last_logits, logits, atol=2e-3, rtol=1e-4
        )
    with torch.inference_mode():
        whole = served.target.model(input_ids=torch.tensor([others[1]]), use_cache=False).logits[
            0, -1
        ]
    torch.testing.assert_close(served._kv_cache.states[4].last_logits, whole, atol=2e-3, rtol=1e-4)


def test_rows_of_what_was_found_are_those_that_were_made(tmp_path: Path) -> None:
    deepseek_v4.write(tmp_path)
    served, ids = engine(tmp_path, drafter=str(tmp_path)), prompt(90, 4)
    assert prefilled(served, 0, ids) == 0  # without rows
    assert [prefilled(served, key, ids, rows=True) for key in (1, 2)] == [0, 80]
    assert all(isinstance(served.first_token(key), int) for key in (1, 2))
    made = [served.features(Cursor(key, 1, 0, 91), 0) for key in (1, 2)]
    rows = [rows_of(run) for run in made if not isinstance(run, Refusal)]
    assert [len(each) for each in rows] == [90, 90]
    torch.testing.assert_close(rows[1].float(), rows[0].float(), atol=0.05, rtol=0.01)


def test_states_stay_within_their_bytes_and_the_oldest_goes_first(mamba: Path) -> None:
    served = engine(mamba, max_sequences=64)
    states = served._kv_cache.prefixes.states
    prefilled(served, 0, prompt(20, 0))
    one = states.bytes
    assert one > 0
    states._most = 3 * one
    for key in range(1, 4):
        prefilled(served, key, prompt(20, key))
    assert states.bytes == 3 * one
    assert [prefilled(served, 10 + key, prompt(20, key)) for key in (1, 2, 3, 0)] == [16, 16, 16, 0]
    states._most = one - 1
    prefilled(served, 20, prompt(20, 9))
    assert states.bytes == 0 or prefilled(served, 21, prompt(20, 9)) == 0
    served.forget_all()
    assert (states.bytes, served.held.sequences) == (0, 0)


def test_a_state_is_kept_where_prompts_part_and_few_of_a_long_one(mamba: Path) -> None:
    served, shared = engine(mamba), prompt(250, 0)
    states = served._kv_cache.prefixes.states
    prefilled(served, 0, [*shared, *prompt(200, 1)])
    assert [kept.length for kept in states._kept.values()] == [64, 128, 256, 448]
    assert prefilled(served, 1, [*shared, *prompt(20, 2)]) == 128
    assert prefilled(served, 2, [*shared, *prompt(20, 3)]) == 240, "the last whole page of both"


def test_a_beginning_that_is_shared_outlives_the_states_of_one_long_prompt(mamba: Path) -> None:
    served, shared = engine(mamba), prompt(33, 0)
    states = served._kv_cache.prefixes.states
    prefilled(served, 0, shared)
    states._most = 4 * states.bytes
    assert prefilled(served, 1, [*shared, *prompt(30, 1)]) == 32
    prefilled(served, 2, prompt(260, 2))  # three states
    assert prefilled(served, 3, [*shared, *prompt(30, 3)]) == 32
    for key in (4, 5, 6):  # nobody asks for it any more
        prefilled(served, key, prompt(260, key))
    assert prefilled(served, 7, [*shared, *prompt(30, 7)]) == 0


def test_a_full_device_costs_what_was_kept_and_nobody_s_round(
    mamba: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, ids = engine(mamba), prompt(60, 1)
    prefilled(served, 0, prompt(60, 2))
    prefilled(served, 1, prompt(20, 3))
    anchor = served.first_token(1)

    with monkeypatch.context() as patched:
        patched.setattr(state_cache, "copied", full)
        assert served.open(Cursor(2, 1, 0, 60), GREEDY, 80, False, token_ids=ids) is None
        (verdict,) = served.judge_cohort(
            [VerifyItem(Cursor(1, 1, 0, 21), anchor, (), NO_Q)]
        ).outcomes
    assert isinstance(verdict, Verdict), "the prompt rode along in its round"
    chunked = served.find(2, 1)
    assert 0 < chunked.cached < 60
    run_all(served)
    assert chunked.prefilled
    assert [prefilled(served, key, prompt(60, 2)) for key in (3, 4)] == [0, 48]


def test_who_finds_no_memory_for_a_kept_state_holds_nothing_and_runs_all_of_it_later(
    mamba: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, ids = engine(mamba), prompt(60, 2)
    prefilled(served, 0, ids)
    before = served.held

    with monkeypatch.context() as patched:
        patched.setattr(stateful, "copied", full)
        refusal = served.open(Cursor(1, 1, 0, 60), GREEDY, 80, False, token_ids=ids)
    assert refusal.reason is RefusalReason.NO_PAGES
    assert served.held == before
    assert served._kv_cache.prefixes.states.bytes == 0
    assert prefilled(served, 1, ids) == 0
    before = served.held

    def broken(cache: Any, *, apart: bool = False) -> Any:
        raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(stateful, "copied", broken)
        with pytest.raises(RuntimeError, match="planted"):
            served.open(Cursor(2, 1, 0, 60), GREEDY, 80, False, token_ids=ids)
    assert served.release(2, 1)
    assert served.held == before


@pytest.mark.parametrize("kind", ["mamba2", "jamba"])
def test_where_nothing_is_shared_prompts_run_in_whole_chunks(kind: str, tmp_path: Path) -> None:
    model_of(FAMILIES[kind]).save_pretrained(tmp_path)
    # which goes on from a state token by token
    served = engine(tmp_path, prefix_cache=kind == "jamba")
    assert not served.shares_prefixes
    assert served.open(Cursor(9, 1, 0, 20), GREEDY, 40, False, token_ids=prompt(20, 2)) is None
    assert served._kv_cache.chunk_end(served._kv_cache.states[9], 64) == 20
    assert [prefilled(served, key, prompt(40, 1)) for key in (0, 1)] == [0, 0]


def test_a_copy_that_stands_apart_keeps_nothing_of_a_batch_alive() -> None:
    model = model_of(FAMILIES["qwen3_5"])
    with torch.inference_mode():
        cache = model(
            input_ids=torch.tensor([prompt(9, n) for n in range(3)]), use_cache=True
        ).past_key_values
    made = copied(cache, apart=True)
    assert size(made) == size(cache) > 0
    attended = next(layer for layer in made.layers if getattr(layer, "keys", None) is not None)
    assert attended.keys.untyped_storage().nbytes() == attended.keys.nbytes
