"""A guided tour of speculative decoding with DSpark, on a tiny pair, on a CPU, in a few minutes.

    python examples/tour.py               # prints the tour; writes tour.md and its plots to ./tour
    python examples/tour.py --out docs    # how docs/tour.md was made

Every step is a function of `examples/guide`: its text is what the page says, its numbers are
measured.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from pathlib import Path

import torch
from guide import budget, drafts, heads, pair, rounds

STEPS = (
    drafts.plain_decoding,
    drafts.autoregressive_draft,
    drafts.block_draft,
    rounds.confidences,
    rounds.the_loop,
    rounds.losslessness,
    budget.threshold_sweep,
    heads.mini_training,
)
HEAD = """# A tour of speculative decoding

Made by `python examples/tour.py --out docs` on the tiny pair in `tests/data/pair`, on a CPU; every
number below was measured by the code of the step, and says how things work, not how well. The
program (`examples/guide`) reads like this page."""


def wrapped(page: str) -> str:
    """Paragraphs filled to one width; tables, pictures, headings and listings as they are."""
    parts, listing = [], False
    for part in page.split("\n\n"):
        keep = listing or part.startswith(("|", "!", "#", "```"))
        listing ^= part.count("```") % 2 == 1
        parts.append(
            part
            if keep
            else textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False)
        )
    return "\n\n".join(parts)


def run(folder: Path, *, tokens: int = 64, rows: int = 8, steps: int = 120) -> Path:
    """Takes the tour, prints it and writes `tour.md` below `folder`."""
    tour = pair.load(folder / "tour", tokens=tokens, rows=rows, steps=steps)
    begun, parts = time.monotonic(), [wrapped(HEAD)]
    for step in STEPS:
        with torch.inference_mode(step is not heads.mini_training):
            parts.append(wrapped(step(tour)))
        print(parts[-1], end="\n\n", flush=True)
    parts.append(
        f"---\n\n{time.monotonic() - begun:.0f} seconds on {torch.get_num_threads()} thread(s)."
    )
    page = folder / "tour.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("tour"), help="where tour.md and its plots go (./tour)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of the processor (1)")
    parser.add_argument("--short", action="store_true", help="a hasty tour, for trying it out")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    print(
        "written:",
        run(chosen.out, **({"tokens": 20, "rows": 2, "steps": 6} if chosen.short else {})),
    )
