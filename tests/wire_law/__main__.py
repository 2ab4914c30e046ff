"""`make wire-law`: the whole thing, or a setting of it; one JSON object a line with --json."""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.row import Row
from tests.wire_law.pair import served, write_tiny_pair
from tests.wire_law.settings import SETTINGS, VOCABULARY
from tests.wire_law.verdict import P_BAR, TOKENS_BAR, corrected, draw

DRAWS, SEED = 100_000, 20_000


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire_law", description=__doc__)
    parser.add_argument(
        "--draws", type=int, default=DRAWS, metavar="N", help=f"answers a setting ({DRAWS})"
    )
    parser.add_argument(
        "--seed", type=int, default=SEED, help="first request seed, and key of the checkpoints"
    )
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="settings whose name has these words"
    )
    parser.add_argument(
        "--kept", type=Path, metavar="FILE", help="go on behind the settings that this file holds"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a setting, and one of all"
    )
    args = parser.parse_args(argv)
    settings = [setting for setting in SETTINGS if args.only in setting.name]
    if not settings:
        parser.error(f"--only: no setting has {args.only!r} in its name")
    with served(write_tiny_pair, VOCABULARY, args.seed) as (endpoint, target):
        asked = {"seed": args.seed, "settings": settings, "kept": args.kept}
        rows = draw(endpoint, target, args.draws, **asked)
    least = corrected(rows)
    for row, value in zip(rows, least, strict=True):
        row["p_corrected"] = value
        if args.json:
            print(json.dumps(row))
        else:
            print(
                f"{row['setting']:50} {row['answers']} answers  {row['tokens_a_round']} a round  p "
                f"= {value:.3g}"
            )
    tokens = min(row["tokens_a_round"] for row in rows)
    found = {"settings": len(rows), "p_corrected": min(least), "tokens_a_round": tokens}
    bar = f"p > {P_BAR} after Holm, {TOKENS_BAR} tokens a round and more in every setting"
    holds = min(least) > P_BAR and tokens >= TOKENS_BAR
    return Row("wire-law", "sampled answers follow the law", found, bar, holds).show(
        as_json=args.json
    )


if __name__ == "__main__":
    sys.exit(main())
