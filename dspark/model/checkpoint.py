"""Loading and saving checkpoints: drafters, the projection alone, targets.

A folder either has exactly the tensors its config calls for, with those shapes and finite values,
or it is refused with every name that is wrong. Paths may be hub ids.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dspark.errors import CheckpointError
from dspark.fingerprint import Fingerprint
from dspark.model.config import DrafterConfig, stretched
from dspark.model.config_file import config_to_json, read_drafter_config
from dspark.model.config_keys import CONFIG_NAME, refuse, show
from dspark.model.context import Projection, build_projection
from dspark.model.families import build_drafter
from dspark.model.family import Drafter
from dspark.model.formats.source import left_out, open_source, projection_entries
from dspark.model.language import LanguageDrafter
from dspark.model.location import locate
from dspark.model.pairing import token_ids, tokenizer_digest
from dspark.model.products import favour_few_rows
from dspark.model.target_check import (
    INTEGERS,
    check_target_config,
    check_target_headers,
    check_target_values,
)
from dspark.model.weights_file import (
    SINGLE_NAME,
    TensorEntry,
    check_finite,
    check_shapes,
    read_directory,
    read_tensors,
    weight_files,
    write_file,
)
from dspark.token_bytes import tokenizer_settings
from dspark.whole_file import placed

ENDLESS = 1 << 20  # tokens of a target whose settings state no limit
MAY_LACK = {"confidence_head.proj.bias"}  # zero where a file lacks it
_HEX = 16  # characters of a digest that are kept


def fingerprint(
    path: str | Path,
    *,
    revision: str | None = None,
    target: str | Path | None = None,
    target_revision: str | None = None,
) -> str:
    """Hash of a checkpoint's content: settings and every byte of its weight files.

    For a drafter whose files leave tables to its `target`, it covers that target's content too.
    """
    folder = locate(path, revision=revision)
    files = [folder / CONFIG_NAME, *weight_files(folder)]
    if target is not None and left_out(folder, read_drafter_config(folder)):
        theirs = locate(target, revision=target_revision)
        files += [theirs / CONFIG_NAME, *weight_files(theirs)]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        try:
            with file.open("rb") as stream:
                hashlib.file_digest(stream, lambda: digest)
        except OSError as error:
            raise CheckpointError(f"{file}: {error.strerror}") from error
    return digest.hexdigest()[:_HEX]


def load_drafter(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    target: str | Path | None = None,
    target_revision: str | None = None,
) -> Drafter:
    """Loads a drafter of any family and format, ready to serve; its `.fingerprint` ties it to a
    projection.

    `target` names the checkpoint of the target, for drafters whose files leave out the tables they
    share with it.
    """
    folder = locate(path, revision=revision)
    config = read_drafter_config(folder)
    with torch.device("meta"):
        drafter = build_drafter(as_loaded(config))
    find = partial(locate, target, revision=target_revision) if target else None
    entries, vocabulary = open_source(folder, config, target=find)
    drafter.draft_vocabulary = None if vocabulary is None else vocabulary.to(device)
    _fill(drafter, folder, config, entries, dtype=dtype, device=device)
    if isinstance(drafter, LanguageDrafter):
        drafter.tie()
    favour_few_rows(drafter)
    return drafter.eval()


def load_projection(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Projection:
    """Loads what a verifier needs of a drafter; equal `.fingerprint`s mean equal context rows."""
    folder = locate(path)
    config = read_drafter_config(folder)
    with torch.device("meta"):
        projection = build_projection(config)
    entries, mine = projection_entries(folder, config), set(projection.stored_names().values())
    own = {name: entry for name, entry in entries.items() if name in mine}
    _fill(projection, folder, config, own, dtype=dtype, device=device)
    favour_few_rows(projection)
    return projection.eval().requires_grad_(False)


def _fill(
    module: Projection,
    folder: Path,
    config: DrafterConfig,
    entries: Mapping[str, TensorEntry],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> None:
    """Loads exactly the module's tensors from `entries`, and sets its fingerprint."""
    stored, shapes = module.stored_names(), module.state_dict()
    stored = {
        name: outer for name, outer in stored.items() if outer in entries or outer not in MAY_LACK
    }
    _check_taps(folder, module, entries)
    check_shapes(
        folder, entries, {outer: tuple(shapes[name].shape) for name, outer in stored.items()}
    )
    inside = {outer: name for name, outer in stored.items()}
    with torch.device("meta"):
        projected = list(build_projection(config).state_dict())
    tensors = {}
    digests: dict[str, bytes] = {}
    for outer, tensor in read_tensors(entries, sorted(inside)):
        name = inside[outer]
        if name in projected:
            raw = tensor.contiguous().view(torch.uint8).numpy()
            digests[name] = hashlib.sha256(raw.data).digest() + str(tensor.dtype).encode()
        # its own copy: a mapped file that somebody writes into would end or change this process
        tensors[name] = tensor.to(
            device=device, dtype=torch.float32 if module.wide(name) else dtype, copy=True
        )
    for name in MAY_LACK & shapes.keys() - stored.keys():
        tensors[name] = torch.zeros(shapes[name].shape, dtype=dtype, device=device)
    module.load_state_dict(tensors, assign=True, strict=False)  # only tied tensors are missing now
    module.fingerprint = _projection_fingerprint(
        config, folder, [digests[name] for name in projected]
    )


