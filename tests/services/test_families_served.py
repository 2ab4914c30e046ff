"""Drafters of every family, format and layer kind behind real services on loopback: no id is ever
changed by one.

Weights are the reference's where they are present and random ones otherwise; a language model that
is the target itself has all its drafts accepted, which only a right context allows.
"""

import asyncio
import itertools
import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.errors import CheckpointError
from dspark.model.formats.convert import to_speculators
from tests.architectures import deepseek_v4
from tests.faults.oracle import plain_greedy
from tests.released.weights import write_thin
from tests.services.cell import Cell
from tests.unit.model.golden import altered, fresh
from tests.waiting import until
from verify_service.feature_store import FeatureStore

DATA = Path(__file__).parents[1] / "data"
GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
V4 = GOLDEN.parent / "golden-deepseek-v4" / "dspark_deepseek_v4"
TARGET, DSPARK = DATA / "target_qwen3", DATA / "dspark_vanilla"
KEPT = sorted(set(range(0, 128, 3)) | {1, 2, 4, 5})

Make = Callable[[Path], tuple[Path, Path]]  # folder to write in -> (target, drafter)


def _random(folder: Path, **shape: Any) -> tuple[Path, Path]:
    headless = {"enable_confidence_head": False, "confidence_head_with_markov": False}
    plain = {"block_size": 4, "mask_token_id": -1, "markov_rank": 0, "markov_head_type": "none"}
    return TARGET, fresh(folder / "drafter", num_hidden_layers=1, **plain, **headless, **shape)


def _twin(folder: Path, **options: Any) -> tuple[Path, Path]:
    to_speculators(DSPARK, folder / "twin", **options)
    return TARGET, folder / "twin"


def _inside(folder: Path) -> tuple[Path, Path]:
    deepseek_v4.write(folder)
    return folder, folder


MADE: dict[str, Make] = {
    "a twin in the other format, tables left out": partial(_twin, share_tables=True),
    "a twin with a third of the tokens": partial(_twin, keep_tokens=KEPT),
    "eagle3, random": partial(_random, kind="eagle3", target_layer_ids=(0, 2, 4)),
    "mtp, random": partial(_random, kind="mtp", target_layer_ids=(5,)),
    "the target as its own drafter": lambda folder: (TARGET, TARGET),
    "deepseek-v4's module, random": _inside,
}
REFERENCE = {
    name: (GOLDEN / ("target_gemma4" if "gemma4" in name else "target_qwen3"), GOLDEN / name)
    for name in ("dflash", "eagle3", "dspark_gemma4", "dflash_gemma4", "eagle3_gemma4")
}
REFERENCE["deepseek_v4"] = (V4, V4)
THERE = all(folder.is_dir() for pair in REFERENCE.values() for folder in pair)
WITHOUT = pytest.mark.skipif(not THERE, reason=f"no reference drafters in {GOLDEN}")
MADE |= {name: (lambda folder, name=name: REFERENCE[name]) for name in REFERENCE}  # type: ignore[misc]
THIN = (
    "dspark_qwen3_4b_block7",
    "dflash_qwen3_4b_block7",
    "eagle3_qwen3_4b_ttt7",
    "dspark_gemma4_12b_block7",
)


class Served(Cell):
    async def start(self) -> None:
        await self.verifier()
        await self.drafter(target=self._verify["target"])
        self.asked = self.client(await self.coordinator())

    def counted(self, name: str) -> float:
        return float(self.serving.metrics.value(f"spec_decode_num_{name}_tokens_total"))

    async def answers(
        self, prompts: list[list[int]], count: int, **options: Any
    ) -> list[list[int]]:
        options |= {"timeout": 120.0, "ignore_eos": True, "max_tokens": count}
        asked = (self.asked.complete(prompt, **options) for prompt in prompts)
        return [list(completion.token_ids) for completion in await asyncio.gather(*asked)]


