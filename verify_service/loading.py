"""Loads a verifier from its configuration: weights on a device, projection, pool size and runner.

It decides three things once: device and dtype, which context projection belongs to the target, and
whether the packed attention path is right for this model. A model that cannot be served is refused
here, with the reason.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import structlog
import torch

from dspark.errors import CheckpointError, ConfigError
from dspark.model.checkpoint import LoadedTarget, fingerprint, load_projection, load_target
from dspark.model.config_file import read_drafter_config
from dspark.model.context import Projection
from dspark.model.location import locate
from dspark.model.pairing import mismatch
from dspark.model.placement import card_memory, free_bytes, pick_device, pick_dtype, slot_bytes, use
from dspark.model.target import TargetTaps, decoder_layers
from dspark.runtime.process import threads_for
from verify_service import kernels, reach, rotation, self_test
from verify_service.config import KV_TOKENS, VerifyConfig
from verify_service.model_runner import ModelRunner, Runner
from verify_service.ranks import Ranks, smallest
from verify_service.stateful import StatefulRunner

log = structlog.get_logger("dspark.verify")

WIDEST = 1024  # most tokens of a pass with logits for each, for the memory estimate


class VerifierParts(NamedTuple):
    """Parts of a loaded engine."""

    target: LoadedTarget
    runner: Runner
    projection: Projection | None
    fingerprint: str
    config: VerifyConfig  # with `kv_tokens` set to the size of the pool


def load_parts(config: VerifyConfig) -> VerifierParts:
    """Loads all parts onto the device; call it on the thread that will own the device."""
    if config.tensor_parallel_size == 1:
        return _parts(config, None)
    others = Ranks(config)
    with others.loading():
        return _parts(config, others)


def load_rank(config: VerifyConfig, rank: int) -> ModelRunner:
    """The runner of another rank than 0: the same steps as at rank 0, which has all the rest."""
    device, dtype = _placed(config, rank)
    target = _target(config, device, dtype)
    config = _sized_alike(config, target, device, dtype)
    runner = choose_runner(config, target, None)
    assert isinstance(runner, ModelRunner)
    return runner


def _parts(config: VerifyConfig, others: Ranks | None) -> VerifierParts:
    device, dtype = _placed(config, 0)
    target = _target(config, device, dtype)
    projection = None
    if config.drafter is not None:
        folder = locate(config.drafter, revision=config.drafter_revision)
        problem = mismatch(
            read_drafter_config(folder),
            folder,
            target=target.folder,
            hidden_size=target.hidden_size,
            layers=target.num_layers,
            vocab_size=target.vocab_size,
        )
        if problem is not None:
            raise CheckpointError(problem)
        projection = load_projection(folder, dtype=dtype, device=device)
        projection.serve_rows()
    asked = config
    config = _sized_alike(config, target, device, dtype)
    taps = None
    if projection is not None and projection.target_layer_ids:
        taps = TargetTaps(target.model, projection.target_layer_ids).attach()
    try:
        runner = choose_runner(config, target, taps)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"verify.{'kv_tokens' if asked.kv_tokens else 'gpu_memory_utilization'}: a pool of "
            f"{config.kv_tokens} slots leaves no room for a pass on {device}: "
            f"{str(error).partition('.')[0]}"
        ) from error
    if isinstance(runner, ModelRunner):
        runner.others = others
    if not asked.kv_tokens and runner.path == "stateful" and card_memory(device) is not None:
        # A pass copies all its keys and values and keeps the old ones until the next pass: halve.
        kept = config.state_cache_mb << 20 if config.prefix_cache and runner.shares_prefixes else 0
        config = sized(asked, target, device, dtype, beside=kept)
        config = replace(
            config, kv_tokens=max(config.kv_tokens // 2 // config.page_size, 1) * config.page_size
        )
    version = fingerprint(config.target, revision=config.target_revision)
    return VerifierParts(target, runner, projection, version, config)


def _placed(config: VerifyConfig, rank: int) -> tuple[torch.device, torch.dtype]:
    """Device and number format of a rank; sets the threads of this one."""
    size = config.tensor_parallel_size
    torch.set_num_threads(max((config.threads or threads_for(verifies=True)) // size, 1))
    device = pick_device(config.device, key="verify.device")
    if size > 1 and device.type != "cpu":
        device = torch.device(device.type, rank)
    use(device)
    return device, pick_dtype(config.dtype, device, key="verify.dtype")


def _target(config: VerifyConfig, device: torch.device, dtype: torch.dtype) -> LoadedTarget:
    """The target, or this rank's part of it."""
    return load_target(
        config.target,
        dtype=dtype,
        device=device,
        revision=config.target_revision,
        ranks=config.tensor_parallel_size,
    )