def _check_taps(folder: Path, module: Projection, entries: Mapping[str, TensorEntry]) -> None:
    """Refuses settings that leave out a tap that is read, as some do: which one is unknown."""
    name, named = module.stored_names().get("fc.weight", ""), len(module.target_layer_ids)
    rows, *width = (entries[name].shape if name in entries else ()) or (0,)
    read, odd = divmod(sum(width), module.config.hidden_size)
    if rows == module.config.hidden_size and read != named and not odd:
        raise CheckpointError(
            f"{folder}: target_layer_ids: {named} layers are named, and {name} reads {read}"
        )


def as_loaded(config: DrafterConfig) -> DrafterConfig:
    """The config of a drafter once its file is read: pairs half a head apart, and two tables."""
    tied = config.tie_word_embeddings and config.kind == "lm"
    return dataclasses.replace(config, interleaved=False, tie_word_embeddings=tied)


def save_drafter(drafter: Drafter, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Writes `config.json` and `model.safetensors` in the released format.

    Both files are replaced atomically, weights last, so a reader never sees half a file.
    """
    dtype = dtype or next(drafter.parameters()).dtype
    folder.mkdir(parents=True, exist_ok=True)
    settings = config_to_json(drafter.config) | {"dtype": str(dtype).removeprefix("torch.")}
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    with placed(folder / CONFIG_NAME) as draft:
        draft.write_text(text)
    state = drafter.state_dict()
    tensors = {
        outer: state[name]
        .detach()
        .to("cpu", torch.float32 if drafter.wide(name) else dtype)
        .contiguous()
        for name, outer in drafter.stored_names().items()
    }
    if drafter.draft_vocabulary is not None:
        tensors |= drafter.draft_vocabulary.maps()
    write_file(folder / SINGLE_NAME, tensors, {"format": "pt"})


@dataclass(frozen=True)
class LoadedTarget:
    """A stock causal language model and what a server needs to know of it."""

    model: Any  # transformers.PreTrainedModel, in eval mode without gradients
    folder: Path
    stop_ids: tuple[int, ...]
    context_length: int
    vocab_size: int
    hidden_size: int
    num_layers: int


def load_target(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    ranks: int = 1,
) -> LoadedTarget:
    """Loads a causal language model, refused if one weight is missing, extra or misshapen.

    ranks: of the process group that divides it by the library's tensor parallel plan; each of them
    calls this, and loads its part.

    transformers would fill a missing weight with random numbers and a warning.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    folder = locate(path, revision=revision)
    entries = read_directory(folder)  # refuses duplicate names, escaping shards and pickles
    check_target_config(folder, entries)
    transformers_logging.disable_progress_bar()
    entries = check_target_headers(folder, entries)
    finite = check_target_values(entries)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            # Reported instead of raised, so that `refuse` below can name them.
            ignore_mismatched_sizes=True,
            **(_divided(ranks) if ranks > 1 else _straight_to(torch.device(device))),
        )
    except Exception as error:  # of any type, for a strange file
        raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from error
    refuse(
        folder,
        {what.replace("_", " "): sorted(map(str, names or ())) for what, names in info.items()},
    )
    for name, tensor in model.named_parameters():
        stored = entries[name].dtype if name in entries else ""
        if stored.startswith(INTEGERS):  # the library would make floats of them
            raise CheckpointError(f"{folder}: {name} holds {stored}, not floating point")
        if not finite:
            check_finite(f"{folder}: {name}", tensor)
    model = model.to(device).eval().requires_grad_(False)
    if ranks == 1:
        favour_few_rows(model)
    text = model.config.get_text_config()
    return LoadedTarget(
        model=model,
        folder=folder,
        stop_ids=_stop_ids(model, folder, int(text.vocab_size)),
        context_length=context_length(text),
        vocab_size=int(text.vocab_size),
        hidden_size=int(text.hidden_size),
        num_layers=int(text.num_hidden_layers),
    )


