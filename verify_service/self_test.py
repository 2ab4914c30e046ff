"""Tests at load whether a runner gives the same logits as the library for this model.

Two random prompts run through the library one by one, then through the runner in chunks, side by
side, on scattered slots, with a rolled-back draft in between. If rotation depends on length, its
border is lowered to lie between the two lengths, and a third sequence crosses it, first with a
draft and then with its answer. A stateful runner is also tried with two sequences of equal length.
A runner whose logits differ by more than rounding is not used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.errors import CheckpointError
from dspark.model.checkpoint import LoadedTarget
from dspark.model.target import beyond_keys, cache_argument, cache_layers
from verify_service import rotation
from verify_service.model_runner import Runner
from verify_service.plan import Segment
from verify_service.rotation import LengthRotation
from verify_service.stateful import use_own_attention

_LENGTHS = (23, 9)
_LONG = 150  # if layers keep states, to cover their chunks of 64 and windows of 128
_LONGEST_WINDOW = 512  # a shorter sliding window is crossed by the first prompt
# relative to the largest logit
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}
_BORDER = 16  # lowered border of length-dependent rotation
_PROMPT, _ANSWERED = 12, 10  # prompt and answer tokens of the sequence that crosses it


class Case(NamedTuple):
    """Tokens with their logits [length, V] from the library; the first `prompt` run at once."""

    token_ids: list[int]
    logits: Tensor
    prompt: int


@torch.inference_mode()
def expected(target: LoadedTarget) -> list[Case]:
    """Random sequences with the library's logits, computed one at a time."""
    model = target.model
    use_own_attention(model)
    draw = torch.Generator().manual_seed(11)
    turned = rotation.find(model)
    cases = []
    with _around(turned):
        for length in _lengths(target):
            ids = torch.randint(0, target.vocab_size, (length,), generator=draw)
            cases.append(Case(ids.tolist(), _logits(model, ids), length))
        if turned is not None and target.context_length >= _PROMPT + _ANSWERED:
            ids = torch.randint(0, target.vocab_size, (_PROMPT + _ANSWERED,), generator=draw)
            cases.append(
                Case(ids.tolist(), _answered(model, ids, _PROMPT, turned.switches_at), _PROMPT)
            )
    return cases


@torch.inference_mode()
def looks_ahead(target: LoadedTarget, cases: list[Case]) -> bool:
    """Whether the library's logits of a token depend on later tokens: attention is not causal."""
    if rotation.find(target.model) is not None:
        return False  # logits depend on the length anyway
    use_own_attention(target.model)
    ids, logits, _ = cases[0]
    half = len(ids) // 2
    apart = float((_logits(target.model, torch.tensor(ids[:half])) - logits[:half]).abs().max())
    return apart > _bound(cases, float(logits.abs().max()))


@torch.inference_mode()
def forgets(target: LoadedTarget, cases: list[Case]) -> bool:
    """Whether the library's logits change with its cache, which then drops keys too early."""
    model = target.model
    windows = [getattr(layer, "sliding_window", None) for layer in cache_layers(model)]
    if rotation.find(model) is not None or not any(windows):
        return False
    ids, logits, _ = cases[0]
    apart = (_answered(model, torch.tensor(ids), len(ids) - 4) - logits).abs().max()
    return float(apart) > _bound(cases, float(logits.abs().max()))