def _sized_alike(
    config: VerifyConfig, target: LoadedTarget, device: torch.device, dtype: torch.dtype
) -> VerifyConfig:
    """The configuration with a pool that every rank has room for."""
    config = sized(config, target, device, dtype)
    if config.tensor_parallel_size > 1:
        config = replace(config, kv_tokens=smallest(config.kv_tokens))
    check_room(config, target, device, dtype)
    return config


def sized(
    config: VerifyConfig,
    target: LoadedTarget,
    device: torch.device,
    dtype: torch.dtype,
    *,
    beside: int = 0,
) -> VerifyConfig:
    """The configuration with `kv_tokens` from free GPU memory less `beside` bytes, if not set.
    Raises ConfigError if no page fits."""
    if config.kv_tokens:
        return config
    each, memory = _slot_bytes(config, target, device, dtype), card_memory(device)
    if memory is None or not each:
        return replace(config, kv_tokens=KV_TOKENS)
    free, whole = memory
    left = int(free - (1.0 - config.gpu_memory_utilization) * whole) - pass_bytes(
        config, target, dtype
    )
    tokens = (left - beside) // each // config.page_size * config.page_size
    if tokens < config.page_size:
        raise ConfigError(
            f"verify.gpu_memory_utilization: {config.gpu_memory_utilization:g} of "
            f"{whole / 1e9:.1f} GB leaves no page of the key-value pool beside the "
            f"weights{' and verify.state_cache_mb' * bool(beside)} ({free / 1e9:.1f} GB are free "
            f"on {device})"
        )
    log.info(
        "verify.kv_pool",
        tokens=tokens,
        gigabytes=round(tokens * each / 1e9, 1),
        free=round(free / 1e9, 1),
    )
    return replace(config, kv_tokens=tokens)


def _slot_bytes(
    config: VerifyConfig, target: LoadedTarget, device: torch.device, dtype: torch.dtype
) -> int | None:
    """Bytes per token slot on this device, which ranks share if it is the processors; None for
    unknown layers, which the self-test judges. By some plans every rank has the keys of all
    heads."""
    try:
        each = slot_bytes(decoder_layers(target.model), dtype)
    except CheckpointError:
        return None
    size = config.tensor_parallel_size
    if each is None or size == 1:
        return each
    divided = any(
        name.endswith("k_proj") and style == "colwise"
        for name, style in target.model.tp_plan.items()
    )
    return each * (size if device.type == "cpu" else 1) // (size if divided else 1)


def pass_bytes(config: VerifyConfig, target: LoadedTarget, dtype: torch.dtype) -> int:
    """Bytes that the largest pass needs beside keys and values: logits, the rule's tensors,
    activations."""
    tokens = min(config.max_batch_tokens, WIDEST)
    return tokens * (
        target.vocab_size * (dtype.itemsize + 4 * 8) + 16 * target.hidden_size * dtype.itemsize
    )


def check_room(
    config: VerifyConfig, target: LoadedTarget, device: torch.device, dtype: torch.dtype
) -> None:
    """Raises ConfigError if the pool does not fit into the memory left beside the weights."""
    each, there = _slot_bytes(config, target, device, dtype), free_bytes(device)
    if there is not None and card_memory(device) is not None:
        there = max(there - pass_bytes(config, target, dtype), 0)
    if not each or there is None or config.kv_tokens * each <= there:
        return
    raise ConfigError(
        f"verify.kv_tokens: {config.kv_tokens} slots of {each} bytes take "
        f"{config.kv_tokens * each / 1e9:.1f} GB, and "
        f"{there / 1e9:.1f} GB are free on {device} beside weights and a pass: {there // each} "
        "would fit"
    )


