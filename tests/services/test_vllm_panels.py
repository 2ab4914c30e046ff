"""Panels that people have for vLLM show data here once the prefix of their metrics is replaced."""

import re
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dspark.client import Client
from tests.services.http_cell import HttpCell, of_module, slowly, synthetic_pair
from tests.waiting import wait_until

MODEL, CELL = "the-model", "cell-7"

# One expression per panel, in the words of the dashboards that vLLM publishes. $of stands for the
# model's label.
PANELS = {
    "running": "vllm:num_requests_running$of",
    "waiting": "vllm:num_requests_waiting$of",
    "cache": "vllm:kv_cache_usage_perc$of",
    "first token": "histogram_quantile(0.99, sum by(le) "
    "(rate(vllm:time_to_first_token_seconds_bucket$of[5m])))",
    "mean first token": "rate(vllm:time_to_first_token_seconds_sum$of[5m]) / "
    "rate(vllm:time_to_first_token_seconds_count$of[5m])",
    "between tokens": "histogram_quantile(0.5, sum by(le) "
    "(rate(vllm:inter_token_latency_seconds_bucket$of[5m])))",
    "per token": "rate(vllm:request_time_per_output_token_seconds_sum$of[5m])",
    "whole request": "histogram_quantile(0.9, sum by(le) "
    "(rate(vllm:e2e_request_latency_seconds_bucket$of[5m])))",
    "success": "sum by(finished_reason) (increase(vllm:request_success_total$of[5m]))",
    "prompt tokens": "rate(vllm:prompt_tokens_total$of[5m])",
    "generated tokens": "rate(vllm:generation_tokens_total$of[5m])",
    "queue": "rate(vllm:request_queue_time_seconds_sum$of[5m])",
    "prefill": "rate(vllm:request_prefill_time_seconds_sum$of[5m])",
    "decode": "rate(vllm:request_decode_time_seconds_sum$of[5m])",
    "prompts": "sum by(le) (increase(vllm:request_prompt_tokens_bucket$of[5m]))",
    "answers": "sum by(le) (increase(vllm:request_generation_tokens_bucket$of[5m]))",
}


SHARED = {"metrics_port": 0, "served_model": MODEL, "cell": CELL}
cell = of_module(slowly, http=None, max_running=1, policy="fixed:2", shared=SHARED)


def _samples(cell: HttpCell) -> list[Sample]:
    found: list[Sample] = []
    for process in (cell.coordinator, cell.verifier, cell.drafter):
        page = httpx.get(f"http://127.0.0.1:{process.metrics_port}/metrics").text
        for family in text_string_to_metric_families(page):
            found += family.samples
    return found


def _shown(expression: str, samples: list[Sample]) -> float:
    """The largest value that an expression reads; fails where it reads or groups nothing."""
    largest, groups = 0.0, set(re.findall(r"by\((\w+)\)", expression))
    for name in re.findall(r"vllm:(\w+)\$of", expression):
        its = [each for each in samples if each.name == f"dspark_{name}"]
        read = [each for each in its if each.labels["model_name"] == MODEL]
        assert read, f"{expression} reads nothing"
        assert all(groups <= each.labels.keys() for each in read), expression
        largest = max(largest, *(each.value for each in read))
    return largest


def test_every_panel_shows_data(cell: HttpCell) -> None:
    with Client(cell.coordinator.endpoint) as client:
        client.complete([5, 6, 7], max_tokens=20, temperature=0.0, ignore_eos=True)
        streams = [
            client.generate([5, 6, 7], max_tokens=4000, ignore_eos=True, request_id=name)
            for name in "ab"
        ]
        next(streams[0])
        wait_until(lambda: _shown(PANELS["running"], _samples(cell)) == 1)
        wait_until(lambda: _shown(PANELS["waiting"], _samples(cell)) == 1)
        wait_until(lambda: 0 < _shown(PANELS["cache"], _samples(cell)) <= 1)
        assert set(client.abort(["a", "b"])) == {"a", "b"}
    samples = _samples(cell)
    for panel, expression in PANELS.items():
        if panel not in ("running", "waiting", "cache"):
            assert _shown(expression, samples) > 0, f"{panel}: {expression}"
    ends = {
        each.labels["finished_reason"]
        for each in samples
        if each.name == "dspark_request_success_total"
    }
    assert ends == {"stop", "length", "abort"}
    gaps, whole = (
        sum(each.value for each in samples if each.name == f"dspark_{name}_count")
        for name in ("inter_token_latency_seconds", "request_time_per_output_token_seconds")
    )
    assert gaps > whole, "one observation per commit, not per request"


def test_every_sample_says_which_model_and_cell_and_none_when_it_began(cell: HttpCell) -> None:
    samples = _samples(cell)
    assert len(samples) > 300
    assert {(each.labels.get("model_name"), each.labels.get("cell")) for each in samples} == {
        (MODEL, CELL)
    }
    assert not [each.name for each in samples if each.name.endswith("_created")]


def test_a_coordinator_without_a_target_calls_it_what_verifiers_do(tmp_path: Any) -> None:
    shared = {"metrics_port": 0}
    with HttpCell(synthetic_pair(tmp_path), http=None, target=None, shared=shared) as running:
        wait_until(lambda: running.coordinator.cell.membership.verifiers)
        assert {each.labels["model_name"] for each in _samples(running)} == {"synthetic"}
