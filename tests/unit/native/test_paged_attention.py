"""The compiled attention says what the formula says, on pages in any order, and is left out where
it does not serve."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from dspark.native import attention, compiled
from dspark.native.attention import PagedAttention, Tables
from tests.architectures.families import SHAPE
from tests.unit.verify_service.test_families import family, loud
from verify_service import kernels, self_test
from verify_service.model_runner import ModelRunner
from verify_service.plan import Segment

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(
    compiled.kernels() is None, reason="no C compiler has built the kernels"
)


@pytest.fixture(autouse=True, params=[1, 3], ids=["one thread", "three threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def kernel() -> PagedAttention:
    made = PagedAttention.found()
    assert made is not None
    return made


@pytest.fixture
def served() -> Any:
    """The kernel that a verifier has."""
    name, made = kernels.find(CPU, torch.float32, 16) or ("", None)
    assert name == "cpu_kernel"
    return made


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values).int()


@needs_kernels
@pytest.mark.parametrize("seed", range(40))
def test_any_shape_comes_out_as_by_formula(kernel: PagedAttention, seed: int) -> None:
    draw = np.random.default_rng(seed)
    size = int(draw.choice([6, 8, 20, 32, 64, 80, 128, 256]))
    kv_heads, ratio, members = (int(draw.integers(1, most + 1)) for most in (3, 4, 5))
    page_size = int(draw.choice([1, 4, 16]))
    counts = draw.integers(1, 10, members)
    lengths = counts + draw.integers(0, 90, members)
    pages = int(-(-lengths.max() // page_size))
    blocks = (
        torch.from_numpy(draw.permutation(members * pages + 2)[: members * pages])
        .view(members, pages)
        .int()
    )
    cu_q = torch.from_numpy(np.concatenate(([0], np.cumsum(counts)))).int()
    at = Tables(cu_q, torch.from_numpy(lengths).int(), blocks, int(counts.max()), pages * page_size)
    heads = kv_heads * ratio
    # a view, as layers hand it over
    query = torch.randn(int(counts.sum()), heads + 2 * kv_heads, size)[:, :heads]
    pools = (
        torch.randn(kv_heads, (members * pages + 2) * page_size, size).transpose(0, 1) for _ in "kv"
    )
    keys, values = (pool.view(-1, page_size, kv_heads, size) for pool in pools)
    window = int(draw.integers(1, 40)) if seed % 3 == 0 else None
    made = kernel(query, keys, values, at, None, window)
    torch.testing.assert_close(
        made, kernels.reference(query, keys, values, at, None, window), rtol=1e-5, atol=1e-5
    )


@needs_kernels
def test_how_many_threads_share_the_work_changes_no_bit() -> None:
    draw = torch.Generator().manual_seed(1)
    at = Tables(ints(0, 3, 4, 9), ints(30, 7, 16), ints([0, 1], [2, 3], [4, 5]), 5, 32)
    query = torch.randn(9, 4, 64, generator=draw)
    keys, values = (torch.randn(6, 16, 2, 64, generator=draw) for _ in "kv")
    made = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        kernel = PagedAttention.found()
        assert kernel is not None
        made.append(kernel(query, keys, values, at, None, None))
    assert compiled.parallel() is not None or sys.platform != "linux"
    assert all(torch.equal(made[0], other) for other in made[1:])


@needs_kernels
@pytest.mark.parametrize("queries", [1, 8])  # more than a few lie side by side in registers
def test_large_scores_do_not_overflow(kernel: PagedAttention, queries: int) -> None:
    at = Tables(ints(0, queries), ints(queries + 2), ints([0]), queries, 16)
    query, keys = torch.full((queries, 1, 8), 100.0), torch.zeros(1, 16, 1, 8)
    keys[0, 1] = 100.0
    values = torch.arange(16.0).view(1, 16, 1, 1).expand(1, 16, 1, 8).contiguous()
    assert torch.equal(kernel(query, keys, values, at, None, None), torch.ones(queries, 1, 8))


@needs_kernels
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_models_whose_scores_are_capped_keep_torch_s_attention(name: str, served: Any) -> None:
    target = family(name)
    cases = self_test.expected(target)
    runner = ModelRunner(target.model, None, 512, lean=True, kernel=served, page_size=16)
    problem = self_test.disagreement(runner, cases)
    assert ("no kernel here caps scores" in str(problem)) if name == "gemma2" else problem is None
    runner.lean.undo()


@needs_kernels
@pytest.mark.parametrize(
    "wrong",
    [
        {"blocks": ints([0, 3])},
        {"blocks": ints([-1, 0])},
        {"blocks": ints([0])},
        {"blocks": ints([])},
        {"cu_q": ints(0, 4000), "max_q": 4000},
        {"cu_q": ints(0, 1)},
        {"cu_q": ints(1, 2)},
        {"used_k": ints(-1)},
        {"max_k": 19},
        {"max_q": 1},
        {"used_k": ints(1)},
    ],
)
def test_tables_that_name_what_is_not_there_are_refused(
    kernel: PagedAttention, wrong: dict[str, Any]
) -> None:
    tables = Tables(ints(0, 2), ints(20), ints([0, 2]), 2, 32)
    query, pool = torch.zeros(2, 1, 8), torch.zeros(3, 16, 1, 8)
    assert kernel(query, pool, pool, tables, None, None).shape == (2, 1, 8)
    with pytest.raises(IndexError, match="not among the 3"):
        kernel(query, pool, pool, tables._replace(**wrong), None, None)


@needs_kernels
def test_a_long_prompt_and_a_step_read_what_the_other_wrote(served: Any) -> None:
    target = loud(transformers.Qwen3Config(**{**SHAPE, "head_dim": 32}))
    ids = torch.randint(0, target.vocab_size, (70,)).tolist()
    slots = [p + (48 if p >= 32 else 0) for p in range(70)]  # two runs of pages

    def logits(runner: ModelRunner) -> torch.Tensor:
        runner.run([Segment(0, 0, ids[:40], slots[:40])], [])  # a prompt, by products
        runner.run([Segment(0, 40, ids[40:43], slots[:43])], [])  # a step, by the kernel
        runner.run([Segment(0, 43, ids[43:66], slots[:66])], [])
        return runner.run([Segment(0, 66, ids[66:], slots)], None).logits

    by_kernel = ModelRunner(target.model, None, 512, lean=True, kernel=served, page_size=16)
    made = logits(by_kernel)
    by_kernel.lean.undo()
    torch.testing.assert_close(
        made, logits(ModelRunner(target.model, None, 512)), rtol=1e-4, atol=1e-4
    )


def test_without_the_library_keys_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "kernels", lambda: None)
    assert kernels.find(CPU, torch.float32, 16) is None


@needs_kernels
def test_it_is_found_for_every_page_size() -> None:
    for page_size in (1, 2, 3, 16, 256):
        name, _ = kernels.find(CPU, torch.float32, page_size) or ("", None)
        assert name == "cpu_kernel", page_size


@needs_kernels
def test_other_forms_are_refused(kernel: PagedAttention) -> None:
    q, pool = torch.randn(2, 4, 8), torch.randn(2, 4, 2, 8)
    tables = Tables(ints(0, 2), ints(3), ints([1]), 2, 4)
    right = {"q": q, "k": pool, "v": pool, "at": tables}
    kernel(**right)
    for wrong in (
        {"q": q.double()},
        {"k": pool.bfloat16(), "v": pool.bfloat16()},
        {"v": pool.bfloat16()},
        {"k": pool[..., :4], "v": pool[..., :4]},
        {"q": q[:, :3]},
        {"at": tables._replace(used_k=torch.tensor([3]))},
        {"at": tables._replace(used_k=ints(3, 3))},
        {"at": tables._replace(blocks=ints([1, 0], [1, 0])[:, :1])},
    ):
        with pytest.raises(NotImplementedError):
            kernel(**right | wrong)
