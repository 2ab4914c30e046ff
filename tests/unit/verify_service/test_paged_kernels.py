"""Kernels that read pages in place: found by what they can do, fed the right tables, padded without
a trace."""

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.model.checkpoint import LoadedTarget, load_target
from tests.architectures.serving import prompt as tokens
from tests.unit.verify_service.test_families import family
from verify_service import graphs, kernels, self_test
from verify_service.config import VerifyConfig
from verify_service.loading import choose_runner
from verify_service.model_runner import ModelRunner
from verify_service.paged_plan import PlanShape, arrays_of, exact_shape
from verify_service.plan import Segment

PAGE = 4
CPU = torch.device("cpu")


def shape_of(segments: list[Segment], page_size: int) -> PlanShape | None:
    return graphs.padded(exact_shape(segments, page_size))


@pytest.mark.parametrize("lean", [False, True])
def test_a_runner_with_a_kernel_passes_the_self_test(target: LoadedTarget, lean: bool) -> None:
    cases = self_test.expected(target)
    runner = ModelRunner(
        target.model, None, 128, kernel=kernels.reference, page_size=PAGE, lean=lean
    )
    assert self_test.disagreement(runner, cases) is None
    runner.lean.undo()


def test_a_model_that_makes_all_logits_where_few_are_asked_for_is_told(golden_target: Path) -> None:
    model, stock = (target := load_target(golden_target)).model, target.model.forward
    cases = self_test.expected(target)
    model.forward = lambda logits_to_keep=0, **told: stock(**told)
    assert "differ" in (self_test.disagreement(ModelRunner(model, None, 128), cases) or "")


