"""The Grafana dashboard, written from this list of panels: `python -m deploy.observability.dashboard` writes the file.

A panel is a title, a unit and queries; rows follow the life of a request: clients, speculation, rounds, pools.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "grafana" / "dashboards" / "dspark.json"
WIDTH, HEIGHT, COLUMNS = 8, 7, 3
CHOSEN = 'cell=~"$cell",replica=~"$replica"'
DRAFTING = 'kind="draft"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """queries: (PromQL, legend)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""
    kind: str = "timeseries"
    stack: bool = field(default=False)


def _of(name: str, *matchers: str) -> str:
    """A metric, of the cells and processes that are chosen at the top of the page."""
    return f"dspark_{name}{{{','.join((*matchers, CHOSEN))}}}"


def _rate(name: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({_of(name)}[$__rate_interval]))"


def _grown(name: str, by: str = "") -> str:
    return _rate(name, by).replace("rate(", "increase(", 1)


def _percentile(name: str, share: float, by: str = "") -> str:
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({_of(f'{name}_bucket')}[$__rate_interval])))"


def _latency(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((_percentile(name, share), f"p{round(100 * share)}") for share in (0.5, 0.95, 0.99))


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Clients",
        (
            Panel("Tokens per second", "short", ((_rate("generation_tokens_total"), "generated"),)),
            Panel("Time to first token", "s", _latency("time_to_first_token_seconds")),
            Panel("Time per token", "s", _latency("request_time_per_output_token_seconds")),
            Panel(
                "Requests",
                "short",
                (
                    (f"sum({_of('num_requests_running')})", "running"),
                    (f"sum({_of('num_requests_waiting')})", "waiting"),
                ),
            ),
            Panel("Requests ended", "reqps", ((_rate("requests_total", "outcome"), "{{outcome}}"),), stack=True),
            Panel("Inter-token latency", "s", _latency("inter_token_latency_seconds"), "From one commit to the next."),
            Panel("Requests refused", "reqps", ((_rate("admission_rejections_total", "reason"), "{{reason}}"),)),
        ),
    ),
    (
        "Speculation",
        (
            Panel(
                "Accepted length (tau)",
                "short",
                (
                    (
                        f"1 + {_rate('spec_decode_num_accepted_tokens_total')} / {_rate('rounds_total')}",
                        "tokens per round",
                    ),
                ),
                "Tokens committed per verification round, the target's own included.",
            ),
            Panel(
                "Accepted share by slot",
                "percentunit",
                (
                    (
                        f"{_rate('spec_decode_num_accepted_tokens_per_pos_total', 'position')} / on() group_left "
                        f"{_rate('spec_decode_num_drafts_total')}",
                        "slot {{position}}",
                    ),
                ),
            ),
            Panel(
                "What became of drafted tokens",
                "short",
                (
                    (_rate("spec_decode_num_accepted_tokens_total"), "accepted"),
                    (_rate("draft_wasted_tokens_total", "reason"), "{{reason}}"),
                ),
                stack=True,
            ),
            Panel(
                "Calibration",
                "percentunit",
                (
                    (
                        f"{_rate('spec_decode_num_accepted_tokens_total')} / "
                        f"{_rate('spec_decode_num_expected_tokens_total')}",
                        "accepted / promised",
                    ),
                ),
                "1 is a calibrated drafter; below, it promises too much.",
            ),
            Panel(
                "Acceptance by label",
                "percentunit",
                (
                    (
                        f"{_rate('label_accepted_tokens_total', 'label')} / "
                        f"{_rate('label_draft_tokens_total', 'label')}",
                        "{{label}}",
                    ),
                ),
            ),
            Panel(
                "Rounds without a draft", "short", ((_rate("empty_blocks_total", "reason"), "{{reason}}"),), stack=True
            ),
        ),
    ),
    (
        "Rounds",
        (
            Panel(
                "Verified prefix",
                "short",
                (
                    (_percentile("scheduled_verify_length", 0.5), "p50"),
                    (_percentile("scheduled_verify_length", 0.95), "p95"),
                ),
                "Drafted tokens sent to verification per sequence and round: the verification budget at work.",
            ),
            Panel("Verification round trip", "s", _latency("verify_rpc_seconds")),
            Panel("Draft round trip", "s", _latency("draft_rpc_seconds")),
            Panel(
                "Verifier waits with work",
                "s",
                _latency("pipeline_bubble_seconds"),
                "From one cohort's verdicts to the next cohort, while sequences are there: what drafting costs.",
            ),
            Panel(
                "Device time of a pass",
                "s",
                (
                    (_percentile("forward_seconds", 0.5, "kind"), "{{kind}} p50"),
                    (_percentile("forward_seconds", 0.95, "kind"), "{{kind}} p95"),
                ),
            ),
            Panel(
                "Packed batch",
                "short",
                (
                    (_percentile("verify_batch_tokens", 0.5), "verify tokens p50"),
                    (_percentile("draft_batch_sequences", 0.5), "draft sequences p50"),
                ),
            ),
        ),
    ),
    (
        "Pools",
        (
            Panel("Workers", "short", ((f"max by (pool, state) ({_of('pool_replicas')})", "{{pool}} {{state}}"),)),
            Panel(
                "Drafters' busy share",
                "percentunit",
                (
                    (
                        f"sum by (instance) (rate({_of('forward_seconds_sum', DRAFTING)}[$__rate_interval]))",
                        "{{instance}}",
                    ),
                ),
                "What the drafter pool is scaled by.",
            ),
            Panel("Cohorts wait for a drafter", "s", _latency("draft_wait_seconds")),
            Panel(
                "Pages in use",
                "percentunit",
                ((f"max by (instance) ({_of('kv_cache_usage_perc')})", "{{instance}}"),),
                "What the verifier pool is scaled by, with the queue and the promised latencies.",
            ),
            Panel("Wait for admission", "s", _latency("request_queue_time_seconds")),
            Panel(
                "Losses and preemptions",
                "short",
                (
                    (_grown("worker_losses_total", "pool"), "lost {{pool}}"),
                    (_grown("num_preemptions_total"), "preempted"),
                    (_grown("resends_total", "reason"), "resent: {{reason}}"),
                ),
            ),
            Panel("Bytes", "Bps", ((_rate("bytes_total", "direction, kind"), "{{direction}} {{kind}}"),)),
            Panel("Dropped messages", "short", ((_rate("dropped_total", "kind, reason"), "{{kind}}: {{reason}}"),)),
            Panel(
                "Prefix cache hits",
                "percentunit",
                (
                    (
                        f"{_rate('prefix_cache_hits_total')} / {_rate('prefix_cache_queries_total')}",
                        "share of prompt tokens",
                    ),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The JSON model Grafana imports."""
    panels: list[dict[str, Any]] = []
    y = number = 0
    for title, members in ROWS:
        number += 1
        panels.append(
            {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _at(0, y, 24, 1)}
        )
        y += 1
        for index, panel in enumerate(members):
            number += 1
            x = (index % COLUMNS) * WIDTH
            panels.append(_panel(number, panel, _at(x, y + index // COLUMNS * HEIGHT, WIDTH, HEIGHT)))
        y += (len(members) + COLUMNS - 1) // COLUMNS * HEIGHT
    return {
        "uid": "dspark",
        "title": "DSpark",
        "tags": ["dspark"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [_source(), _choice("cell", ""), _choice("replica", 'cell=~"$cell"')]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _source() -> dict[str, Any]:
    """Which Prometheus is asked; without a choice, the default one."""
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _choice(label: str, of: str) -> dict[str, Any]:
    """Values of a label, several or all of them; all includes processes without the label."""
    query = f"label_values(dspark_sequences{f'{{{of}}}' if of else ''}, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.stack else "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {"fillOpacity": 20 if panel.stack else 5, "stacking": stacking, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def write() -> None:
    """The file, as it should be."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
