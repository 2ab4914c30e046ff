"""The file of a synthetic pair: what it says, and every mistake by its field."""

from pathlib import Path
from typing import Any

import pytest

from dspark.errors import ConfigError
from dspark.synthetic.spec import load_spec, read_spec

ROOT = Path(__file__).parents[3]


def document(**changes: Any) -> dict[str, Any]:
    return {
        "verify": {"tokens": [1, 8], "contexts": [0, 1000], "ms": [[2, 4], [3, 6]]},
        "draft": {"sequences": [1], "ms": [1]},
        "domains": {"a": {"accept": [0.9, 0.8], "concentration": 2}, "b": {"accept": [0.5, 0.4]}},
        **changes,
    }


def test_a_small_file_is_enough() -> None:
    spec = read_spec(document())
    assert spec.block == 2
    assert [domain.concentration for domain in spec.domains] == [2.0, None]
    assert spec.verify.seconds(8, 500) == pytest.approx(0.0045)
    assert spec.draft.seconds(100, 500) == pytest.approx(0.001)
    assert spec.prefill_seconds(8, 0) == spec.verify.seconds(8, 0)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "synthetic").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_shipped_files_are_read(path: Path) -> None:
    assert load_spec(path).block >= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verify": None}, "verify: required and not given"),
        ({"verify": 3}, "verify: must be a mapping"),
        ({"draft": {"sequences": [1]}}, "draft.ms: required and not given"),
        ({"draft": {"sequences": [2, 1], "ms": [1, 1]}}, "draft.sequences: must ascend"),
        ({"draft": {"sequences": [1], "ms": [-1]}}, "draft.ms[0]: -1 is not in 1e-06..10000000"),
        ({"draft": {"sequences": [1], "ms": [[1, 2]]}}, "draft.ms[0]: 2 values for 1 contexts"),
        ({"draft": {"sequences": [1], "ms": [1, 2]}}, "draft.ms: needs one row per entry of"),
        ({"draft": {"sequences": [1], "ms": [1], "stairs": 2}}, "draft.stairs: must be true"),
        ({"draft": {"sequences": [1], "ms": [1], "token": 2}}, "draft.token: unknown key"),
        ({"domains": {}}, "domains: must map names"),
        ({"domains": {"a": {"accept": [1.2]}}}, "domains.a.accept[0]: 1.2 is not in 0..1"),
        ({"domains": {"a": {"accept": [1]}, "b": {"accept": [1, 1]}}}, "domains.b.accept: 2 slots"),
        ({"vocabulary": 1 << 30}, "vocabulary: "),
        ({"vocabulary": True}, "vocabulary: must be a whole number, got True"),
        ({"confidence": {"noise": "much"}}, "confidence.noise: must be a number, got 'much'"),
        ({"speed": 2}, "speed: unknown key"),
    ],
)
def test_a_mistake_is_named_by_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_spec(document(**changes))
    assert str(caught.value).startswith(f"synthetic.{message}")


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text("verify: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"pair\.yaml: cannot be read"):
        load_spec(path)


def test_stairs_stay_at_the_next_size_and_are_announced_with_both_edges() -> None:
    table = read_spec(
        document(draft={"sequences": [1, 4, 8], "ms": [1, 2, 3], "stairs": True})
    ).draft
    assert [table.seconds(n, 0) for n in (1, 2, 4, 5, 8)] == [0.001, 0.002, 0.002, 0.003, 0.003]
    sizes, _, seconds = table.announced()
    assert sizes == [1, 2, 4, 5, 8]
    assert seconds == [[0.001], [0.002], [0.002], [0.003], [0.003]]


def test_lines_go_on_past_the_last_size_and_context_ends_hold() -> None:
    table = read_spec(document()).verify
    assert table.seconds(15, 0) == pytest.approx(0.004)
    assert table.seconds(1, 5000) == pytest.approx(0.004)
    assert table.seconds(0, 0) == pytest.approx(0.002)
