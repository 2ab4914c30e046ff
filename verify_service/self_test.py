"""Is the packed pass right for this model? Asked once, at load, of the model itself.

Two random prompts go through the library's own attention one by one, then through the packed pass in chunks, side by
side, on scattered slots, with a rolled-back draft in between. Equal up to rounding, or the packed path is not used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dspark.model.checkpoint import LoadedTarget
from verify_service.passes import Runner
from verify_service.per_request import use_own_attention
from verify_service.plan import Segment

_LENGTHS = (23, 9)
_LONGEST_WINDOW = 512  # a shorter sliding window is crossed by the first prompt
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}  # of the largest logit


@torch.inference_mode()
def expected(target: LoadedTarget) -> list[tuple[list[int], Tensor]]:
    """Random prompts and their logits [length, V] by the library's own attention, one prompt at a time."""
    model = target.model
    use_own_attention(model)
    device = next(model.parameters()).device
    draw = torch.Generator().manual_seed(11)
    cases = []
    for length in _lengths(target):
        ids = torch.randint(0, target.vocab_size, (length,), generator=draw)
        logits = model(input_ids=ids.unsqueeze(0).to(device), use_cache=False).logits[0]
        cases.append((ids.tolist(), logits))
    return cases


def disagreement(runner: Runner, cases: list[tuple[list[int], Tensor]]) -> str | None:
    """Why this runner must not be used, or None. Leaves nothing behind but what `reset` removes."""
    try:
        worst, scale = _run(runner, cases)
    except Exception as error:  # whatever a foreign model raises here means "not eligible"
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        for key in range(len(cases)):
            runner.release(key)
        runner.reset()
    bound = _TOLERANCE.get(cases[0][1].dtype, 1e-3) * max(scale, 1.0)
    if not worst <= bound:
        return f"logits differ by {worst:.3g}, more than {bound:.3g}"
    return None


def _lengths(target: LoadedTarget) -> tuple[int, ...]:
    window = getattr(target.model.config.get_text_config(), "sliding_window", None)
    first = window + 15 if isinstance(window, int) and 8 <= window <= _LONGEST_WINDOW else _LENGTHS[0]
    return tuple(min(length, target.context_length) for length in (first, *_LENGTHS[1:]))


def _run(runner: Runner, cases: list[tuple[list[int], Tensor]]) -> tuple[float, float]:
    """(largest difference, largest logit) over the rows of four packed passes."""
    (long_ids, long_logits), (short_ids, short_logits) = cases
    # Pages of both interleave, so neither sequence lies in a row; a page is one slot unless a kernel reads more.
    page = int(getattr(runner, "slot_page", 1))
    slots = [[(2 * (p // page) + case) * page + p % page for p in range(len(long_ids))] for case in (0, 1)]
    split, ready = len(long_ids) // 2, len(short_ids) - 4
    last = max(len(long_ids) - 3, split + 1)
    wrong = [(token + 1) % long_logits.shape[-1] for token in short_ids[ready:]]

    def segment(case: int, start: int, ids: list[int]) -> Segment:
        return Segment(case, start, ids, slots[case][: start + len(ids)])

    passes: list[tuple[list[Segment], Tensor]] = [
        # Prefill of one beside prefill of the other.
        (
            [segment(0, 0, long_ids[:split]), segment(1, 0, short_ids[:ready])],
            torch.cat((long_logits[:split], short_logits[:ready])),
        ),
        # A draft that will be rolled back; nothing is compared.
        ([segment(1, ready, wrong)], torch.empty(0)),
        # The next chunk of one beside a verification of the other.
        (
            [segment(0, split, long_ids[split:last]), segment(1, ready, short_ids[ready:])],
            torch.cat((long_logits[split:last], short_logits[ready:])),
        ),
        # A step of both, some of it once more: so few tokens may go another way than prompts do.
        (
            [segment(0, last, long_ids[last:]), segment(1, ready, short_ids[ready:])],
            torch.cat((long_logits[last:], short_logits[ready:])),
        ),
    ]
    worst = scale = 0.0
    for segments, reference in passes:
        logits: Any = runner.run(segments, None).logits
        if reference.numel():
            if not bool(torch.isfinite(logits).all()):
                return float("inf"), 1.0
            worst = max(worst, float((logits - reference).abs().max()))
            scale = max(scale, float(reference.abs().max()))
    return worst, scale
