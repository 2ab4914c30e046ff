"""One tiny random model of each family: its configuration, and the backend that serves it.

Layers are few, windows and borders short, so that a prompt of 300 tokens crosses all of them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,  # a random model that ties them says the same token for ever
}
WINDOW = {"sliding_window": 16}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
INDEXED = {**LATENT, "index_topk": 32, "index_n_heads": 16, "index_head_dim": 16}
GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + 0.5 * n for n in range(8)],
    "original_max_position_embeddings": 64,
    "factor": 8.0,
}


class Family(NamedTuple):
    """`config` names a class of the library; `backend` is what serves it: paged, stateful or
    refused."""

    config: str
    backend: str
    more: Mapping[str, Any] = MappingProxyType({})
    without: tuple[str, ...] = ()  # keys of SHAPE that this class does not know


P, S, R = "paged", "stateful", "refused"

FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaConfig", P),
    "mistral": Family("MistralConfig", P, WINDOW),
    "mixtral": Family("MixtralConfig", P, LOCAL),
    "qwen2": Family("Qwen2Config", P),
    "qwen3": Family("Qwen3Config", P),
    "qwen3_moe": Family("Qwen3MoeConfig", P, EXPERTS),
    "gemma2": Family(
        "Gemma2Config", P, {**WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0}
    ),
    "gemma3": Family(
        "Gemma3TextConfig", P, {**WINDOW, "query_pre_attn_scalar": 16, "layer_types": ALTERNATING}
    ),
    "gemma4": Family(
        "Gemma4TextConfig",
        P,
        {
            **WINDOW,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "layer_types": ALTERNATING,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
        },
    ),
    "phi3": Family(
        "Phi3Config", S, {"original_max_position_embeddings": 64, "rope_parameters": LONGROPE}
    ),
    "gpt_oss": Family("GptOssConfig", P, {**WINDOW, **LOCAL}),
    "olmo2": Family("Olmo2Config", P),
    "olmo3": Family("Olmo3Config", P, {**WINDOW, "layer_types": ALTERNATING}),
    "glm4": Family("Glm4Config", P),
    "glm4_moe": Family(
        "Glm4MoeConfig",
        P,
        {
            **EXPERTS,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "granite": Family(
        "GraniteConfig", P, {"embedding_multiplier": 2.0, "residual_multiplier": 0.5}
    ),
    "cohere2": Family("Cohere2Config", P, {**WINDOW, "layer_types": ALTERNATING}),
    "smollm3": Family("SmolLM3Config", P, {"no_rope_layers": [1, 0, 1, 0]}),
    "llama4": Family(
        "Llama4TextConfig",
        S,
        {
            "attention_chunk_size": 16,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 1, 1, 0],
        },
    ),
    "ministral": Family("MinistralConfig", P, {**WINDOW, "layer_types": ALTERNATING}),
    "exaone4": Family("Exaone4Config", P, {**WINDOW, "layer_types": ALTERNATING}),
    "nemotron": Family("NemotronConfig", S),
    "stablelm": Family("StableLmConfig", S),
    "starcoder2": Family("Starcoder2Config", P, WINDOW),
    "gpt_neox": Family("GPTNeoXConfig", P),
    "gpt2": Family("GPT2Config", P, GPT2),
    "falcon": Family(
        "FalconConfig", S, {"alibi": True, "new_decoder_architecture": False}, ("head_dim",)
    ),
    "bloom": Family("BloomConfig", S, {"n_layer": 4, "n_head": 4}),
    "gemma3n": Family(
        "Gemma3nTextConfig",
        P,
        {
            **WINDOW,
            "layer_types": ALTERNATING,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 128,
            "activation_sparsity_pattern": [0.0] * 4,
            "laurel_rank": 8,
        },
    ),
    "deepseek_v2": Family("DeepseekV2Config", P, {**LATENT, "topk_method": "greedy"}),
    "deepseek_v3": Family("DeepseekV3Config", P, LATENT),
    "deepseek_v32": Family("DeepseekV32Config", S, INDEXED),
    "deepseek_v4": Family(
        "DeepseekV4Config",
        S,
        {
            **WINDOW,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "partial_rotary_factor": 0.5,
            "num_hidden_layers": 4,
            "layer_types": [
                f"{kind}_attention"
                for kind in ("sliding", "heavily_compressed", "compressed_sparse", "sliding")
            ],
            "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 32,
            },
            "q_lora_rank": 32,
            "o_groups": 2,
            "o_lora_rank": 16,
            "index_n_heads": 16,
            "index_head_dim": 32,
            "index_topk": 8,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        ("intermediate_size",),
    ),
    "lfm2": Family(
        "Lfm2Config",
        S,
        {
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "qwen3_next": Family(
        "Qwen3NextConfig", S, {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 32}
    ),
    "qwen3_5": Family("Qwen3_5TextConfig", S, LINEAR),
    "minimax": Family(
        "MiniMaxConfig",
        S,
        {
            **LOCAL,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "block_size": 32,
        },
    ),
    "mamba": Family("MambaConfig", S, {"state_size": 8}, ("max_position_embeddings",)),
    "mamba2": Family(
        "Mamba2Config",
        S,
        {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    ),
    "falcon_mamba": Family("FalconMambaConfig", S, {"state_size": 8}),
    "jamba": Family(
        "JambaConfig",
        S,
        {
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
            "mamba_d_state": 8,
        },
    ),
    "bamba": Family("BambaConfig", S, {"attn_layer_indices": [1, 3], **MAMBA}),
    "falcon_h1": Family("FalconH1Config", S, {**MAMBA, "mamba_d_ssm": 128}),
    "granitemoehybrid": Family(
        "GraniteMoeHybridConfig",
        S,
        {
            "layer_types": ["mamba", "attention"] * 2,
            **LOCAL,
            **MAMBA,
            "shared_intermediate_size": 32,
        },
    ),
    "nemotron_h": Family(
        "NemotronHConfig",
        S,
        {
            "layers_block_type": ["mamba", "attention", "mamba", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 8,
            "chunk_size": 16,
        },
    ),
    "recurrent_gemma": Family(
        "RecurrentGemmaConfig", R, {"attention_window_size": 16, "lru_width": 64}
    ),
    "rwkv": Family("RwkvConfig", R),
    "gemma": Family("GemmaConfig", P),
    "olmo": Family("OlmoConfig", P),
    "olmoe": Family("OlmoeConfig", P, EXPERTS),
    "cohere": Family("CohereConfig", P),
    "phi": Family("PhiConfig", P),
    "opt": Family("OPTConfig", P, {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "mpt": Family("MptConfig", S, {"d_model": 64, "n_heads": 4, "n_layers": 4}),
    "ernie4_5": Family("Ernie4_5Config", P),
    "seed_oss": Family("SeedOssConfig", P),
    "hunyuan": Family("HunYuanDenseV1Config", P),
    "minimax_m2": Family("MiniMaxM2Config", P, {**EXPERTS, "num_local_experts": 4}),
    "apertus": Family("ApertusConfig", P),
    "persimmon": Family("PersimmonConfig", P),
    "glm_moe_dsa": Family("GlmMoeDsaConfig", S, INDEXED),
    "qwen2_moe": Family("Qwen2MoeConfig", P, {**EXPERTS, "shared_expert_intermediate_size": 32}),
    "gpt_bigcode": Family("GPTBigCodeConfig", P, GPT2),
    "internlm3": Family("InternLM3Config", P),
    "nanochat": Family("NanoChatConfig", P),
    "exaone": Family("ExaoneConfig", P),
    "dots1": Family("Dots1Config", P, {**LATENT, **EXPERTS}),
}


def model_of(family: Family) -> Any:
    return random_model(config_of(family))


def config_of(family: Family) -> Any:
    import transformers

    settings = {
        key: value for key, value in {**SHAPE, **family.more}.items() if key not in family.without
    }
    return getattr(transformers, family.config)(**settings)


def random_model(config: Any, spread: float = 0.15) -> Any:
    """Random weights in which every layer matters: fresh ones would hardly show a mistake."""
    import transformers

    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.detach().normal_(0, spread)
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):
            # which experts a token goes to, of DeepSeek-V4's first mixtures
            buffer.random_(0, config.n_routed_experts)
    return model.eval().requires_grad_(False)
