"""A GGUF target becomes a folder: the library's tensors to the bit, a model that computes the same,
its tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from coordinator.http.template import find_template
from coordinator.reception.tokenizer import Tokenizer, find_tokenizer
from dspark.errors import CheckpointError
from dspark.gguf.architectures import config_of, expected
from dspark.gguf.file import GgufFile
from dspark.gguf.folder import import_gguf
from dspark.model.checkpoint import load_target
from tests.unit.gguf.files import (
    BYTE_TOKENS,
    CONFIGS,
    SPECIAL,
    TEMPLATE,
    Kind,
    random_model,
    write_gguf,
)

MIXED = {
    "token_embd": Kind.Q8_0,
    "attn_q": Kind.Q4_1,
    "attn_k": Kind.Q4_0,
    "attn_v": Kind.Q5_1,
    "attn_output": Kind.Q8_0,
    "ffn_gate": Kind.F16,
    "ffn_up": Kind.BF16,
    "ffn_down": Kind.Q5_0,
}


def imported(tmp_path: Path, model: Any = None, kind: str = "llama", **told: Any) -> Path:
    """The folder of a file that was written so."""
    file = write_gguf(tmp_path / "tiny.gguf", model or random_model(kind), kind, **told)
    import_gguf(file, tmp_path / "out")
    return tmp_path / "out"


def tokenizer_of(folder: Path) -> Tokenizer:
    made = find_tokenizer(str(folder), None)
    assert made is not None
    return made


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_a_head_of_its_own_is_called_the_same_in_every_file(architecture: str) -> None:
    config = {**CONFIGS[architecture]().to_dict(), "tie_word_embeddings": False}
    assert expected(config, architecture)["output.weight"] == "lm_head.weight"


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_tensors_are_those_of_the_library_to_the_bit(architecture: str, tmp_path: Path) -> None:
    model = random_model(architecture)
    ours = load_file(imported(tmp_path, model, architecture, kinds=MIXED) / "model.safetensors")
    file = tmp_path / "tiny.gguf"
    theirs = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    tied = model.config.tie_word_embeddings
    assert ours.keys() == {name for name in theirs if name != "lm_head.weight" or not tied}
    wrong = [
        name
        for name, tensor in ours.items()
        if not torch.equal(tensor, theirs[name].to(torch.bfloat16))
    ]
    assert not wrong


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_the_folder_computes_what_the_model_did_before_it_was_converted(
    architecture: str, tmp_path: Path
) -> None:
    """The order of rotary halves, the offset of norms, sizes and constants: one wrong value and
    logits differ."""
    model = random_model(architecture)
    loaded = load_target(imported(tmp_path, model, architecture))
    ids = torch.randint(0, 200, (1, 100), generator=torch.Generator().manual_seed(1))
    # Gemma's norms lose a bit when 1 is added in the file.
    torch.testing.assert_close(loaded.model(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert loaded.stop_ids == (2,)
    assert (loaded.context_length, loaded.hidden_size) == (512, 64)


@pytest.mark.parametrize("factor", [8.0, 16.0, 32.0])
def test_frequencies_of_llama_3_become_the_rule_that_made_them(
    factor: float, tmp_path: Path
) -> None:
    rule = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    rule |= {"original_max_position_embeddings": 8192, "rope_theta": 100_000.0}
    model = random_model("llama")
    scaled = LlamaForCausalLM(
        LlamaConfig(**{**model.config.to_dict(), "rope_parameters": rule})
    ).eval()
    scaled.load_state_dict(model.state_dict())
    plain = model.model.rotary_emb.inv_freq
    divisors = (plain / scaled.model.rotary_emb.inv_freq).numpy()
    frequencies = {"rope_freqs.weight": divisors}
    made = imported(tmp_path, model, change=lambda tensors: tensors.update(frequencies))
    ids = torch.randint(0, 200, (1, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(load_target(made).model(ids).logits, scaled(ids).logits)


CAPS = {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}


@pytest.mark.parametrize(
    ("architecture", "told", "made"),
    [
        ("llama", {}, {"num_key_value_heads": 4, "rope_theta": 10_000.0, "pad_token_id": 3}),
        ("gemma3", {}, {"rope_theta": 1_000_000.0, "query_pre_attn_scalar": 32}),
        ("gemma3", {"block_count": 62}, {"query_pre_attn_scalar": 24}),  # the family's largest
        ("gemma2", {"block_count": 46}, {"query_pre_attn_scalar": 24}),
        ("gemma2", {}, {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
        ("gemma2", CAPS, CAPS),
        ("gemma3", LINEAR, {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ],
)
def test_settings_that_tiny_models_do_not_have(
    architecture: str, told: dict[str, Any], made: dict[str, Any]
) -> None:
    given = {"context_length": 512, "block_count": 26, "embedding_length": 96}
    given |= {"feed_forward_length": 64, "attention.head_count": 4, "attention.key_length": 32}
    given |= {"attention.sliding_window": 16, "attention.layer_norm_rms_epsilon": 1e-5, **told}
    tokens = {"tokens": ["a"] * 9, "bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 3}
    settings = {f"tokenizer.ggml.{key}": value for key, value in tokens.items()}
    settings |= {f"{architecture}.{key}": value for key, value in given.items()}
    found = config_of({"general.architecture": architecture, **settings}, {})
    assert found.items() >= made.items()


def test_both_versions_of_the_format_are_read(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", random_model("qwen2"), "qwen2")
    with GgufFile(file) as read:
        newer = read.settings, read.tensors
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + (2).to_bytes(4, "little") + whole[8:])
    with GgufFile(file) as read:
        assert (read.settings, read.tensors) == newer


def test_tokenizer_template_and_settings_come_along(tmp_path: Path) -> None:
    ends = {
        f"tokenizer.ggml.{name}_token_id": at for name, at in (("eos", 0), ("eot", 3), ("eom", 4))
    }
    out = imported(tmp_path, settings=ends)
    tokenizer = tokenizer_of(out)
    text = "then 1907 or  12, ünd\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=True) == text
    assert tokenizer.name_of(tokenizer.encode(" the")[0]) == "Ġth"
    assert tokenizer.encode(SPECIAL[1]) == (1,)
    assert AutoTokenizer.from_pretrained(out).chat_template == TEMPLATE
    assert find_template(str(out), None) is not None
    said: dict[str, Any] = json.loads((out / "generation_config.json").read_text())
    # 2 ends a turn, by its text
    assert said == {"bos_token_id": 1, "eos_token_id": [0, 3, 4, 2], "pad_token_id": 2}


def test_digits_stay_alone_where_the_vocabulary_was_learned_so(tmp_path: Path) -> None:
    """Two spaces before a number are one token only where the number does not take the second
    one."""
    spelled = ["ĠĠ" if token == "Ġth" else token for token in BYTE_TOKENS]
    words = {"tokenizer.ggml.merges": ["Ġ Ġ", "Ġ t"], "tokenizer.ggml.tokens": spelled}
    for pre, first in (("smollm", "ĠĠ"), ("gpt-2", "Ġ")):
        (tmp_path / pre).mkdir()
        tokenizer = tokenizer_of(
            imported(tmp_path / pre, settings=words | {"tokenizer.ggml.pre": pre})
        )
        assert tokenizer.name_of(tokenizer.encode("  1")[0]) == first


@pytest.mark.parametrize("pre", ["deepseek-llm", "no-such-rule", "default"])
def test_a_rule_for_splitting_texts_that_is_not_known_is_refused(pre: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.pre: '{pre}' is no rule"):
        imported(tmp_path, settings={"tokenizer.ggml.pre": pre})
    assert not (tmp_path / "out").exists()


def test_a_sentencepiece_vocabulary_keeps_its_first_token(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", "▁a", "▁", "a", "b", *(f"<0x{n:02X}>" for n in range(256))]
    pieces += [f"x{n}" for n in range(288 - len(pieces))]
    settings = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * 3 + [-1.0] + [-2.0] * (len(pieces) - 4),
        "tokenizer.ggml.token_type": [2, 3, 3, *([1] * 4), *([6] * 256), *([1] * 25)],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.add_bos_token": True,
    }
    tokenizer = tokenizer_of(imported(tmp_path, settings=settings))
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.decode(tokenizer.encode("a b"), skip_special=True).strip() == "a b"
