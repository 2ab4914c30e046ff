"""Queries of panels, alerts and pages: they name what exists, and what they compare has labels in
common."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dspark.cli.discovery import groups
from dspark.client import CellStatus, ProcessStatus
from dspark.runtime.telemetry import Metrics

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
OBSERVED = DEPLOY / "observability"
PAGE = json.loads((OBSERVED / "grafana" / "dashboards" / "dspark.json").read_text())
# labels Prometheus puts on what it scrapes
TARGET = {"instance", "job", "role", "replica", "incarnation"}


def _own_labels() -> dict[str, set[str]]:
    """Labels by the name of every sample /metrics may show."""
    found = {}
    for metric in vars(Metrics()).values():
        if not hasattr(metric, "_labelnames"):
            continue
        labels = OF_ALL | set(metric._labelnames)
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
            metric._type, [""]
        )
        found |= {
            metric._name + suffix: labels | ({"le"} if suffix == "_bucket" else set())
            for suffix in suffixes
        }
    return found


OF_ALL = {"model_name", "cell"}  # on every sample
LABELS = _own_labels() | {"up": set()}  # Prometheus' own, of each target


(GROUP,) = yaml.safe_load((OBSERVED / "alerts.yml").read_text())["groups"]
ALERTS = GROUP["rules"]


def _queries() -> Iterator[str]:
    for panel in PAGE["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in ALERTS)
    table = (
        (ROOT / "docs" / "observability.md")
        .read_text()
        .partition("| question |")[2]
        .partition("\n\n")[0]
    )
    yield from (query for query in re.findall("`([^`]+)`", table) if "dspark_" in query)


QUERIES = sorted(set(_queries()))


@pytest.mark.parametrize("query", QUERIES)
def test_queries_name_metrics_and_labels_that_exist(query: str) -> None:
    used = re.findall(r"dspark_\w+", query)
    used += re.findall(r"\bup\b(?={)", query)
    if used == [query]:  # a page may name a histogram as such
        used = [query] if query in LABELS else [f"{query}_count"]
    assert used
    assert set(used) <= set(LABELS), set(used) - set(LABELS)
    allowed = TARGET.union(*(LABELS[name] for name in used))
    for grouping in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in grouping.split(",")} <= allowed
    for matcher in re.findall(r"\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)=", matcher)) <= allowed


@pytest.mark.parametrize("query", QUERIES)
def test_both_sides_of_an_operator_have_the_labels_they_are_matched_by(query: str) -> None:
    _labels_of(_parse(query))


@pytest.mark.parametrize(
    "query",
    [
        "max(dspark_num_requests_waiting) > 0 and "
        'rate(dspark_admission_rejections_total{reason="queue_full"}[5m]) > 0',
        "sum by (reason) (rate(dspark_draft_wasted_tokens_total[5m])) / "
        "sum(rate(dspark_rounds_total[5m]))",
        "sum by (reason) (dspark_draft_wasted_tokens_total) / on() group_left dspark_rounds_total",
        "sum(dspark_rounds_total) / on(pool) sum by (pool) (dspark_worker_losses_total)",
    ],
)
def test_a_query_that_could_never_match_is_noticed(query: str) -> None:
    with pytest.raises(AssertionError, match="matched by"):
        _labels_of(_parse(query))


def test_an_alert_is_about_one_cell() -> None:
    """One Prometheus may watch several: a cell in order must not hide another's trouble."""
    for rule in ALERTS:
        labels = _labels_of(_parse(rule["expr"])) or set()
        assert labels & {"cell", "instance"}, rule["alert"]


@pytest.mark.parametrize("trouble", ['absent(up{role="coordinator"})', "dspark_journal_failed"])
def test_what_no_other_alert_shows_is_one(trouble: str) -> None:
    """The others go by what coordinators that serve tell."""
    assert any(trouble in rule["expr"] for rule in ALERTS)


def test_every_alert_names_a_section_of_the_operations_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    headings = {line.lstrip("#").strip() for line in page.splitlines() if line.startswith("#")}
    for rule in ALERTS:
        section = rule["annotations"]["summary"].rpartition(", ")[2]
        assert section in headings, section


