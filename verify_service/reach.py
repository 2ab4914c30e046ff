"""Compares each layer's window in the library's cache with the window it passes to attention.

A window longer than any test prompt, a layer that attends in chunks, or one that counts positions
itself would pass a comparison of short sequences and be wrong later. The library's cache has one
entry per layer, made from the configuration alone. A layer of the packed pass must use the same
window.
"""

from __future__ import annotations

from typing import Any

import torch

from dspark.model.target import beyond_keys, cache_layers
from verify_service.kv_pool import KeyValuePool
from verify_service.paged_attention import AttentionCall, packed_pass, use_in
from verify_service.plan import Segment, build_plan


@torch.inference_mode()
def unlike(model: Any) -> str | None:
    """Why the packed pass is wrong for some layer, or None. Leaves the model with the paged
    attention."""
    if (more := beyond_keys(model)) is not None:
        return more
    try:
        told = _told(model)
    except KeyError as error:
        return f"its attention layers are not told what the model is told ({error})"
    # any error of an unknown model means that it does not follow the plan
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    if (
        twice := next((index for index, windows in told.items() if len(windows) > 1), None)
    ) is not None:
        return f"layer {twice} runs more than once in a pass, and its keys have one place"
    for index, layer in enumerate(cache_layers(model)):
        sees = getattr(layer, "sliding_window", None)
        if index in told and type(layer).__name__ != "DummyLayer" and told[index] != [sees]:
            return (
                f"layer {index} sees {_tokens(sees)}, and its attention is told of "
                f"{_tokens(*told[index])}"
            )
    if getattr(model.config.get_text_config(), "attn_temperature_tuning", False):
        # Llama4's layers without rotation; early positions, which short prompts have, are alike
        return "its attention counts the tokens of a call, whatever positions it is told"
    return None


def _tokens(window: int | None) -> str:
    return "everything" if window is None else f"{window} tokens"


def _told(model: Any) -> dict[int, list[int | None]]:
    """Windows by layer, one per call, as layers pass them to attention for three tokens."""
    use_in(model)
    calls: list[tuple[int, AttentionCall]] = []
    device = next(model.parameters()).device
    plan = build_plan([Segment(0, 0, [0, 1, 2], range(3))], device)
    packed_pass(model, plan, KeyValuePool(4), torch.tensor([0], device=device), dspark_calls=calls)
    found: dict[int, list[int | None]] = {}
    for _, call in calls:
        found.setdefault(call.layer, []).append(call.window)
    return found
