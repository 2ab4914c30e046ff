"""The reference's own decode cases, and the weights they were recorded with.

A decode case holds ids and lengths alone, which a small change of a weight need not move. So a file of cases that is
known is only believed together with the tensors it was recorded with; how they are laid out in their file is free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dspark.model.weights_file import SINGLE_NAME, read_file

QWEN3_TARGET, GEMMA4_TARGET = "6b99fb1e12d8549f", "673d37c4e931962e"
# Decode cases -> (tensors of the drafter, tensors of the target).
RECORDED: Mapping[str, tuple[str, str]] = {
    "15bd3e654984a830": ("b1c314d94331ee3d", QWEN3_TARGET),  # dflash
    "e2c063d444550869": ("0ecb1cbf519757fc", GEMMA4_TARGET),  # dflash_gemma4
    "a3c457ecae8f1504": ("ede0d05c09bddcfc", QWEN3_TARGET),  # dspark_confidence_without_markov
    "fbcd12a5b68868c6": ("ee564234e10e30c8", QWEN3_TARGET),  # dspark_gated
    "c53f1c50d8f38891": ("a6f5bd8ad9b35400", GEMMA4_TARGET),  # dspark_gemma4
    "6e4578b2ba1ab47e": ("96a9d9aef60843f4", QWEN3_TARGET),  # dspark_rnn
    "8f01a00ca15b827f": ("1f739a45c86622e3", QWEN3_TARGET),  # dspark_vanilla
    "ee5236cdaa677b0b": ("4e4b455c13f67101", QWEN3_TARGET),  # eagle3
    "9c2843edeb80e738": ("db394a03e99995dc", GEMMA4_TARGET),  # eagle3_gemma4
}


def problem_with(cases: Path, target: Path) -> str | None:
    """None where a file of decode cases is unknown, or its weights are those it was recorded with."""
    recorded = RECORDED.get(hashlib.sha256(cases.read_bytes()).hexdigest()[:16])
    if recorded is None:
        return None
    for folder, digest in zip((cases.parent, target), recorded, strict=True):
        if digest_of(read_file(folder / SINGLE_NAME)) != digest:
            return f"{folder.name}: its weights are not those that these cases were recorded with"
    return None


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Names, shapes, types and bytes of all tensors."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]
