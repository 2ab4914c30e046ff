"""Lean layers say what stock layers say, are used only where they fit, and hooks still see every
layer; and what they stand in for is right by itself."""

from typing import Any

import pytest
import torch
import transformers

from dspark.model.checkpoint import context_length
from dspark.model.products import Product
from tests.architectures.families import SHAPE
from tests.unit.verify_service.test_families import family, loud
from verify_service import lean_model, self_test
from verify_service.model_runner import ModelRunner
from verify_service.stateful import StatefulRunner

# Of four layers those that are replaced.
LEAN = {
    "llama": 4,
    "qwen3": 4,
    "mistral": 4,  # every layer has a window
    "gemma2": 0,  # capped scores and some windows
    "gpt_oss": 0,  # sinks, experts and some windows
    "gemma4": 0,  # two head sizes and values that are keys
    "deepseek_v2": 0,  # values smaller than keys
}


def qwen3(**more: Any) -> Any:
    return transformers.Qwen3Config(**{**SHAPE, "head_dim": 32, **more})


@pytest.mark.parametrize("name", LEAN)
def test_only_layers_of_the_known_shape_are_replaced_and_the_pass_stays_right(name: str) -> None:
    target = family(name)
    cases = self_test.expected(target)
    runner = ModelRunner(target.model, None, 512, lean=True)
    assert runner.lean.layers == LEAN[name]
    assert ("forward" in vars(target.model.get_decoder())) == (runner.lean.layers == 4), (
        "the way through, too"
    )
    assert self_test.disagreement(runner, cases) is None
    runner.lean.undo()
    assert all("forward" not in vars(module) for module in target.model.modules())
    assert self_test.disagreement(ModelRunner(target.model, None, 512), cases) is None
    assert self_test.disagreement(StatefulRunner(target.model, None), cases) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_number_formats_take_the_library_s_norms(dtype: torch.dtype) -> None:
    target = loud(qwen3())
    target.model.to(dtype)
    cases = self_test.expected(target)
    runner = ModelRunner(target.model, None, 512, lean=True)
    assert runner.lean.layers == 4
    assert self_test.disagreement(runner, cases) is None


def test_a_layer_that_only_looks_the_part_keeps_its_own_code() -> None:
    target = loud(qwen3())
    layer = target.model.model.layers[2]
    layer.mlp.act_fn = torch.nn.GELU()  # fine: the activation is the module's own
    stock = target.model.model.layers[1].forward
    target.model.model.layers[1].forward = lambda *a, **k: 1.5 * stock(*a, **k)
    runner = ModelRunner(target.model, None, 512, lean=True)
    assert runner.lean.layers == 3
    assert target.model.model.layers[1] not in runner.lean.parts


def test_every_form_of_a_product_is_the_product() -> None:
    forms = set()
    torch.manual_seed(0)
    for scale, bf16 in ((0.1, True), (0.1, False), (1e6, True)):
        for bias in (False, True):
            layers = [torch.nn.Linear(64, n, bias=bias).requires_grad_(False) for n in (40, 24)]
            for layer in layers:
                layer.weight.mul_(scale)
                if bf16:
                    layer.weight.copy_(layer.weight.bfloat16())
            x, residual = torch.randn(5, 64), torch.randn(5, 64)
            expected = torch.cat([layer(x) for layer in layers], dim=-1)
            product = Product(layers)
            forms.add(product.form)
            torch.testing.assert_close(product(x), expected, rtol=1e-5, atol=1e-5 * scale)
            torch.testing.assert_close(
                product.plus(x, residual), expected + residual, rtol=1e-5, atol=1e-5 * scale + 1e-5
            )
            torch.testing.assert_close(torch.cat([layer(x) for layer in layers], dim=-1), expected)
    assert forms == {"half", "columns"}


def test_weights_that_fp16_would_change_are_not_read_in_fp16() -> None:
    layer = torch.nn.Linear(16, 16, bias=False).requires_grad_(False)
    layer.weight.copy_(layer.weight.bfloat16())
    assert Product([layer]).form == "half"
    layer.weight[0, 0] = 0.1  # more digits than fp16 has
    assert Product([layer]).form == "columns"
    layer.weight[0, 0] = 1e-9  # below the smallest fp16 number: no sum can tell
    assert Product([layer]).form == "half"
    own = Product([layer], may_copy=False)
    assert (own.copied, own._weight.data_ptr()) == (0, layer.weight.data_ptr())
    assert Product([layer]).copied == layer.weight.numel() * 2
    layer.weight[0, 0] = 0.1
    assert Product([layer]).copied == layer.weight.numel() * 4


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_layers_are_tried_at_the_end_of_the_longest_text_that_is_served(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": factor}
    target = loud(qwen3(rope_parameters=rope | {"original_max_position_embeddings": 512}))
    passed, places = lean_model.packed_pass, list[int]()

    def told(model: Any, plan: Any, *rest: Any, **more: Any) -> Any:
        places.append(int(plan.positions.max()))
        return passed(model, plan, *rest, **more)

    monkeypatch.setattr(lean_model, "packed_pass", told)
    assert ModelRunner(target.model, None, 512, lean=True).lean.layers == 4
    end = context_length(target.model.config)
    assert end == 512 * factor
    assert end - 48 < places[0] < end