def _prompts(count: int, longest: int = 40) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(2, 120) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow, WITHOUT]) if n in REFERENCE else n for n in MADE],
)
async def test_answers_are_those_of_plain_decoding(tmp_path: Path, name: str) -> None:
    target, made = MADE[name](tmp_path)
    prompts = [*_prompts(3), [9]]
    async with Served(target, made) as cell:
        await cell.start()
        plain = plain_greedy(target, prompts, 24)
        for policy in ("fixed:4", "adaptive"):
            assert await cell.answers(prompts, 24, temperature=0.0, policy=policy) == plain
        assert cell.counted("draft") > 0
        if name == "the target as its own drafter":
            before = cell.counted("draft"), cell.counted("accepted")
            await cell.answers(prompts[:1], 41, temperature=0.0, policy="fixed:4")
            drafted = cell.counted("draft") - before[0]
            accepted = cell.counted("accepted") - before[1]
            assert accepted / drafted > 0.9, "it says what the target says"
        elif "random" not in name:
            assert cell.counted("accepted") > 0
        # The same noise on both sides: a seed fixes the answer, whoever drafts.
        params = {"temperature": 0.9, "top_k": 50, "rule": "coupled"}
        sampled = [
            [
                await cell.answers([prompt], 16, seed=seed, policy=policy, **params)
                for seed, prompt in enumerate(prompts[:2])
            ]
            for policy in ("fixed:4", "off")
        ]
        assert sampled[0] == sampled[1]
        for rule in ("token", "block"):  # ratio rules take a q over the whole vocabulary
            await cell.answers(prompts, 16, temperature=1.0, policy="fixed:4", rule=rule)
        assert cell.serving.metrics.value("refusals_total", reason="invalid") == 0


@pytest.mark.parametrize(
    "name",
    [
        "eagle3, random",
        "mtp, random",
        "the target as its own drafter",
        "deepseek-v4's module, random",
    ],
)
async def test_a_drafter_that_comes_late_is_filled_by_sending_again(
    tmp_path: Path, name: str
) -> None:
    target, made = MADE[name](tmp_path)
    (prompt,) = _prompts(1)
    async with Cell(target, made) as cell:
        await cell.verifier()
        first = await cell.drafter()
        coordinator = await cell.coordinator()
        client, metrics = cell.client(coordinator), coordinator.metrics
        options = {"max_tokens": 400, "temperature": 0.0, "ignore_eos": True, "policy": "fixed:3"}
        running = asyncio.ensure_future(client.complete(prompt, timeout=120.0, **options))
        await until(lambda: metrics.value("rounds_total") > 5)
        await first.stop(0.0)
        await until(lambda: metrics.value("empty_blocks_total", reason="no_drafter") > 3)
        before = metrics.value("spec_decode_num_draft_tokens_total")
        await cell.drafter()
        there = [each for each in cell.addresses() if each.name != "draft/0"]
        coordinator.cell.membership.announce(there)
        completion = await running
        assert metrics.value("resends_total", reason="attached") == 1
        assert metrics.value("spec_decode_num_draft_tokens_total") > before
        assert list(completion.token_ids) == plain_greedy(target, [prompt], 400)[0]


