"""llama.cpp through llama-cpp-python, which decodes one sequence at a time. Needs nothing else of
this project."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from llama_cpp import Llama  # type: ignore[import-not-found]  # in its own environment

from benchmarks.peers.contestant import serve


def main(argv: list[str] | None = None) -> None:
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
