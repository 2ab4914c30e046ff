"""Weights of heads whose rotating pairs are neighbours, reordered so that pairs lie half a head apart.

Value 2i of a head becomes value i, and 2i + 1 becomes i + hd/2: the scores of queries and keys stay what they were, and
everything after the loader knows one kind of rotation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from dspark.model.config import DrafterConfig
from dspark.model.weights_file import TensorEntry

_PROJECTIONS, _NORMS = (".q_proj.weight", ".k_proj.weight"), (".q_norm.weight", ".k_norm.weight")


def reordered(entries: Mapping[str, TensorEntry], config: DrafterConfig) -> dict[str, TensorEntry]:
    """The same entries, those of queries and keys with their rows in the new order."""
    one = torch.cat((torch.arange(0, config.head_dim, 2), torch.arange(1, config.head_dim, 2)))
    heads = {".q_proj.weight": config.num_attention_heads, ".k_proj.weight": config.num_key_value_heads}
    made = dict(entries)
    for name, entry in entries.items():
        ending = next((each for each in (*_PROJECTIONS, *_NORMS) if name.endswith(each)), None)
        if ending is not None and entry.shape and entry.shape[0] == heads.get(ending, 1) * config.head_dim:
            starts = torch.arange(heads.get(ending, 1)) * config.head_dim
            rows = (starts.unsqueeze(1) + one).flatten()
            made[name] = dataclasses.replace(entry, rows=rows, stored=entry.stored or name)
    return made
