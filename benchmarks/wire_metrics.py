"""What travels: bytes and rows of features, and control round trips per round, read off the processes' own /metrics.

A feature row is one projected hidden state in bf16, 2H bytes; one travels per prompt and committed token that a later
draft can use, so per answer the prompt and all but the newest token. Rounds cost at most two control round trips.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.request

from benchmarks.pair import DOMAINS, add_arguments, chosen
from benchmarks.row import Row
from deploy.processes import LocalCell

TOKENS = 96
SETTLE_S = 5.0  # for the last rows to arrive


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire_metrics", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    pair = chosen(args)
    width = int(json.loads((pair.target / "config.json").read_text(encoding="utf-8"))["hidden_size"])
    prompts = [prompt for domain in DOMAINS for prompt in pair.prompts(domain, 2)]
    expected = 0
    with LocalCell(pair.target, pair.drafter) as cell, cell.client() as client:
        ports = {process.name: process.metrics_port for process in client.status().processes}
        for prompt in prompts:
            answer = client.complete(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True, policy="greedy")
            expected += answer.end.usage.prompt_tokens + answer.end.usage.completion_tokens - 1
        deadline = time.monotonic() + SETTLE_S
        while _sum(ports["draft/0"], 'feature_rows_total{direction="received"}') < expected:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        sent = _sum(ports["verify/0"], 'feature_rows_total{direction="sent"}')
        payload = _sum(ports["verify/0"], 'bytes_total{direction="sent",kind="features"}')
        received = _sum(ports["draft/0"], 'feature_rows_total{direction="received"}')
        trips = _sum(ports["coordinator/0"], "control_round_trips_total{")
        cohorts = _sum(ports["coordinator/0"], "cohorts_total ")
        curve = _sum(ports["coordinator/0"], "cost_curve_in_force{")
        policy = _sum(ports["coordinator/0"], 'policy_info{policy="greedy"}')
    value = {
        "bytes_per_row": payload / sent if sent else 0.0,
        "rows_sent": sent,
        "rows_received": received,
        "rows_expected": expected,
        "control_round_trips_per_round": round(trips / cohorts, 3) if cohorts else 0.0,
        "greedy_in_force": policy == 1,
        "cost_curve_in_force": curve == 1,
    }
    # The last round of an answer may commit tokens past its end, whose rows travel before anybody can know.
    block = 8 * len(prompts)
    holds = (
        value["bytes_per_row"] == 2 * width
        and expected <= sent == received <= expected + block
        and 0 < trips <= 2 * cohorts
        and policy == curve == 1
    )
    bar = f"{2 * width} bytes a row, rows of prompts and committed tokens only, at most 2 round trips, gauges say so"
    return Row(10, "what travels", value, bar, holds).show(as_json=args.json)


def _sum(port: int, sample: str) -> float:
    """Sum over the samples that begin with `sample`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    pattern = re.compile(rf"dspark_{re.escape(sample)}")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if pattern.match(line))


if __name__ == "__main__":
    sys.exit(main())
