"""Every drafter dies in the middle of long answers: plain decoding at once, drafts again soon after they are back.

`share_of_plain` compares the speed from one second after the kill on with that of such streams under the policy `off`,
before and after; `back_s` is the time from the drafters' readiness to the first round with a draft.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

from benchmarks.drafter_kill import Meter
from benchmarks.failing import Setup, Stream, arguments, fresh, running, same, undisturbed, until
from benchmarks.row import Row, note
from deploy.head import free_ports
from deploy.processes import LocalCell

STREAMS = 8
PLAIN_TOKENS = 300
DEAD_S = 4.0
SHARE, BACK_S = 0.95, 5.0


def main(argv: list[str] | None = None) -> int:
    parser = arguments("drafters_gone", __doc__)
    parser.add_argument("--tokens", type=int, default=1600)
    args = parser.parse_args(argv)
    setup = Setup.of(args)
    tokens = min(args.tokens, setup.longest(STREAMS))
    wave = setup.streams(STREAMS, tokens)
    (port,) = free_ports(1)
    with setup.cell(drafters=2, coordinator={"metrics_port": port}) as cell:
        calm = asyncio.run(undisturbed(cell, wave))
        plain = setup.streams(STREAMS, min(tokens, PLAIN_TOKENS), policy="off")
        before = _rate(asyncio.run(undisturbed(cell, plain)))
        note("all drafters are killed")
        hurt = asyncio.run(_run(cell, fresh(wave), Meter(port)))
        after = _rate(asyncio.run(undisturbed(cell, plain)))
    plain_rate = (before + after) / 2  # other programs of the machine come and go
    value: dict[str, object] = {
        "streams": STREAMS,
        "tokens": tokens,
        "same_ids": same(hurt.streams, calm),
        "errors": sorted({stream.error for stream in hurt.streams if stream.error}),
        "plain_tokens_per_s": round(plain_rate, 1),
        "tokens_per_s_without_drafters": round(hurt.rate, 1),
        "share_of_plain": round(hurt.rate / plain_rate, 3),
        "longest_pause_s": round(max(gap for stream in hurt.streams for gap in stream.gaps), 3),
        "back_s": None if hurt.back_s is None else round(hurt.back_s, 2),
        "pair": setup.name,
    }
    bar = f"no error, same ids, >= {SHARE:.0%} of plain speed from 1 s after, drafts again <= {BACK_S:g} s after return"
    back = hurt.back_s is not None and hurt.back_s <= BACK_S
    holds = value["same_ids"] == STREAMS and hurt.rate >= SHARE * plain_rate and back
    return Row(12, "without drafters it is plain decoding", value, bar, holds).show(as_json=args.json)


class Hurt:
    """What was seen."""

    def __init__(self, streams: list[Stream]) -> None:
        self.streams = streams
        self.rate = 0.0
        self.back_s: float | None = None


async def _run(cell: LocalCell, streams: list[Stream], meter: Meter) -> Hurt:
    hurt = Hurt(streams)
    async with running(cell, streams):
        await until(lambda: statistics.median(len(stream.ids) for stream in streams) >= 100)
        for name in ("draft/0", "draft/1"):
            cell.kill(name)
        await asyncio.sleep(1.0)
        began, said = time.monotonic(), _said(streams)
        await asyncio.sleep(DEAD_S)
        hurt.rate = (_said(streams) - said) / (time.monotonic() - began)
        for name in ("draft/0", "draft/1"):
            await asyncio.to_thread(cell.restart, name)
        ready, drafts = time.monotonic(), meter.counter("spec_decode_num_drafts")
        while any(not (stream.finish or stream.error) for stream in streams) and hurt.back_s is None:
            await asyncio.sleep(0.05)
            if await asyncio.to_thread(meter.counter, "spec_decode_num_drafts") > drafts:
                hurt.back_s = time.monotonic() - ready
    return hurt


def _rate(streams: list[Stream]) -> float:
    """Tokens per second of streams that ran together, from the first token on."""
    began = min(stream.times[0] for stream in streams)
    return _said(streams) / (max(stream.times[-1] for stream in streams) - began)


def _said(streams: list[Stream]) -> int:
    return sum(len(stream.ids) for stream in streams)


if __name__ == "__main__":
    sys.exit(main())
