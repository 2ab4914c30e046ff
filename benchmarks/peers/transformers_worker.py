"""The transformers peer's own process: a JSON line with a prompt in, a JSON line with the ids out.

`generate(do_sample=False)` as a user would call it, float32, batch 1, with and without an assistant. A process of its
own keeps its threads and memory apart from the client's, as every server's are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--assistant", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parent-pid", type=int, required=True)
    args = parser.parse_args(argv)
    threading.Thread(target=_end_with, args=(args.parent_pid,), daemon=True).start()
    torch.set_num_threads(args.threads)
    target = _load(args.target)
    assistant = _load(args.assistant) if args.assistant else None
    passes = [0]
    target.register_forward_pre_hook(lambda *given: passes.__setitem__(0, passes[0] + 1))
    print(json.dumps({"ready": True, "parameters": target.num_parameters()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "threads" in asked:
            torch.set_num_threads(int(asked["threads"]))
        passes[0] = 0
        ids = _answer(target, assistant if asked["assisted"] else None, asked)
        # The first pass reads the prompt; the others are rounds.
        print(json.dumps({"ids": ids, "rounds": passes[0] - 1}), flush=True)


def _load(folder: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # answers have one length
    return model


@torch.inference_mode()
def _answer(target: Any, assistant: Any, asked: dict[str, Any]) -> list[int]:
    ids = torch.tensor([asked["prompt"]])
    if assistant is not None and asked.get("assistant_tokens"):
        assistant.generation_config.num_assistant_tokens = int(asked["assistant_tokens"])
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = float(asked["confidence"])
    extra = {"assistant_model": assistant} if assistant is not None else {}
    out = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=asked["tokens"],
        pad_token_id=0,
        **extra,
    )
    answer: list[int] = out[0, len(asked["prompt"]) :].tolist()
    return answer


def _end_with(parent: int) -> None:
    """Nothing outlives the benchmark that asked."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