def _straight_to(device: torch.device) -> dict[str, Any]:
    """Arguments with which the library reads weights onto a card one by one, if it can, and not all
    of them to the host first."""
    if device.type == "cpu" or importlib.util.find_spec("accelerate") is None:
        return {}
    return {"device_map": {"": device}}


def _divided(ranks: int) -> dict[str, Any]:
    """Arguments with which the library divides a model between the ranks of the process group."""
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=ranks)}


def context_length(text: Any) -> int:
    """Most tokens that a target's settings allow; pure state-space models state no limit.

    A rotation that is stretched by a factor allows as many times the tokens that it began with.
    """
    said = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    limit = int(next(filter(None, said), ENDLESS))
    rope = getattr(text, "rope_parameters", None) or {}
    began = {"yarn": rope.get("original_max_position_embeddings"), "dynamic": limit}
    return stretched(limit, began.get(str(rope.get("rope_type"))) or 0, rope.get("factor") or 1)


def _stop_ids(model: Any, folder: Path, vocab_size: int) -> tuple[int, ...]:
    """Stop ids of the generation settings, else of the model's (one id, a list or none), else the
    end of text of the tokenizer's."""
    for settings in (getattr(model, "generation_config", None), model.config.get_text_config()):
        stop = getattr(settings, "eos_token_id", None)
        if stop is not None:
            ids = list(stop) if isinstance(stop, list | tuple) else [stop]
            if not all(type(each) is int for each in ids):
                raise CheckpointError(
                    f"{folder}: eos_token_id: expected ids of tokens, found {show(stop)}"
                )
            if known := tuple(each for each in ids if 0 <= each < vocab_size):
                # ids outside the vocabulary cannot be drawn
                return known
    return tuple(each for each in _text_end(folder) if each < vocab_size)


def _text_end(folder: Path) -> list[int]:
    """The id of the token that the tokenizer's settings name as the end of a text, if any."""
    named = tokenizer_settings(folder).get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    at = token_ids(folder).get(text) if isinstance(text, str) else None
    return [] if at is None else [at]


def _projection_fingerprint(config: DrafterConfig, folder: Path, digests: Iterable[bytes]) -> str:
    """Fingerprint of the projection's tensors as stored, of the sizes they are applied to, and of
    the tokenizer."""
    taps = config.target_layer_ids
    sizes = [
        config.vocab_size,
        config.hidden_size if taps else 0,
        config.rms_norm_eps if taps else 0.0,
    ]
    about = json.dumps([*sizes, tokenizer_digest(folder)])
    whole = hashlib.sha256(about.encode() + b"".join(digests))
    return str(Fingerprint(config.family, ",".join(map(str, taps)), whole.hexdigest()[:_HEX]))
