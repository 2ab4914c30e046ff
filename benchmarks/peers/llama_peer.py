"""llama.cpp on the GGUF file that the target was made of, and on the same weights in F16.

As a program it is the worker, through llama-cpp-python, which decodes one sequence at a time. It
needs nothing else of this project.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.peers.contestant import PeerWorker, serve


class LlamaCpp(PeerWorker):
    """llama.cpp with one file. Prompts asked at once are answered one after the other: the package
    does not batch."""

    most = 0

    def __init__(self, name: str, python: Path | None, file: Path, cores: Sequence[int]) -> None:
        words = [f"--gguf={file}", f"--threads={len(cores)}"]
        super().__init__(python, "benchmarks.peers.llama_peer", words)
        self.name = name

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        return self.ask(prompts=prompts, tokens=tokens)


def write_f16(source: Path, file: Path) -> None:
    """Writes the same model with its quantised tensors as F16."""
    import gguf
    import numpy as np

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


def main(argv: list[str] | None = None) -> None:
    from llama_cpp import Llama  # type: ignore[import-not-found]  # in its own environment

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args(argv)
    threads = args.threads
    model = Llama(args.gguf, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)

    def answer(asked: dict[str, Any]) -> list[list[int]]:
        # `generate` goes on after a stop token, as all contestants do.
        made = (
            islice(model.generate(prompt, temp=0.0), asked["tokens"]) for prompt in asked["prompts"]
        )
        return [list(map(int, ids)) for ids in made]

    serve(answer)


if __name__ == "__main__":
    main()