def least_slots(cases: list[Case], page_size: int) -> int:
    """Slots of a pool that holds all cases side by side, in whole pages."""
    return len(cases) * -(-max(len(case.token_ids) for case in cases) // page_size) * page_size


def disagreement(runner: Runner, cases: list[Case]) -> str | None:
    """Why this runner must not be used, or None. Releases its sequences and resets the runner."""
    try:
        with _around(runner.rotation):
            worst, scale = _run(runner, cases)
    except torch.OutOfMemoryError:  # no fault of the runner: another one would only hide it
        raise
    except Exception as error:  # any error of an unknown model means "not eligible"
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        for key in range(len(cases)):
            runner.release(key)
        runner.reset()
    bound = _bound(cases, scale)
    if not worst <= bound:
        return f"logits differ by {worst:.3g}, more than {bound:.3g}"
    return None


def _bound(cases: list[Case], scale: float) -> float:
    return _TOLERANCE.get(cases[0].logits.dtype, 1e-3) * max(scale, 1.0)


def _around(turned: LengthRotation | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if turned is None else turned.lowered(_BORDER)


def _lengths(target: LoadedTarget) -> tuple[int, ...]:
    window = getattr(target.model.config.get_text_config(), "sliding_window", None)
    first = (
        window + 15 if isinstance(window, int) and 8 <= window <= _LONGEST_WINDOW else _LENGTHS[0]
    )
    if beyond_keys(target.model) is not None:
        first = max(first, _LONG)
    return tuple(min(length, target.context_length) for length in (first, *_LENGTHS[1:]))


def _logits(model: Any, ids: Tensor) -> Tensor:
    device = next(model.parameters()).device
    logits: Tensor = model(input_ids=ids.unsqueeze(0).to(device), use_cache=False).logits[0]
    return logits


def _answered(model: Any, ids: Tensor, prompt: int, switches_at: int | None = None) -> Tensor:
    """Logits of a prompt at once and then token by token, as in `generate`; past `switches_at`
    the whole context is computed again for each token."""
    device = next(model.parameters()).device
    from transformers import DynamicCache

    rows, cache = [], {cache_argument(model): DynamicCache(config=model.config)}
    for start, stop in [(0, prompt), *((at, at + 1) for at in range(prompt, len(ids)))]:
        if switches_at is not None and stop > switches_at:
            rows.append(_logits(model, ids[:stop])[-1:])
            continue
        rows.append(
            model(input_ids=ids[None, start:stop].to(device), use_cache=True, **cache).logits[0]
        )
    return torch.cat(rows)


def _run(runner: Runner, cases: list[Case]) -> tuple[float, float]:
    """Largest difference and largest logit over a few packed passes; infinite if not finite."""
    long, short = cases[:2]
    # Pages of all cases interleave, so none is contiguous; without a kernel a page is one slot.
    page = int(getattr(runner, "slot_page", 1))
    longest = max(len(case.token_ids) for case in cases)
    slots = [
        [(len(cases) * (p // page) + number) * page + p % page for p in range(longest)]
        for number in range(len(cases))
    ]
    split, ready = len(long.token_ids) // 2, len(short.token_ids) - 4
    last = max(len(long.token_ids) - 3, split + 1)

    def segment(
        number: int, start: int, stop: int | None = None, *, wrong_from: int | None = None
    ) -> Segment:
        case = cases[number]
        ids = list(case.token_ids[:stop])
        if wrong_from is not None:
            ids[wrong_from:] = [(token + 1) % case.logits.shape[-1] for token in ids[wrong_from:]]
        return Segment(number, start, ids[start:], slots[number][: len(ids)], case.prompt)

    # The flag says whether logits are compared: not those of a draft that will be rolled back.
    passes: list[tuple[bool, list[Segment]]] = [
        # prefill beside prefill
        (True, [segment(0, 0, split), segment(1, 0, ready)]),
        (False, [segment(1, ready, wrong_from=ready)]),
        # prefill beside verification
        (True, [segment(0, split, last), segment(1, ready)]),
        # A short step, partly repeated, as few tokens may use another code path than prompts.
        (True, [segment(0, last), segment(1, ready)]),
        # The same shape again, with other inputs: a recording must not say what it said before.
        (True, [segment(1, ready), segment(0, last)]),
    ]
    if len(cases) > 2:
        passes += [
            (True, [segment(2, 0, _PROMPT), segment(1, ready), segment(0, last)]),
            # past the border and back
            (False, [segment(2, _PROMPT, wrong_from=_PROMPT + 1), segment(1, ready)]),
            (True, [segment(2, _PROMPT, _PROMPT + 1), segment(0, last)]),
            (True, [segment(1, ready), segment(2, _PROMPT + 1)]),
        ]
    if runner.path == "stateful":  # sequences of equal length, from their beginning
        whole = len(short.token_ids)
        passes += [
            (True, [segment(number, 0, ready) for number in (0, 1)]),
            (False, [segment(number, ready, whole, wrong_from=ready) for number in (0, 1)]),
            (True, [segment(number, ready, whole) for number in (0, 1)]),
        ]
    known: dict[Hashable, Case] = dict(enumerate(cases))
    worst = scale = 0.0
    for number, (compared, segments) in enumerate([*passes, passes[-1]]):
        rows = None if number < len(passes) else [0]  # the last pass requests only some rows
        logits, taps = runner.run(segments, rows)
        if taps is not None and len(taps) != (
            tokens := sum(len(each.token_ids) for each in segments)
        ):
            raise CheckpointError(f"its layers give {len(taps)} rows of {tokens} tokens")
        if compared:
            if not bool(torch.isfinite(logits).all()):
                return float("inf"), 1.0
            reference = torch.cat(
                [known[each.key].logits[each.start : each.length] for each in segments]
            )
            reference = reference if rows is None else reference[rows]
            worst = max(worst, float((logits - reference).abs().max()))
            scale = max(scale, float(reference.abs().max()))
    return worst, scale
