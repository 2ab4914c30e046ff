"""Draft vocabularies smaller than the target's: logits of few tokens, spread to logits of all.

Files of the speculators format carry two maps: `d2t` (offsets: draft id i means target id i +
d2t[i]) and `t2d` (True where a target id can be drafted). Acceptance rules take target ids only, so
draft logits are spread over the target's vocabulary before anything is drawn: what cannot be
drafted has probability 0, which is an ordinary q.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from dspark.errors import CheckpointError, ConfigError
from dspark.model.config_keys import MOST_LISTING_BYTES, read_json_file

OFFSETS, DRAFTABLE = "d2t", "t2d"


class DraftVocabulary(nn.Module):
    """Maps Vd draft ids to target ids, ascending or not, each at most once."""

    target_ids: Tensor  # [Vd] int64

    def __init__(self, target_ids: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size  # V, the target's
        self.register_buffer("target_ids", target_ids, persistent=False)

    @staticmethod
    def of(ids: Iterable[int], vocab_size: int) -> DraftVocabulary:
        """The vocabulary of these target ids, ascending. ConfigError for ids out of range."""
        kept = sorted(set(ids))
        if not kept or kept[0] < 0 or kept[-1] >= vocab_size:
            raise ConfigError(f"keep_tokens: expected ids below {vocab_size}")
        return DraftVocabulary(torch.tensor(kept), vocab_size)

    def spread(self, logits: Tensor) -> Tensor:
        """Draft logits [..., Vd] -> target logits [..., V], minus infinity where nothing can be
        drafted."""
        whole = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        return whole.index_copy(-1, self.target_ids, logits)

    def maps(self) -> dict[str, Tensor]:
        """The two maps as a file stores them."""
        ids = self.target_ids.cpu()
        draftable = torch.zeros(self.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        return {OFFSETS: ids - torch.arange(len(ids)), DRAFTABLE: draftable}


def read_ids(path: Path) -> list[int]:
    """A JSON list of token ids, as `dspark train vocabulary` writes it; ConfigError names the
    file."""
    try:
        ids = read_json_file(path, most=MOST_LISTING_BYTES)
    except (OSError, CheckpointError) as error:
        raise ConfigError(f"keep_tokens: {error}") from error
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise ConfigError(f"keep_tokens: {path} holds no list of token ids")
    return ids


def read_vocabulary(
    folder: Path, *, offsets: Tensor | None, draftable: Tensor | None, size: int, vocab_size: int
) -> DraftVocabulary:
    """The vocabulary of the two maps, checked against each other; the errors name the tensor."""
    if offsets is None:
        raise CheckpointError(
            f"{folder}: missing: {OFFSETS}, which a draft vocabulary of {size} needs"
        )
    if offsets.shape != (size,) or offsets.is_floating_point():
        raise CheckpointError(
            f"{folder}: {OFFSETS}: expected {size} integers, found {list(offsets.shape)}"
        )
    target_ids = torch.arange(size) + offsets.long()
    if int(target_ids.min()) < 0 or int(target_ids.max()) >= vocab_size:
        raise CheckpointError(
            f"{folder}: {OFFSETS}: an id falls outside the vocabulary of {vocab_size}"
        )
    reached = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, target_ids, True)
    if int(reached.sum()) != size:
        raise CheckpointError(f"{folder}: {OFFSETS}: two draft ids mean the same token")
    if draftable is not None and (
        draftable.shape != (vocab_size,) or not torch.equal(draftable.bool(), reached)
    ):
        raise CheckpointError(
            f"{folder}: {DRAFTABLE}: does not mark the tokens that {OFFSETS} reaches"
        )
    return DraftVocabulary(target_ids, vocab_size)
