"""llama.cpp on the GGUF file that the target was made of, and on the same weights in F16."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from benchmarks.peers.contestant import PeerWorker


class LlamaCpp(PeerWorker):
    """llama.cpp with one file. Prompts asked at once are answered one after the other: the package
    does not batch."""

    most = 0

    def __init__(self, name: str, python: Path | None, file: Path, cores: Sequence[int]) -> None:
        super().__init__(
            python, "benchmarks.peers.llama_worker", [f"--gguf={file}", f"--threads={len(cores)}"]
        )
        self.name = name

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        return self.ask(prompts=prompts, tokens=tokens)


def write_f16(source: Path, file: Path) -> None:
    """Writes the same model with its quantised tensors as F16."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(file, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        plain = tensor.tensor_type == gguf.GGMLQuantizationType.F32
        values = (
            tensor.data
            if plain
            else gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
        )
        writer.add_tensor(tensor.name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
