"""The F16 file that llama.cpp is measured with holds the values and the metadata of the packed
one."""

from pathlib import Path

import gguf
import numpy as np

from benchmarks.peers.llama_peer import write_f16
from tests.unit.gguf.files import Kind, random_model, write_gguf

KINDS = {"token_embd": Kind.Q8_0, "attn_q": Kind.Q4_1, "ffn_up": Kind.Q4_1}


def test_packed_tensors_become_f16_and_the_rest_stays(tmp_path: Path) -> None:
    packed = write_gguf(tmp_path / "packed.gguf", random_model("llama"), "llama", kinds=KINDS)
    write_f16(packed, tmp_path / "plain.gguf")
    before, after = gguf.GGUFReader(packed), gguf.GGUFReader(tmp_path / "plain.gguf")
    assert {t.name: t.tensor_type for t in after.tensors} == {
        t.name: t.tensor_type if t.tensor_type == Kind.F32 else Kind.F16 for t in before.tensors
    }
    for one, other in zip(before.tensors, after.tensors, strict=True):
        values = gguf.dequantize(one.data, one.tensor_type)
        plain = other.tensor_type == Kind.F32
        assert np.array_equal(other.data, values if plain else values.astype(np.float16))
    changed = {"GGUF.tensor_count", "GGUF.kv_count", "general.file_type"}
    told = {name: field.contents() for name, field in before.fields.items() if name not in changed}
    assert told == {
        name: field.contents() for name, field in after.fields.items() if name not in changed
    }
