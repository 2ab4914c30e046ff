"""Replaces layers of a stock model by lean ones that give the same output in a trial pass.

Layers of another shape stay, so a mixture-of-experts model keeps its expert layers and is faster in
the others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from dspark.model.checkpoint import context_length
from dspark.model.products import Product
from dspark.model.target import decoder_layers
from verify_service.kv_pool import KeyValuePool
from verify_service.lean_layers import LeanLayer, Norm, fits
from verify_service.paged_attention import AttentionCall, packed_pass
from verify_service.plan import Segment, build_plan

COPY_AT_MOST = 2 << 30  # bytes of weights that may be copied
# relative to the largest value compared
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
_DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
_TRIAL = 24  # tokens of the longer of two trial sequences


@dataclass
class LeanPatch:
    """Record of the replaced modules; `undo` restores the stock code."""

    layers: int = 0
    forms: set[str] = field(default_factory=set)  # of their products
    parts: list[Any] = field(default_factory=list)  # modules whose forward is not their class's

    def undo(self) -> None:
        for part in self.parts:
            with contextlib.suppress(AttributeError):
                del part.forward
        self.parts.clear()
        self.forms.clear()
        self.layers = 0


class _Seen(NamedTuple):
    """Inputs and output of one module in the trial pass."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@torch.inference_mode()
def make_lean(model: Any) -> LeanPatch:
    """Replaces layers, output head and decoder loop of a model that uses the paged attention. A
    part that fails its trial keeps the stock code."""
    lean = LeanPatch()
    layers = [layer for layer in decoder_layers(model) if fits(layer)]
    if not layers:
        return lean
    decoder = model.get_decoder()
    seen, calls = _trial(model, [*layers, decoder])
    budget = COPY_AT_MOST
    for layer in layers:
        call = calls.get(id(layer.self_attn))
        if call is None or layer not in seen or call.softcap is not None or call.sinks is not None:
            continue
        made = LeanLayer(layer, call, may_copy=budget > 0)
        if _same(made, seen[layer]):
            layer.forward = made
            lean.parts.append(layer)
            lean.layers += 1
            lean.forms |= made.forms
            budget -= made.copied
    if lean.layers:
        _replace_head(model, lean, budget)
        if lean.layers == len(decoder_layers(model)) and decoder in seen:
            _straighten(decoder, lean, seen[decoder])
    return lean


def _trial(model: Any, modules: list[Any]) -> tuple[dict[Any, _Seen], dict[int, AttentionCall]]:
    """Runs two random prompts in one packed pass; returns the calls of `modules`, and of attention
    by module id."""
    draw = torch.Generator().manual_seed(5)
    device = next(model.parameters()).device
    ids = torch.randint(
        0, model.config.get_text_config().vocab_size, (_TRIAL + 9,), generator=draw
    ).tolist()
    segments = [
        Segment(0, 0, ids[:_TRIAL], range(1, _TRIAL + 1)),
        Segment(1, 0, ids[_TRIAL:], range(40, 49)),
    ]
    seen: dict[Any, _Seen] = {}

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        seen[module] = _Seen(args, kwargs, output)

    calls: list[tuple[int, AttentionCall]] = []
    plan = build_plan(segments, device)
    # Near the longest position, to expose dependence on positions.
    plan.positions.add_(max(context_length(model.config.get_text_config()) - 2 * _TRIAL, 0))
    with contextlib.ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(note, with_kwargs=True))
        packed_pass(
            model, plan, KeyValuePool(64), torch.tensor([0], device=device), dspark_calls=calls
        )
    return seen, dict(calls)


def _same(made: LeanLayer, seen: _Seen) -> bool:
    if not isinstance(seen.output, Tensor):
        return False
    try:
        # A separate pool, as a lean layer stores its keys in another order.
        output = made(*seen.args, **(seen.kwargs | {"dspark_pool": KeyValuePool(64)}))
    except Exception:  # any error of an unknown layer means "not this shape"
        return False
    return _close(output, seen.output)


def _close(made: Tensor, stock: Tensor) -> bool:
    if made.shape != stock.shape or made.dtype != stock.dtype:
        return False
    bound = _TOLERANCE.get(stock.dtype, 1e-4) * max(float(stock.abs().max()), 1.0)
    return bool(float((made - stock).abs().max()) <= bound)


def _replace_head(model: Any, lean: LeanPatch, budget: int) -> None:
    """Replaces the output head if it is an ordinary one."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear:
        product, width = Product([head], may_copy=budget > 0), head.out_features

        def forward(x: Tensor) -> Tensor:
            if not x.shape[-2]:  # a chunk that does not end its prompt needs no logits
                return x.new_empty(*x.shape[:-1], width)
            return product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], width)

        head.forward = forward  # type: ignore[method-assign, assignment]
        lean.parts.append(head)


def _straighten(decoder: Any, lean: LeanPatch, seen: _Seen) -> None:
    """Replaces the decoder's `forward` by a plain loop over its layers and a norm in four
    operations, without the library's masks and decorators, if the decoder has no other parts."""
    if {name for name, _ in decoder.named_children()} != _DECODER:
        return
    stock = decoder.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if args or kwargs.get("dspark_plan") is None or kwargs.get("input_ids") is None:
            return stock(*args, **kwargs)
        x = decoder.embed_tokens(kwargs["input_ids"])
        rotation = decoder.rotary_emb(x, kwargs["position_ids"])
        passed = {key: value for key, value in kwargs.items() if key.startswith("dspark_")}
        for layer in decoder.layers:
            x = layer(x, position_embeddings=rotation, **passed)
        return BaseModelOutputWithPast(last_hidden_state=norm(x))

    with contextlib.suppress(Exception):  # any error of an unknown decoder keeps its own code
        norm = Norm(decoder.norm)
        made = forward(*seen.args, **(seen.kwargs | {"dspark_pool": KeyValuePool(64)}))
        if not seen.args and _close(made.last_hidden_state, seen.output.last_hidden_state):
            decoder.forward = forward
            lean.parts.append(decoder)