def choose_runner(config: VerifyConfig, target: LoadedTarget, taps: TargetTaps | None) -> Runner:
    """The paged runner if it is right for the target, else a stateful one. Raises CheckpointError
    if none is."""
    try:
        cases = self_test.expected(target)
        forgets = self_test.forgets(target, cases)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any error here means that the library cannot run it
        raise CheckpointError(
            f"{config.target}: not eligible as a target: the library itself cannot run it "
            f"({type(error).__name__}: {error})"
        ) from error
    if forgets and not self_test.looks_ahead(target, cases):
        raise CheckpointError(
            f"{config.target}: not eligible as a target: with its cache the library gives other "
            "answers than without"
        )
    reason = "asked for by configuration"
    if config.attention == "auto":
        packed = _packed(config, target, taps, cases)
        if not isinstance(packed, str):
            return packed
        reason = packed
    if config.tensor_parallel_size > 1:
        raise CheckpointError(
            f"{config.target}: not eligible as a target over several devices, where passes are "
            f"packed: {reason}"
        )
    for single, together in ((False, True), (False, False), (True, False)):
        stateful = StatefulRunner(target.model, taps, reason, single=single, together=together)
        problem = self_test.disagreement(stateful, cases)
        if problem is None:
            log.warning(
                "verify.attention_path", path=stateful.path, make=stateful.make, reason=reason
            )
            return stateful
    if self_test.looks_ahead(target, cases):
        raise CheckpointError(
            f"{config.target}: not eligible as a target: what it makes of a token depends on the "
            "tokens behind it, its attention is not causal"
        )
    raise CheckpointError(
        f"{config.target}: not eligible as a target: paged: {reason}; stateful: {problem}"
    )


def _packed(
    config: VerifyConfig, target: LoadedTarget, taps: TargetTaps | None, cases: list[self_test.Case]
) -> ModelRunner | str:
    """The fastest packed runner that passes the self-test, or why none does."""
    model = target.model
    turned = rotation.find(model)
    if turned is not None and turned.switches_at is not None:
        return (
            f"past {turned.switches_at} tokens this model turns all of a sequence's keys in "
            "another way"
        )
    num_slots = config.kv_tokens // config.page_size * config.page_size
    if (least := self_test.least_slots(cases, config.page_size)) > num_slots:
        raise ConfigError(
            f"verify.kv_tokens: {config.kv_tokens} are {num_slots} slots in pages of "
            f"{config.page_size}; the self-test of this target needs {least}, and answers need more"
        )
    if (reason := reach.unlike(model)) is not None:
        return reason
    device, dtype = next(model.parameters()).device, model.dtype
    found = kernels.find(device, dtype, config.page_size) if config.attention_kernel else None
    tried: list[tuple[str, kernels.Kernel | None]] = [*([found] if found else ()), ("gather", None)]
    reason = "nothing was tried"
    alone = config.tensor_parallel_size == 1  # else layers exchange what they compute
    for (name, kernel), lean in itertools.product(
        tried, (True, False) if config.lean_layers and alone else (False,)
    ):
        packed = ModelRunner(
            model,
            taps,
            num_slots,
            lean=lean,
            kernel=kernel,
            page_size=config.page_size,
        )
        if kernel is not None and config.cuda_graphs and alone:
            packed.record_graphs()
        problem = self_test.disagreement(packed, cases)
        if problem is None:
            log.info(
                "verify.attention_path",
                path=packed.path,
                kernel=name,
                lean_layers=packed.lean.layers,
            )
            return packed
        packed.lean.undo()
        reason = problem
        log.warning("verify.self_test", path=packed.path, lean_layers=lean, reason=reason)
    return reason
