"""Configuration of a drafter of any family. Plain numbers; `config_file` reads and writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dspark.model.config_keys import CONFIG_NAME as CONFIG_NAME

HeadType = Literal["none", "vanilla", "gated", "rnn"]
Kind = Literal["block", "eagle3", "mtp", "lm"]
ModelType = Literal["qwen3", "gemma4_text", "deepseek_v4"]
MOST_TOKENS = 1 << 24  # of a context, by whatever factor a rotation is stretched


def stretched(limit: int, began: int, factor: float) -> int:
    """The limit of length that a file states, or the longer one of a rotation that stretches the
    length it began with. In tokens."""
    return int(min(max(limit, began * factor), MOST_TOKENS))


@dataclass(frozen=True)
class Yarn:
    """YaRN (arXiv 2309.00071): rotation for contexts longer than those that layers were trained on.

    Slow pairs, which turn less than once within the old length, turn slower by the factor; fast
    ones, which tell neighbours apart, stay as they are; those between are mixed. cos and sin are
    scaled by a number, too, so that attention is as sharp as before. Names and defaults are those
    of transformers' `rope_parameters`.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def mixed(self, head_dim: int, theta: float) -> tuple[float, float]:
        """(low, high): pairs up to low keep their speed, those from high on are slowed down by the
        factor."""

        def pair(turns: float) -> float:  # the pair that turns so often within the old length
            whole = math.log(self.original_max_position_embeddings / (turns * 2.0 * math.pi))
            return head_dim * whole / (2.0 * math.log(theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, head_dim - 1)


@dataclass(frozen=True)
class StageShape:
    """What a layer of DeepSeek-V4 has beyond an ordinary one; such a layer is called a stage."""

    q_lora_rank: int
    o_groups: int  # of heads, in the output projection
    o_lora_rank: int  # of a group
    rope_dim: int  # last values of a head that rotate
    window: int  # context rows that a block sees
    streams: int  # copies of the hidden state, mixed by hyper-connections
    sinkhorn_iters: int
    stream_eps: float
    experts: int
    experts_per_token: int
    expert_size: int  # inner width of one, and of the shared one
    expert_scale: float  # factor of the sum of the chosen ones
    gate_limit: float  # limit at which the two inner values of an expert are clamped


@dataclass(frozen=True)
class DrafterConfig:
    """One drafter: `kind` says how it drafts, `model_type` what its layers look like."""

    hidden_size: int  # H, equal to the target's but for a language model
    intermediate_size: int
    num_hidden_layers: int  # L, draft depth
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # V, equal to the target's
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    block_size: int  # k, drafted tokens per round; steps of a family that drafts one by one
    # m taps, ascending; -1 is the embedding output; none for a language model
    target_layer_ids: tuple[int, ...] = ()
    num_target_layers: int = 0  # 0 if the file does not state it; a language model fits any depth
    draft_vocab_size: int = 0  # Vd, tokens the head can draft; 0 means all V
    # if False, the anchor's slot drafts nothing, and a query is one slot longer
    sample_from_anchor: bool = True
    # fills slots 1..k-1 of the query block; -1 where there is no such block
    mask_token_id: int = -1
    kind: Kind = "block"
    model_type: ModelType = "qwen3"
    markov_rank: int = 0  # r; 0 means no sequential head
    markov_head_type: HeadType = "none"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False
    num_anchors: int = 512  # training only
    step_loss_decay: float = 0.8  # training only, of families that draft one by one
    rotary_fraction: float = 1.0  # of the pairs of a head that rotate, from the fastest on
    yarn: Yarn | None = None  # rotation of contexts longer than those the layers were trained on
    interleaved: bool = False  # in files only: pairs are neighbours; loaders reorder the weights
    attention_k_eq_v: bool = False  # values come from the key projection
    logit_softcap: float | None = None  # c: logits are c tanh(z / c)
    tie_word_embeddings: bool = False  # the head is the embedding
    initializer_range: float = 0.02
    dtype: str = "bfloat16"
    stage: StageShape | None = None  # of DeepSeek-V4's only

    @property
    def context_length(self) -> int:
        """Most tokens of a context that it drafts for."""
        limit, yarn = self.max_position_embeddings, self.yarn
        if yarn is None:
            return limit
        return stretched(limit, yarn.original_max_position_embeddings, yarn.factor)

    @property
    def feature_size(self) -> int:
        """m*H, width of a row of concatenated taps."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def attention_size(self) -> int:
        """Width of the rows that attention reads: Eagle3's are an embedding and a carried row side
        by side."""
        return 2 * self.hidden_size if self.kind == "eagle3" else self.hidden_size

    @property
    def head_size(self) -> int:
        """Rows of the vocabulary head and of a Markov head's second table: Vd, or V without a draft
        vocabulary."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def query_size(self) -> int:
        """Query slots of a block's pass: the anchor and its masks."""
        return self.block_size + (not self.sample_from_anchor)

    @property
    def family(self) -> str:
        """`dspark`, `dflash`, `eagle3`, `mtp` or `lm`; the first two differ in heads only."""
        if self.kind != "block":
            return self.kind
        return "dspark" if self.markov_rank or self.enable_confidence_head else "dflash"

    @property
    def gemma(self) -> bool:
        """Whether layers are Gemma4's: norms on both sides, unscaled attention, scaled
        embeddings."""
        return self.model_type == "gemma4_text"

    @property
    def late_cast(self) -> bool:
        """Whether norms multiply by their weight in fp32 and round once (Gemma4, DeepSeek-V4);
        Qwen3's round before it."""
        return self.model_type != "qwen3"
