"""Training state on disk: tensors as safetensors, the rest as JSON; nothing is unpickled.

A state is written beside the old one and moved into place, so that a run killed at any time can
resume.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from dspark.errors import ConfigError
from dspark.training.disk import save_tensors


def save(
    path: Path,
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    facts: Mapping[str, Any],
) -> None:
    """Writes trained parameters, optimiser states and `facts` (the step, the run's settings)."""
    tensors = {f"model/{key}": p.detach() for key, p in model.named_parameters() if p.requires_grad}
    groups: dict[str, Any] = {}
    for label, optimizer in optimizers.items():
        state = optimizer.state_dict()
        groups[label] = state["param_groups"]
        for index, slots in state["state"].items():
            tensors |= {
                f"{label}/{index}/{slot}": torch.as_tensor(value) for slot, value in slots.items()
            }
    # The facts are in the header of the same file, so state and step always belong together.
    header = {"facts": json.dumps(dict(facts)), "groups": json.dumps(groups)}
    # on the host, where there is room for a second copy of them
    whole = {key: value.cpu().contiguous() for key, value in tensors.items()}
    save_tensors(path, whole, header)


def read_header(path: Path) -> dict[str, Any]:
    """`facts` and the optimisers' `groups`; ConfigError for a file that is no state."""
    try:
        with safe_open(path, framework="pt") as file:
            kept = file.metadata() or {}
            return {key: json.loads(kept[key]) for key in ("facts", "groups")}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(
            f"{path}: no state of a training run ({error}); without it the run begins anew"
        ) from None


def load(path: Path, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> None:
    """Restores parameters and optimiser states in place; what the state does not tell of a group,
    as that of another version of PyTorch may not, stays as it is."""
    header, tensors = read_header(path), load_file(path)
    parameters = dict(model.named_parameters())
    states: dict[str, dict[int, dict[str, torch.Tensor]]] = {label: {} for label in optimizers}
    with torch.no_grad():
        for key, value in tensors.items():
            label, rest = key.split("/", 1)
            if label == "model":
                parameters[rest].copy_(value)
            else:
                index, slot = rest.split("/")
                states[label].setdefault(int(index), {})[slot] = value
    for label, optimizer in optimizers.items():
        own, kept = optimizer.state_dict()["param_groups"], header["groups"][label]
        groups = [mine | old for mine, old in zip(own, kept, strict=True)]
        optimizer.load_state_dict({"state": states[label], "param_groups": groups})
