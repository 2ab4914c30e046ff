"""Matrix products with few rows, several weights at once, each stored the way the device reads it
fastest.

A step of a server multiplies 1 to some hundred rows with every weight of a model, and with few rows
the cost is the bytes of weight that are read. On a CPU in fp32 two forms beat the checkpoint's
[out, in]:

* half: weights whose numbers fp16 holds exactly (those of a bf16 checkpoint do) are read in fp16,
  multiplied and summed in fp32: half the bytes, the same products;
* columns: [in, out], for others.

Elsewhere the checkpoint's layout stays. The form of a weight depends on its numbers alone, never on
a clock, so that two processes round alike.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

HALF_ERROR = 1e-7  # relative change of a weight, in norm, that is ignored: one rounding of fp32
COPY_AT_MOST = 64 << 20  # bytes a second copy of a tied weight may take


class Product:
    """x [T, in] -> [T, sum of outs] for the weights [out, in] of several linear layers that read
    the same rows.

    The layers keep working: where weights are joined in one storage, theirs become views of it.
    """

    def __init__(self, layers: Sequence[nn.Linear], *, may_copy: bool = True) -> None:
        weights = [layer.weight.detach() for layer in layers]
        joined = torch.cat(weights) if len(weights) > 1 else weights[0]
        self._bias = _joined_bias(layers)
        self._half: Any = None
        self.form = _choose(joined, may_copy)
        self.copied = 0  # bytes beyond the layers' own
        if self.form == "half":
            self._half = torch.ops.quantized.linear_prepack_fp16(joined.contiguous(), self._bias)
            self.copied = joined.numel() * 2
        else:
            own = len(layers) == 1  # in the layer's storage, which a tied weight shares
            columns = self.form == "columns" and joined.is_contiguous() and (may_copy or not own)
            self._weight = joined.t().contiguous().t() if columns else joined
            self.copied = joined.numel() * 4 if columns and own else 0
            if not own:
                parts = torch.split(self._weight, [w.shape[0] for w in weights])
                for layer, part in zip(layers, parts, strict=True):
                    layer.weight = nn.Parameter(part, requires_grad=False)

    def __call__(self, x: Tensor) -> Tensor:
        if self._half is not None:
            half: Tensor = _half_product()(x, self._half)
            return half
        return linear(x, self._weight, self._bias)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus residual [T, out]."""
        if self._half is None and self._bias is None:
            return torch.addmm(residual, x, self._weight.t())
        return self(x).add_(residual)


@functools.cache
def _half_product() -> Any:
    """The operation itself if it is accessible, as its wrapper inspects the arguments at every
    call."""
    overload = torch.ops.quantized.linear_dynamic_fp16.default
    return getattr(overload, "_op", overload)


def _joined_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    return torch.cat(
        [
            layer.weight.new_zeros(layer.out_features)
            if layer.bias is None
            else layer.bias.detach()
            for layer in layers
        ]
    )


def _choose(weight: Tensor, may_copy: bool) -> str:
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "plain"
    return "half" if may_copy and half_works() and _fits_half(weight) else "columns"


def _fits_half(weight: Tensor) -> bool:
    """Whether fp16 changes the weight by less than the error of fp32 sums: denormals of a bf16
    weight may change."""
    off = weight.half().float() - weight  # infinite where fp16 overflows
    return bool(off.norm() <= HALF_ERROR * weight.norm())


@functools.cache
@torch.inference_mode()
def half_works() -> bool:
    """Whether this build multiplies fp32 rows with fp16 weights, and sums in fp32."""
    draw = torch.Generator().manual_seed(3)
    x, weight = torch.randn(3, 40, generator=draw), torch.randn(48, 40, generator=draw)
    weight, bias = weight.bfloat16().float(), torch.randn(48, generator=draw)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.ops.quantized.linear_dynamic_fp16(
                x, torch.ops.quantized.linear_prepack_fp16(weight, bias)
            )
    except (RuntimeError, AttributeError):
        return False
    return torch.allclose(made, linear(x, weight, bias), atol=1e-5)


def favour_few_rows(module: nn.Module) -> None:
    """Stores every fp32 linear weight on the CPU by columns.

    A tied embedding reads rows, which this would scatter: the linear layer gets a copy of its own
    if it is small, and stays as it is if not.
    """
    shared = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    for part in module.modules():
        if not isinstance(part, nn.Linear):
            continue
        weight = part.weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            continue
        if id(weight) not in shared:
            weight.data = weight.data.t().contiguous().t()
        elif weight.numel() * weight.element_size() <= COPY_AT_MOST:
            part.weight = nn.Parameter(
                weight.data.t().contiguous().t(), requires_grad=weight.requires_grad
            )