@pytest.mark.parametrize("longest", [10, 200], ids=["inline", "in bulk"])
async def test_rows_that_are_not_finite_cost_no_other_sequence_its_drafts(
    monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    """A projection of fp16 may overflow at one token again and again."""
    store, spoilt = FeatureStore.put, itertools.count()

    def put(self: FeatureStore, slots: Any, rows: Any) -> None:
        store(self, slots, rows)
        if next(spoilt) % 5 == 0:
            store(self, slots[:1], torch.full_like(rows[:1], float("nan")))

    monkeypatch.setattr(FeatureStore, "put", put)
    prompts = _prompts(4, longest)
    async with Served(TARGET, DSPARK) as cell:
        await cell.start()
        options: dict[str, Any] = {"temperature": 0.0, "policy": "fixed:4"}
        assert await cell.answers(prompts, 24, **options) == plain_greedy(TARGET, prompts, 24)
        metrics, sent = cell.serving.metrics, cell.verifiers[0].metrics
        for why in ("drafter_lost", "invalid"):
            assert metrics.value("empty_blocks_total", reason=why) == 0, why
        assert sent.value("dropped_total", kind="feature_chunk", reason="refused_by_sink") == 0
        assert sent.value("dropped_total", kind="feature_rows", reason="not_finite") > 0
        assert cell.counted("draft") > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_target_layers": 8}, "was made for a target of 8 layers, .* has 6"),
        ({"vocab_size": 127, "mask_token_id": 5}, "drafts from a vocabulary of 127, .* has 128"),
        ({"hidden_size": 32}, "reads hidden states of 32 values, .* has 64"),
        (
            {"num_target_layers": 0, "target_layer_ids": [0, 1, 2, 3, 6]},
            "taps layer 6, .* has 6 layers",
        ),
    ],
)
async def test_a_verifier_refuses_a_drafter_of_another_target(
    cell: Cell, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    altered(tmp_path, change, of=DSPARK)
    with pytest.raises(CheckpointError, match=says):
        await cell.verifier(target=str(TARGET), drafter=str(tmp_path))


async def test_a_language_model_with_another_tokenizer_is_refused(
    cell: Cell, tmp_path: Path
) -> None:
    for name, letters in (("target", "abc"), ("drafter", "acb")):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(TARGET / file, folder / file)
        vocab = {letter: token for token, letter in enumerate(letters)}
        told = {"model": {"vocab": vocab}, "added_tokens": []}
        (folder / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="token 1 is 'c' there and 'b' here"):
        await cell.verifier(target=str(tmp_path / "target"), drafter=str(tmp_path / "drafter"))


@pytest.mark.slow
@WITHOUT
@pytest.mark.parametrize("name", REFERENCE)
async def test_a_served_drafter_is_as_good_as_the_reference_s(name: str) -> None:
    """A drafter that is wrong changes no id; only what is accepted shows it."""
    target, folder = REFERENCE[name]
    async with Served(target, folder) as cell:
        await cell.start()
        slots = cell.drafters[0].engine.shape.block_size
        rounds = accepted = allowed = 0
        for case in json.loads((folder / "decode_cases.json").read_text()):
            if case["confidence_threshold"] > 0:
                continue
            completion = await cell.asked.complete(
                case["prompt_ids"],
                timeout=120.0,
                max_tokens=case["max_new_tokens"],
                stop_token_ids=case["stop_token_ids"],
                temperature=0.0,
                policy=f"fixed:{slots}",
            )
            assert list(completion.token_ids) == case["output_ids"][len(case["prompt_ids"]) :]
            rounds += completion.end.speculation.rounds - len(case["acceptance_lengths"])
            accepted += completion.end.speculation.accepted_tokens - sum(
                case["accepted_draft_lengths"]
            )
            allowed += slots  # the reference's last round may overshoot the answer
    assert -allowed <= accepted <= 0
    assert -3 * 4 <= rounds <= 2, "rows travel as bfloat16, which may turn a draft"


@pytest.mark.slow
@pytest.mark.parametrize("name", THIN)
async def test_released_shapes_made_thin_serve_a_matching_target(tmp_path: Path, name: str) -> None:
    target, made = tmp_path / "target", tmp_path / "drafter"
    write_thin(made, name, target=target)
    prompts = _prompts(2, 20)
    async with Served(target, made) as cell:
        await cell.start()
        for policy in ("fixed:7", "adaptive"):
            assert await cell.answers(prompts, 12, temperature=0.0, policy=policy) == plain_greedy(
                target, prompts, 12
            )
        assert cell.counted("draft") > 0