def _labels_of_targets() -> list[set[str]]:
    """By `dspark sd`, by compose, and on Kubernetes."""
    process = ProcessStatus(name="draft/0", endpoint="10.0.0.2:7000", metrics_port=9102)
    (found,) = groups(CellStatus(processes=(process,)), "10.0.0.1:7000")
    (scrape,) = yaml.safe_load((OBSERVED / "prometheus.yml").read_text())["scrape_configs"]
    composed = {label for target in scrape["static_configs"] for label in target["labels"]}
    composed |= {rule["target_label"] for rule in scrape["relabel_configs"]}
    monitor = yaml.safe_load((DEPLOY / "kubernetes" / "podmonitor.yaml").read_text())["spec"]
    rules = monitor["podMetricsEndpoints"][0]["relabelings"]
    return [set(found["labels"]), composed, {rule["targetLabel"] for rule in rules}]


def test_labels_of_a_target_hide_none_of_a_metric() -> None:
    """Prometheus would rename the metric's to exported_NAME, and queries by it would be about the
    target."""
    assert set().union(*_labels_of_targets()) <= TARGET
    assert not TARGET & set().union(*LABELS.values())


def test_every_target_has_the_labels_that_queries_go_by() -> None:
    assert all({"role", "replica"} <= given for given in _labels_of_targets())


def _parse(query: str) -> Any:
    return pytest.importorskip("promql_parser").parse(query.replace("$__rate_interval", "5m"))


def test_panels_of_the_dashboard_have_ids_and_places_of_their_own() -> None:
    panels = PAGE["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(taken)) == len(taken)


def test_panels_are_of_the_chosen_source_cell_and_replica() -> None:
    choices = {each["name"]: each for each in PAGE["templating"]["list"]}
    assert list(choices) == ["datasource", "cell", "replica"]
    assert choices["datasource"]["type"] == "datasource"
    panels = [panel for panel in PAGE["panels"] if panel["type"] != "row"]
    for each in (
        *(panel for panel in panels),
        *(target for panel in panels for target in panel["targets"]),
    ):
        assert each["datasource"]["uid"] == "${datasource}"
    for query in (target["expr"] for panel in panels for target in panel["targets"]):
        selectors = len(re.findall(r"dspark_\w+", query))
        assert selectors == query.count('cell=~"$cell",replica=~"$replica"'), query


def _labels_of(node: Any) -> set[str] | None:
    """Labels of what an expression yields; None for a number."""
    match type(node).__name__:
        case "VectorSelector":
            return TARGET | LABELS.get(node.name, set())
        case "MatrixSelector":
            return _labels_of(node.vector_selector)
        case "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            return _labels_of(node.expr)
        case "Call":
            vectors = [labels for each in node.args if (labels := _labels_of(each)) is not None]
            left = vectors[0] if vectors else None
            return (
                left - {"le"}
                if left is not None and node.func.name == "histogram_quantile"
                else left
            )
        case "AggregateExpr":
            inner = _labels_of(node.expr)
            if node.modifier is None:
                return set()
            named = set(node.modifier.labels)
            return named if str(node.modifier.type) == "AggModifierType.By" else inner - named
        case "BinaryExpr":
            return _matched(_labels_of(node.lhs), _labels_of(node.rhs), node.modifier, str(node))
    return None


def _matched(
    left: set[str] | None, right: set[str] | None, modifier: Any, text: str
) -> set[str] | None:
    if left is None or right is None:
        return right if left is None else left
    matching = modifier.matching if modifier is not None else None
    if matching is None:
        assert left == right, f"{text}: matched by {left} and {right}"
        return left
    named = set(matching.labels)
    if str(matching.type) == "LabelModifierType.Exclude":
        assert left - named == right - named, (
            f"{text}: matched by {left - named} and {right - named}"
        )
        return left
    assert named <= left & right, f"{text}: matched by {named}"
    many = {"ManyToOne": "left", "OneToMany": "right", "ManyToMany": "both"}.get(
        str(modifier.card).split(".")[-1]
    )
    for side, labels in (("left", left), ("right", right)):
        assert many in (side, "both") or labels <= named, (
            f"{text}: several of the {side} side are matched by {named}"
        )
    return left


def test_what_alerts_count_is_shown_before_it_happens() -> None:
    shown = [each for family in Metrics().registry.collect() for each in family.samples]
    counted = r"(?:rate|increase)\((\w+)(?:{(\w+)=\"(\w+)\"})?\["
    for name, label, value in re.findall(counted, " ".join(rule["expr"] for rule in ALERTS)):
        mine = [each for each in shown if each.name == name]
        if label:
            mine = [each for each in mine if each.labels[label] == value]
        assert mine, f"an increase of {name} from nothing is none to Prometheus"
