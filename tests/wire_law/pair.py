"""A random target over a handful of tokens, and a DSpark drafter near enough that most drafts are
kept.

The drafter's sequential head holds the target's mean logits by the token before. Its block is
random, scaled down by `BLOCK_SHARE`: drafts are refused often enough that a wrong correction shows.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from deploy.processes import ProcessCell
from dspark.model.checkpoint import load_target, save_drafter
from dspark.model.drafter import BlockDrafter
from dspark.model.heads import VanillaHead
from dspark.training.settings import Settings
from dspark.training.shape import make_drafter

HIDDEN, LAYERS, BLOCK = 32, 2, 3
SPREAD = 0.08  # of the weights: laws depend on what came before
BLOCK_SHARE = 0.4


@contextlib.contextmanager
def served(
    write: Callable[..., tuple[Path, Path]], vocabulary: int, seed: int
) -> Iterator[tuple[str, Path]]:
    """(endpoint, target) of a cell of the pair that is written so."""
    with tempfile.TemporaryDirectory(prefix="dspark-law-") as folder:
        target, drafter = write(Path(folder), vocabulary=vocabulary, seed=seed)
        # One entry fewer than there are tokens: the sparse form of the rules is what is tested.
        with ProcessCell(target, drafter, draft={"q_entries": vocabulary - 1}) as cell:
            yield cell.endpoint, target


def write_tiny_pair(folder: Path, *, vocabulary: int, seed: int) -> tuple[Path, Path]:
    """(target, drafter) folders under `folder`."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
    }
    config = Qwen3Config(
        **shape,
        num_hidden_layers=LAYERS,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
        dtype="float32",
    )
    target = Qwen3ForCausalLM(config).eval()
    target_folder, drafter_folder = folder / "target", folder / "drafter"
    target.save_pretrained(target_folder)
    # No stop token: every answer has its full length.
    (target_folder / "generation_config.json").write_text("{}", encoding="utf-8")
    settings = Settings(
        str(target_folder), "", "",
        layers=1, block_size=BLOCK, taps=(0,), markov_rank=vocabulary, seed=seed,
    )  # fmt: skip
    drafter = make_drafter(load_target(target_folder), settings)
    assert isinstance(drafter, BlockDrafter)
    assert isinstance(drafter.markov_head, VanillaHead)
    with torch.no_grad():
        drafter.norm.weight.fill_(BLOCK_SHARE)
        drafter.markov_head.markov_w1.weight.copy_(torch.eye(vocabulary))
        drafter.markov_head.markov_w2.weight.copy_(_mean_logits(target, vocabulary).T)
    save_drafter(drafter, drafter_folder)
    return target_folder, drafter_folder


def _mean_logits(target: Qwen3ForCausalLM, vocabulary: int) -> torch.Tensor:
    """[V, V]: by the token before, over random text."""
    ids = torch.randint(vocabulary, (64, 16), generator=torch.Generator().manual_seed(1))
    logits = target(ids).logits
    return torch.stack([logits[ids == token].mean(dim=0) for token in range(vocabulary)])
