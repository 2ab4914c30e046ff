"""The demo assistant: an ordinary small language model over the target's vocabulary, trained as the target was.

It is what speculative decoding without features drafts with (`generate(..., assistant_model=...)`), and so the baseline
the DSpark drafter is compared with: the same text, the same tokenizer, a thirteenth of the target's parameters.
"""

from pathlib import Path

from training import checkpoint, record
from training.corpus import DOMAINS
from training.target import Recipe


def recipe(*, seed: int, steps: int, minutes: float, compile: bool) -> Recipe:
    """Two layers of 128: a token of it costs about a tenth of one of the target."""
    return Recipe(
        seed=seed,
        steps=steps,
        minutes=minutes,
        hidden=128,
        layers=2,
        heads=2,
        kv_heads=1,
        mlp=352,
        compile=compile,
    )


def write_card(run: Path, folder: Path) -> None:
    """README.md of the released folder, from what the run below `run` left behind."""
    facts = checkpoint.read_header(run / "state.safetensors")["facts"]
    log = record.Log(run / "log.csv").read()
    losses = ", ".join(f"{domain} {log[domain][-1]:.2f}" for domain in DOMAINS)
    shape, steps = facts["recipe"], facts["steps"]
    minutes = facts["seconds"] / 60
    tokens = steps * shape["rows"] * shape["length"]
    (folder / "README.md").write_text(
        f"""# demo-assistant

A small Qwen3 language model over the vocabulary of `demo-target`, for speculative decoders that draft with a language
model of their own. It can be served as a drafter (`--drafter models/demo-assistant`); benchmarks
use it as the assistant of transformers' assisted generation.

{shape["layers"]} layers, hidden size {shape["hidden"]}, {shape["heads"]} query heads and {shape["kv_heads"]} key-value
head of 64, the tokenizer of `demo-target`, bf16. Trained on the same text: {steps:,} steps of
{shape["rows"] * shape["length"]:,} tokens ({tokens / 1e6:.1f} M in all), seed {shape["seed"]}, {minutes:.0f} minutes.
Held-out loss at the end (nats a token): {losses}.

```
python -m training corpus    --workdir DIR
python -m training tokenizer --workdir DIR --prompts DIR/prompts
python -m training assistant --workdir DIR --steps {steps}
```

Weights: Apache-2.0, as the project. The text trained on ships with CPython and is under the PSF licence.
""",
        encoding="utf-8",
    )
