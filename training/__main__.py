"""`python -m training STAGE --workdir DIR`: one stage of the recipe, or all of them in order.

Arguments are read before anything heavy is imported, so that `--help` answers at once.
"""

import argparse
from pathlib import Path

STAGES = (
    "corpus",
    "tokenizer",
    "target",
    "variety",
    "continuations",
    "drafter",
    "calibrate",
    "evaluate",
    "card",
    "assistant",
)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="training", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stage", choices=(*STAGES, "all"))
    parser.add_argument("--workdir", type=Path, required=True, help="where corpus, states and logs live")
    parser.add_argument("--models", type=Path, default=Path("models"), help="where the released folders go")
    parser.add_argument("--prompts", type=Path, default=Path("benchmarks/prompts"), help="held-out prompt files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=40.0, help="time for the stage that trains or generates")
    parser.add_argument("--steps", type=int, default=0, help="train this many steps instead of measuring")
    parser.add_argument("--shards", type=int, default=0, help="write this many shards of continuations")
    parser.add_argument("--block", type=int, default=7, help="tokens of the drafter's block")
    parser.add_argument("--plain", type=int, help="shards of plain training text beside the continuations")
    parser.add_argument("--start", type=Path, help="released drafter to go on from, of any block size")
    parser.add_argument("--compile", action="store_true", help="compile the layers (about a third faster)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    chosen = arguments(argv)
    from training import stages

    stages.run(chosen)


if __name__ == "__main__":
    main()
