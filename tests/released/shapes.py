"""Exact shapes of the released drafters: every tensor's name and size, by name of checkpoint.

Spelled from the published files and not from this project's modules, so that what is written by it
proves that they load. A thin shape keeps depth, hidden size and taps, and narrows MLP, heads and
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Shapes = dict[str, tuple[int, ...]]
FAMILIES = {"dspark": "block7", "dflash": "block7", "eagle3": "ttt7"}
RANK = 256
STEPS = 7  # tokens of a block, and steps of a chain


@dataclass(frozen=True)
class TargetShape:
    """A target as its drafters see it."""

    kind: str  # qwen3 or gemma4
    name: str
    layers: int
    taps: tuple[int, ...]
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mask: int

    @property
    def thin(self) -> TargetShape:
        gemma = self.kind == "gemma4"
        vocab = 512
        return replace(
            self,
            mlp=128,
            heads=4,
            kv_heads=1 if gemma else 2,
            head_dim=32 if gemma else 16,
            vocab=vocab,
            mask=min(self.mask, vocab - 1),
        )


TARGETS = {
    "qwen3_4b": TargetShape(
        "qwen3", "Qwen/Qwen3-4B", 36, (1, 9, 17, 25, 33), 2560, 9728, 32, 8, 128, 151936, 151669
    ),
    "qwen3_8b": TargetShape(
        "qwen3", "Qwen/Qwen3-8B", 36, (1, 9, 17, 25, 33), 4096, 12288, 32, 8, 128, 151936, 151669
    ),
    "qwen3_14b": TargetShape(
        "qwen3", "Qwen/Qwen3-14B", 40, (1, 10, 19, 28, 37), 5120, 17408, 40, 8, 128, 151936, 151669
    ),
    "gemma4_12b": TargetShape(
        "gemma4",
        "google/gemma-4-12b-it",
        48,
        (5, 17, 29, 41, 46),
        3840,
        15360,
        16,
        1,
        512,
        262144,
        4,
    ),
}
NAMES = tuple(
    f"{family}_{target}_{ending}" for family, ending in FAMILIES.items() for target in TARGETS
)


def shape_of(name: str, *, thin: bool = False) -> tuple[str, TargetShape]:
    """(family, target) of a released checkpoint."""
    family, _, rest = name.partition("_")
    target = TARGETS[rest.rpartition("_")[0]]
    return family, target.thin if thin else target


def tensors_of(family: str, target: TargetShape) -> Shapes:
    """Name -> shape of every tensor of the file."""
    d, v, gemma = target.hidden, target.vocab, target.kind == "gemma4"
    found: Shapes = {
        "embed_tokens.weight": (v, d),
        "lm_head.weight": (v, d),
        "fc.weight": (d, 5 * d),
        "norm.weight": (d,),
    }
    if family == "eagle3":
        found["layers.0.hidden_norm.weight"] = (d,)
    else:
        found["hidden_norm.weight"] = (d,)
    for layer in range(1 if family == "eagle3" else 5):
        found |= {
            f"layers.{layer}.{name}": shape for name, shape in _layer(family, target, gemma).items()
        }
    if family == "dspark":
        found |= {
            "markov_head.markov_w1.weight": (v, RANK),
            "markov_head.markov_w2.weight": (v, RANK),
            "confidence_head.proj.weight": (1, d + RANK),
            "confidence_head.proj.bias": (1,),
        }
    return found


def _layer(family: str, target: TargetShape, gemma: bool) -> Shapes:
    d, width, kv = target.hidden, target.heads * target.head_dim, target.kv_heads * target.head_dim
    reads = 2 * d if family == "eagle3" else d
    found: Shapes = {
        "self_attn.q_proj.weight": (width, reads),
        "self_attn.k_proj.weight": (kv, reads),
        "self_attn.o_proj.weight": (d, width),
        "self_attn.q_norm.weight": (target.head_dim,),
        "self_attn.k_norm.weight": (target.head_dim,),
        "mlp.gate_proj.weight": (target.mlp, d),
        "mlp.up_proj.weight": (target.mlp, d),
        "mlp.down_proj.weight": (d, target.mlp),
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
    }
    if gemma:  # values come from the keys' projection; norms stand on both sides
        return found | {
            "pre_feedforward_layernorm.weight": (d,),
            "post_feedforward_layernorm.weight": (d,),
            "layer_scalar": (1,),
        }
    return found | {"self_attn.v_proj.weight": (kv, reads)}


# tensors, parameters, those without embedding and head, bytes of the file
PUBLISHED = {
    "dspark_qwen3_4b_block7": (64, 1_393_133_569, 615_221_249, 2_786_273_970),
    "dspark_qwen3_8b_block7": (64, 2_371_081_729, 1_126_422_017, 4_742_170_330),
    "dspark_qwen3_14b_block7": (64, 3_416_263_169, 1_860_438_529, 6_832_533_210),
    "dspark_gemma4_12b_block7": (74, 3_430_444_550, 1_417_178_630, 6_860_897_028),
    "dflash_qwen3_4b_block7": (60, 1_315_339_520, 537_427_200, 2_630_685_488),
    "dflash_qwen3_8b_block7": (60, 2_293_286_144, 1_048_626_432, 4_586_578_776),
    "dflash_qwen3_14b_block7": (60, 3_338_466_560, 1_782_641_920, 6_676_939_608),
    "dflash_gemma4_12b_block7": (70, 3_296_222_725, 1_282_956_805, 6_592_452_994),
    "eagle3_qwen3_4b_ttt7": (16, 927_344_896, 149_432_576, 1_854_691_472),
    "eagle3_qwen3_8b_ttt7": (16, 1_546_666_240, 302_006_528, 3_093_334_184),
    "eagle3_qwen3_14b_ttt7": (16, 2_053_918_976, 498_094_336, 4_107_839_656),
    "eagle3_gemma4_12b_ttt7": (18, 2_362_269_185, 349_003_265, 4_724_540_282),
}
