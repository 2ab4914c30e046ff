"""transformers `generate(do_sample=False)` as a user would call it, in float32."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.contestant import serve

LOOKUP_SLOTS = 4  # tokens that prompt lookup proposes at a time


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--assistant", default="")
    args = parser.parse_args(argv)
    target = _load(args.target)
    assistant = _load(args.assistant) if args.assistant else None

    def answer(asked: dict[str, Any]) -> list[list[int]]:
        torch.set_num_threads(asked["threads"])
        extra: dict[str, Any] = {}
        if asked["mode"] == "assisted":
            extra["assistant_model"] = assistant
        elif asked["mode"] == "prompt lookup":
            extra["prompt_lookup_num_tokens"] = LOOKUP_SLOTS
        return _answer(target, asked["prompts"], asked["tokens"], extra)

    serve(answer)


def _load(folder: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # answers have one length, and no penalty that the target's own file asks for
    model.generation_config.eos_token_id, model.generation_config.repetition_penalty = None, 1.0
    return model


@torch.inference_mode()
def _answer(
    target: Any, prompts: list[list[int]], tokens: int, extra: dict[str, Any]
) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = target.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=0, **extra
    )
    answers: list[list[int]] = out[:, longest:].tolist()
    return answers


if __name__ == "__main__":
    main()