def test_a_kernel_that_is_given_other_pages_is_not_served_with(
    golden_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_pages(q: Any, k: Any, v: Any, at: Any, *how: Any) -> torch.Tensor:
        return kernels.reference(q, k, v, replace(at, blocks=at.blocks.flip(1)), *how)

    config = VerifyConfig(target="nowhere", kv_tokens=2048, page_size=PAGE)
    for kernel, slot_page in ((kernels.reference, PAGE), (other_pages, 1)):
        monkeypatch.setattr(kernels, "find", lambda *_, kernel=kernel: ("named", kernel))
        runner = choose_runner(config, load_target(golden_target), None)
        assert isinstance(runner, ModelRunner)
        assert runner.slot_page == slot_page


def test_windows_reach_the_kernel_and_caps_rule_it_out() -> None:
    for name, said in (("mistral", "None"), ("gemma2", "NotImplementedError")):
        target = family(name)
        cases = self_test.expected(target)
        runner = ModelRunner(target.model, None, 512, kernel=kernels.reference, page_size=PAGE)
        assert str(self_test.disagreement(runner, cases)).startswith(said)


def test_what_is_left_over_in_a_recorded_pass_changes_nothing(target: LoadedTarget) -> None:
    runner = ModelRunner(target.model, None, 64, kernel=kernels.reference, page_size=PAGE)
    ids = [tokens(13, 1), tokens(6, 2)]
    slots = [
        [4 * (2 * (p // 4)) + p % 4 for p in range(13)],
        [4 * (2 * (p // 4) + 1) + p % 4 for p in range(6)],
    ]
    runner.run([Segment(s, 0, ids[s][:-3], slots[s][: len(ids[s]) - 3]) for s in (0, 1)], [])
    tail = [Segment(s, len(ids[s]) - 3, ids[s][-3:], slots[s]) for s in (0, 1)]
    exact = runner.run(tail, None).logits
    shape = shape_of(tail, PAGE)
    assert shape == PlanShape(8, 4, 4, 8)
    plan = arrays_of(tail, shape, PAGE, 16).on(CPU).plan(shape, kernels.reference, PAGE)
    with torch.inference_mode():
        padded, _ = runner._forward(plan)
    assert padded.shape[0] == 8
    torch.testing.assert_close(padded[:6], exact, rtol=1e-5, atol=1e-4)


def test_tiers_hold_what_they_are_asked_to_or_say_no() -> None:
    tiers = {1: 1, 3: 4, 64: 64, 65: 96, 512: 512, 513: 0}
    assert {count: graphs.tier(count, graphs.TOKENS) for count in tiers} == tiers
    one = [Segment(0, 100, [5], range(101))]
    assert shape_of(one, 16) == PlanShape(1, 1, 8, 1)
    assert exact_shape(one, 16) == PlanShape(1, 1, 7, 1)
    assert shape_of([Segment(0, 0, [5] * 600, range(600))], 16) is None
    assert shape_of([Segment(0, 16 * 600, [5], range(16 * 600 + 1))], 16) is None
    cohort = [Segment(n, 40, [1, 2, 3], range(64 * n, 64 * n + 43)) for n in range(16)]
    assert shape_of(cohort, 16) == PlanShape(48, 16, 4, 8), "nothing is left over for one"
    assert shape_of(cohort[:15], 16) == PlanShape(48, 16, 4, 8)


def test_tables_name_pages_and_boundaries() -> None:
    made = arrays_of(
        [Segment(0, 5, [7, 8], [8, 9, 10, 11, 0, 1, 2]), Segment(1, 0, [9], [4])],
        PlanShape(4, 4, 3, 8),
        4,
        9,
    )
    assert made.rows.tolist() == [[7, 8, 9, 0], [5, 6, 0, 0], [1, 2, 4, 36]]
    assert made.sizes.tolist() == [0, 2, 3, 4, 4, 7, 1, 1, 0]
    assert made.blocks.tolist() == [[2, 0, 9], [1, 9, 9], [9, 9, 9], [9, 9, 9]]


def test_no_kernel_is_found_for_other_formats() -> None:
    assert kernels.find(CPU, torch.bfloat16, 256) is None
    assert kernels.find(torch.device("cuda"), torch.float32, 256) is None


def test_the_reference_passes_the_trial_and_a_wrong_kernel_or_a_raising_one_does_not() -> None:
    assert kernels.problem(kernels.reference, CPU, torch.float32, 16) is None

    def anti_causal(
        q: Any, k: Any, v: Any, at: kernels.Tables, scale: Any, window: Any
    ) -> torch.Tensor:
        return kernels.reference(q, k, v, at._replace(used_k=at.used_k - 1), scale, window)

    def picky(*_: Any) -> torch.Tensor:
        raise RuntimeError("Paged KV cache block size must be divisible by 256")

    assert "differ" in (kernels.problem(anti_causal, CPU, torch.float32, 16) or "")
    assert "divisible by 256" in (kernels.problem(picky, CPU, torch.float32, 16) or "")


def test_an_older_signature_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    old = types.ModuleType("torch.nn.attention.varlen")
    old.varlen_attn = lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False: (
        query
    )  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", old)
    assert kernels.torch_kernel() is None
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert kernels.flash_kernel() is None
    package = types.ModuleType("flash_attn")
    package.flash_attn_varlen_func = lambda q, k, v, block_table=None, **_: q  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    assert kernels.flash_kernel() is not None


def test_passes_that_rounds_will_have_are_recorded_at_the_start() -> None:
    shapes = graphs.shapes_at_start(64, 512, 256)
    assert 0 < len(shapes) <= graphs.AT_START < graphs.MOST_GRAPHS
    for sequences in (1, 8, 64):
        for count in (1, graphs.BLOCK):
            cohort = [Segment(n, 900, [5] * count, range(900 + count)) for n in range(sequences)]
            assert shape_of(cohort, 256) in shapes
    assert not any(shape.tokens > 16 for shape in graphs.shapes_at_start(64, 16, 256))
    assert max(shape.sequences for shape in graphs.shapes_at_start(4, 512, 16)) <= 8
