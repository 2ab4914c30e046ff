"""What a round takes beside its two passes, between a verifier and a drafter in processes of their
own (rows 1 to 4).

Synthetic workers: a verification and a draft take a set time, whatever is in them, so what is left
of a round is hops, messages and Python. Temperature 1, 64 entries of q a slot, whole blocks, a
window of two rounds; a stand-in for the coordinator commits and acknowledges. Beside it, in the
same run and by turns: two processes that exchange the same messages, with as many rows, and do
nothing else (`bare_hops`). Medians of all rounds.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.row import Program, Row, quiet
from benchmarks.two_hops import RoundSetting, measure

MOST = 1.6  # of what bare streams take beside the passes
MANY = 64
WIDE = 4096  # values of a feature row
FP8 = WIDE // 2 + 2  # values of two bytes that are as many as a row of WIDE bytes and its scale


Bars = dict[str, float]  # by what is measured of a round
SAID = {
    "times_bare": "at most {:g} times bare streams",
    "overhead": "at most {:.0%} of a round",
    "verifier_busy": "busy at least {:.0%}",
}


def _holds(found: dict[str, float], bars: Bars) -> bool:
    return all(
        found[name] >= bar if name == "verifier_busy" else found[name] <= bar
        for name, bar in bars.items()
    )


def _said(bars: Bars) -> str:
    return " and ".join(SAID[name].format(bar) for name, bar in bars.items())


SLOW, FAST = (0.015, 0.002), (0.005, 0.0012)  # seconds of a verification, of a draft
BUSY = {"verifier_busy": 0.90}
ROWS: dict[int, tuple[str, dict[str, tuple[RoundSetting, Bars]]]] = {
    1: (
        "a round beside T_v 15 ms and T_d 2 ms, rows of 64 values",
        {
            "1 sequence": (RoundSetting(1, *SLOW), {"times_bare": MOST, "overhead": 0.10}),
            "64 sequences": (RoundSetting(MANY, *SLOW), {"times_bare": MOST, "overhead": 0.20}),
        },
    ),
    2: (
        f"the same at {MANY} sequences with rows of {WIDE} values",
        {
            "bf16": (RoundSetting(MANY, *SLOW, width=WIDE), {"times_bare": MOST}),
            "as many bytes as in fp8": (RoundSetting(MANY, *SLOW, width=FP8), {"times_bare": MOST}),
        },
    ),
    3: (
        "the same beside T_v 5 ms and T_d 1.2 ms, rows of 64 values; how busy two cohorts keep a "
        "verifier",
        {
            "1 sequence": (RoundSetting(1, *FAST), {"overhead": 0.22}),
            "64 sequences": (RoundSetting(MANY, *FAST), {"overhead": 0.40}),
            "64 sequences, two cohorts": (RoundSetting(MANY, *FAST, cohorts=2), BUSY),
            "64 sequences, two cohorts, T_v 15 ms, T_d 2 ms": (
                RoundSetting(MANY, *SLOW, cohorts=2),
                BUSY,
            ),
        },
    ),
    4: (
        "a round without drafts beside T_v 15 ms",
        {
            "1 sequence": (RoundSetting(1, *SLOW, drafts=False), {"overhead": 0.03}),
            "64 sequences": (RoundSetting(MANY, *SLOW, drafts=False), {"overhead": 0.06}),
        },
    ),
}


def main(argv: list[str] | None = None) -> int:
    parser = Program("round_overhead", __doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument(
        "--only", type=int, choices=ROWS, action="append", metavar="ROW", help="this row, 1 to 4"
    )
    args = parser.parse_args(argv)
    quiet()
    repeats, seconds = (2, 1.0) if args.quick else (5, 3.0)
    code = 0
    for number in args.only or ROWS:
        name, settings = ROWS[number]
        value: dict[str, Any] = {}
        for called, (setting, bars) in settings.items():
            found = measure(setting, repeats, seconds)
            shown = {each: round(figure, 4) for each, figure in found.items()}
            value[called] = {**shown, "bar": _said(bars), "holds": _holds(found, bars)}
        bar = "; ".join(f"{called}: {made['bar']}" for called, made in value.items())
        code |= Row(number, name, value, bar, all(made["holds"] for made in value.values())).show(
            as_json=args.json
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
