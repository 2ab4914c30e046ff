"""States of the library, brought back to any length: what follows is what a plain forward gives."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark.errors import CheckpointError
from dspark.model.target import TargetTaps, decoder_layers
from tests.architectures.families import FAMILIES, model_of
from tests.architectures.serving import prompt
from verify_service.kept_state import REPLAYED_AT_MOST, form, joined, parted
from verify_service.plan import Segment
from verify_service.stateful import StatefulRunner

CLOSE = {"rtol": 1e-4, "atol": 2e-3}  # logits reach 5
PROMPT, BLOCK = 37, 8
# Compressed windows, convolutions, linear attention beside keys, a state space, keys alone; one
# token at a time.
KINDS = {
    "deepseek_v4": False,
    "lfm2": False,
    "qwen3_5": False,
    "mamba2": False,
    "qwen3": False,
    "jamba": True,
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> tuple[Any, bool]:
    return model_of(FAMILIES[request.param]), KINDS[request.param]


@torch.inference_mode()
def plain(model: Any, ids: list[int]) -> Tensor:
    logits: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def run(runner: StatefulRunner, start: int, ids: list[int]) -> Tensor:
    """Logits of tokens start .. of ids."""
    return runner.run([Segment(1, start, ids[start:], range(len(ids)))], None).logits


def test_every_length_inside_the_last_block_is_reached_exactly(model: tuple[Any, bool]) -> None:
    target, single = model
    runner = StatefulRunner(target, None, single=single)
    text = prompt(PROMPT, 1)
    for kept in range(BLOCK + 1):
        runner.release(1)
        run(runner, 0, text[:20])  # a prompt in two chunks
        run(runner, 20, text)
        block = [*text, *prompt(BLOCK, 2)]
        run(runner, PROMPT, block)
        after = [*block[: PROMPT + kept], *prompt(5, 3)]
        torch.testing.assert_close(
            run(runner, PROMPT + kept, after), plain(target, after)[PROMPT + kept :], **CLOSE
        )


def test_block_after_block_is_taken_back(model: tuple[Any, bool]) -> None:
    """So many that tokens that stay have run in front of a pass, and by themselves."""
    target, single = model
    runner = StatefulRunner(target, None, single=single)
    text = prompt(PROMPT, 4)
    run(runner, 0, text)
    for number in range(3 * REPLAYED_AT_MOST // BLOCK):
        block = [*text, *prompt(BLOCK, 10 + number)]
        torch.testing.assert_close(
            run(runner, len(text), block), plain(target, block)[len(text) :], **CLOSE
        )
        text = block[: len(text) + 3 + number % 5]


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_a_pass_that_fails_half_way_may_be_run_again(model: tuple[Any, bool], blocks: int) -> None:
    """Also while tokens in front of it run again, a few or so many that they run by themselves;
    wherever among them it fails."""
    target, single = model
    runner = StatefulRunner(target, None, single=single)
    text = prompt(PROMPT, 9)
    run(runner, 0, text)
    for number in range(blocks):  # of each but two tokens stay, so that all of them run once more
        block = [*text, *prompt(BLOCK, 20 + number)]
        run(runner, len(text), block)
        text = block[:-2]
    after = [*text, *prompt(5, 30)]
    layer, calls = decoder_layers(target)[2], 0
    for fails_at in (1, 3):

        def fail(*_: Any, at: int = fails_at) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise RuntimeError("out of memory")

        calls = 0
        handle = layer.register_forward_pre_hook(fail)
        with contextlib.suppress(RuntimeError):
            # a model that takes tokens together has no third call
            run(runner, len(text), after)
        handle.remove()
        assert calls
    torch.testing.assert_close(
        run(runner, len(text), after), plain(target, after)[len(text) :], **CLOSE
    )


def test_what_lies_before_the_last_block_is_refused() -> None:
    runner = StatefulRunner(model_of(FAMILIES["qwen3_5"]), None)
    text = prompt(PROMPT, 8)
    run(runner, 0, text[:20])
    run(runner, 20, text)
    with pytest.raises(CheckpointError, match="kept from 20 on, cannot be at 10"):
        run(runner, 10, text)


def calls_of(model: Any) -> list[int]:
    """Sequences in each call of the model from now on."""
    seen: list[int] = []
    forward = model.forward

    def counted(*args: Any, **told: Any) -> Any:
        seen.append(len(told["input_ids"]))
        return forward(*args, **told)

    model.forward = counted
    return seen


def test_states_of_one_form_share_a_pass_and_speak_as_alone(model: tuple[Any, bool]) -> None:
    target, single = model
    taps = TargetTaps(target, (1, 3)).attach()
    runner = StatefulRunner(target, taps, single=single, together=True)
    seen = calls_of(target)
    texts = {key: prompt(PROMPT, 30 + key) for key in range(3)}
    for rounds in range(4):
        blocks = {
            key: [*text, *prompt(BLOCK, 40 + 10 * rounds + key)] for key, text in texts.items()
        }
        starts = {key: len(text) if rounds else 0 for key, text in texts.items()}
        made = runner.run(
            [Segment(key, starts[key], ids[starts[key] :], ()) for key, ids in blocks.items()], None
        )
        first = 0
        for key, ids in blocks.items():
            count = len(ids) - starts[key]
            whole = plain(target, ids), taps.collect()[0]
            torch.testing.assert_close(
                made.logits[first : first + count], whole[0][starts[key] :], **CLOSE
            )
            torch.testing.assert_close(
                made.taps[first : first + count], whole[1][starts[key] :], rtol=1e-4, atol=2e-2
            )
            first += count
        # All of a draft is taken back alike, then some more than others: other tokens run again, in
        # other passes.
        texts = {
            key: ids[: len(texts[key]) + 3 + (key if rounds == 2 else 0)]
            for key, ids in blocks.items()
        }
    together = [count for count in seen if count > 1]
    assert together == [] if single else together.count(3) >= 3


def test_sequences_of_a_state_space_share_a_pass_wherever_they_stand() -> None:
    target = model_of(FAMILIES["mamba2"])
    runner = StatefulRunner(target, None, together=True)
    texts = {key: prompt(9 + 7 * key, key) for key in range(4)}
    for key, ids in texts.items():
        runner.run([Segment(key, 0, ids, ())], [])
    seen = calls_of(target)
    after = {key: [*ids, *prompt(2, 50 + key)] for key, ids in texts.items()}
    made = runner.run(
        [Segment(key, len(texts[key]), ids[-2:], ()) for key, ids in after.items()], None
    )
    assert seen == [4]
    wanted = torch.cat([plain(target, ids)[-2:] for ids in after.values()])
    torch.testing.assert_close(made.logits, wanted, **CLOSE)


class _Counting:
    """A state that counts in a tensor of its own, as those of fixed size do."""

    def __init__(self, count: int) -> None:
        self.seen, self.rows = torch.tensor(count), torch.zeros(1, 3)
        self.layers = list[_Counting]()


def test_sequences_that_shared_a_pass_count_apart_behind_it() -> None:
    first, second = parted(joined([_Counting(4), _Counting(4)]), 2)
    first.seen.add_(1)
    assert (int(first.seen), int(second.seen)) == (5, 4)


def test_a_state_whose_layer_has_no_axis_of_sequences_is_joined_with_none() -> None:
    whole, layer = _Counting(4), _Counting(4)
    whole.layers = [layer]
    assert form(whole) is not None
    layer.rows = torch.zeros(2, 3)
    assert form(whole) is None
