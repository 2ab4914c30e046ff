"""Makes a small target and prompts for it, to try `dspark train all` on: a Qwen3 that learns worked arithmetic.

python examples/own_target.py DIR
dspark train all --target DIR/target --prompts DIR/prompts.jsonl --out DIR/chain --steps 300 --batch 16 --anchors 48
"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from training.arithmetic import worksheet

TOKENIZER = Path(__file__).parent.parent / "models" / "demo-target"
LENGTH = 128
PROMPT_TOKENS = (12, 40)


def text_ids(tokenizer: object, sheets: int, seed: int) -> torch.Tensor:
    """Worksheets one after the other, as one stream of ids."""
    rng = random.Random(seed)
    ids: list[int] = []
    for _ in range(sheets):
        ids += [*tokenizer.encode(worksheet(rng, 4)), tokenizer.eos_token_id]  # type: ignore[attr-defined]
    return torch.tensor(ids)


def train_target(tokenizer: object, stream: torch.Tensor, steps: int, rows: int) -> Qwen3ForCausalLM:
    """Five layers of 128, fp32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),  # type: ignore[arg-type]
        hidden_size=128,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=352,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,  # type: ignore[attr-defined]
        pad_token_id=tokenizer.pad_token_id,  # type: ignore[attr-defined]
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        starts = torch.randint(0, len(stream) - LENGTH, (rows,), generator=generator)
        ids = torch.stack([stream[start : start + LENGTH] for start in starts.tolist()])
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}", file=sys.stderr)
    return model.eval()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--steps", type=int, default=300, help="of the target's training")
    parser.add_argument("--rows", type=int, default=16, help="sequences of a step")
    parser.add_argument("--prompts", type=int, default=400, help="how many prompts")
    args = parser.parse_args(argv)
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER, local_files_only=True)
    model = train_target(tokenizer, text_ids(tokenizer, 1200, seed=0), args.steps, args.rows)
    model.save_pretrained(args.folder / "target")
    tokenizer.save_pretrained(args.folder / "target")
    rng = random.Random(2)
    with (args.folder / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(args.prompts):
            ids = tokenizer.encode(worksheet(rng, 4))[: rng.randint(*PROMPT_TOKENS)]
            file.write(json.dumps({"id": f"sheet-{number}", "prompt": tokenizer.decode(ids), "domain": "math"}) + "\n")
    print(args.folder / "target")
    return 0


if __name__ == "__main__":
    sys.exit(main())
