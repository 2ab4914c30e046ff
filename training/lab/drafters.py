"""Every family of the plan: its configuration at the lab's width, its loss of a step, and its held-out figures.

All of them read the same rows in the same order; each has the loss and the supervised positions of its own recipe.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dspark.model.chain import ChainDrafter
from dspark.model.config import DrafterConfig
from dspark.model.families import as_block
from dspark.model.family import Drafter
from dspark.model.fresh import fresh_drafter
from dspark.model.language import LanguageDrafter
from training.anchors import draw_anchors, label_blocks
from training.eagle3_loss import chain_loss
from training.lab.chain_blocks import chain_block_loss
from training.lab.loop import Figures
from training.lab.plan import Run
from training.lab.text import Text, taps_of
from training.language_loss import language_loss
from training.lean_loss import LeanLoss, lean_block_loss
from training.loss import DFLASH_WEIGHTS, LossWeights, figures
from training.tokenizer import MASK_ID

ROWS = 12  # of a step
SLOTS = 140  # drafted a row: 20 blocks of 7, or as many of another length
MARKOV_RANK = 32
DECAY = 4.0  # of the weights of slots, for blocks of 7; longer ones decay more slowly


def anchors_of(run: Run) -> int:
    """Blocks a row: every length of block has the same number of supervised slots."""
    return max(1, SLOTS // run.block)


def config_of(run: Run, target: Qwen3ForCausalLM) -> DrafterConfig:
    """The target's width and vocabulary, the run's family and depth."""
    shape = target.config
    block, language = run.family in ("dspark", "dflash"), run.family == "lm"
    confident = run.family == "dspark"
    taps = {"mtp": (shape.num_hidden_layers - 1,), "lm": ()}.get(run.family, taps_of(shape.num_hidden_layers))
    return DrafterConfig(
        kind="block" if run.family == "dspark" or run.family == "dflash" else run.family,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=run.layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_parameters["rope_theta"],
        max_position_embeddings=shape.max_position_embeddings,
        block_size=run.block,
        mask_token_id=MASK_ID if block else -1,
        target_layer_ids=taps,
        num_target_layers=0 if language else shape.num_hidden_layers,
        markov_rank=0 if run.head == "none" else MARKOV_RANK,
        markov_head_type=run.head,
        enable_confidence_head=confident,
        confidence_head_with_markov=confident and run.head != "none",
        tie_word_embeddings=language,
        dtype="float32",
    )


def build(run: Run, target: Qwen3ForCausalLM) -> Drafter:
    """A fresh drafter: the target's embedding and head, frozen, the rest drawn from the run's seed.

    Output matrices of residual branches start at zero, as the target's did: every family learns faster from there.
    """
    own = run.family == "lm"
    drafter = fresh_drafter(
        config_of(run, target),
        embedding=None if own else target.model.embed_tokens.weight.detach(),
        lm_head=None if own else target.lm_head.weight.detach(),
        generator=torch.Generator().manual_seed(run.seed),
    )
    for name, parameter in drafter.named_parameters():
        if name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")):
            torch.nn.init.zeros_(parameter)
    return drafter


def weights_of(run: Run) -> LossWeights:
    weights = LossWeights() if run.family == "dspark" else DFLASH_WEIGHTS
    return weights._replace(decay=DECAY * max(1.0, run.block / 7))


def loss_of(drafter: Drafter, run: Run, text: Text, target_head: Tensor, generator: torch.Generator) -> LeanLoss:
    """The loss of some rows, hidden states in fp32, by the family's own recipe."""
    width = drafter.config.hidden_size
    if isinstance(drafter, LanguageDrafter):
        return language_loss(
            drafter,
            input_ids=text.ids,
            loss_mask=text.supervised,
            last_hidden=text.last,
            target_head=target_head,
        )
    if run.family == "mtp":
        return chain_loss(
            as_chain(drafter),
            features=text.features[..., -width:],
            input_ids=text.ids,
            loss_mask=text.supervised,
            last_hidden=text.last,
            target_head=target_head,
        )
    supervised, features = text.supervised.long(), text.features[..., :-width]
    anchors = draw_anchors(supervised, anchors_of(run), generator=generator)
    labels = label_blocks(input_ids=text.ids, loss_mask=supervised, anchors=anchors, block_size=run.block)
    if run.family == "eagle3":
        return chain_block_loss(
            as_chain(drafter),
            features=features,
            input_ids=text.ids,
            anchors=anchors,
            labels=labels,
            last_hidden=text.last,
            target_head=target_head,
        )
    blocks = as_block(drafter)
    hidden = blocks.forward_hidden(
        features=features, input_ids=text.ids, anchor_positions=anchors.positions, block_keep_mask=anchors.keep
    )
    return lean_block_loss(
        blocks,
        hidden=hidden,
        previous_ids=blocks.previous_ids(text.ids, anchors.positions),
        target_ids=labels.target_ids,
        eval_mask=labels.eval_mask,
        anchor_positions=anchors.positions,
        last_hidden=text.last,
        target_head=target_head,
        weights=weights_of(run),
    )


def as_chain(drafter: Drafter) -> ChainDrafter:
    assert isinstance(drafter, ChainDrafter)
    return drafter


def rows_of(text: Text, seed: int, step: int) -> Text:
    """The rows of a step: every row once an epoch, in an order of the seed's own."""
    steps = len(text.ids) // ROWS
    epoch, place = divmod(step, steps)
    order = torch.randperm(len(text.ids), generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
    return text.rows(order[place * ROWS : (place + 1) * ROWS])


def step_of(drafter: Drafter, run: Run, text: Text, target_head: Tensor) -> Callable[[int], Tensor]:
    """From the number of a step to its loss."""

    def loss(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_003 * run.seed + step)
        made = loss_of(drafter, run, rows_of(text, run.seed, step), target_head, generator)
        return made.objective / (made.sums.denominator + 1e-6)

    return loss


def probe_of(drafter: Drafter, run: Run, text: Text, target_head: Tensor) -> Callable[[], Figures]:
    """Loss and expected accepted length on rows that are not trained on, the same blocks every time."""
    rows = text.rows(torch.arange(len(text.ids)))

    def probe() -> Figures:
        made = loss_of(drafter, run, rows, target_head, torch.Generator().manual_seed(0))
        return {
            "held_out_loss": float(made.objective / made.sums.denominator),
            "held_out_tau": figures(made.sums)["tau_probabilistic"],
        }

    return probe
