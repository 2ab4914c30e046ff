"""The list of runs: what it holds, how runs are named and chosen."""

from __future__ import annotations

from collections import Counter

import pytest

from training.lab.__main__ import main
from training.lab.plan import BLOCKS, DEPTHS, SEEDS, Run, dspark, main_table, plan
from training.lab.run import chosen


def test_every_run_is_there_once_and_has_a_name_of_its_own() -> None:
    runs = plan()
    assert len(set(runs)) == len(runs) == len({run.name for run in runs})


def test_the_main_table_has_every_family_with_every_seed_and_comes_first() -> None:
    runs = list(main_table())
    assert runs == plan()[: len(runs)]
    assert set(Counter(run.kind for run in runs).values()) == {len(SEEDS)}
    assert {run.family for run in runs} == {"dspark", "dflash", "eagle3", "mtp", "lm"}
    # A seed is finished before the next begins, so that a lab cut short still compares all families.
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)


def test_ablations_change_one_thing_at_a_time() -> None:
    runs = plan()
    for family, base in (("dspark", dspark()), ("dflash", Run("dflash"))):
        assert {run.layers for run in runs if run.family == family and run.block == base.block} == set(DEPTHS)
        assert {run.block for run in runs if run.family == family and run.layers == base.layers} == set(BLOCKS)
    assert {run.head for run in runs if run.family == "dspark"} == {"none", "vanilla", "gated", "rnn"}
    for run in runs:
        if run.family in ("dspark", "dflash"):
            base = dspark() if run.family == "dspark" else Run("dflash")
            fields = ("layers", "block", "head", "stretch")
            assert sum(getattr(run, field) != getattr(base, field) for field in fields) <= 1, run.name


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"family": "dflash", "head": "vanilla"}, "head: dflash"),
        ({"family": "eagle3"}, "layers: eagle3"),
        ({"family": "mtp", "layers": 1}, "block: mtp"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_its_field(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Run(**fields)  # type: ignore[arg-type]


def test_runs_are_chosen_by_patterns_in_the_order_of_the_plan() -> None:
    runs = plan()
    picked = chosen(runs, ["eagle3-*", "dspark-l2-*"])
    assert picked == [run for run in runs if run in picked]
    assert {run.family for run in picked} == {"eagle3", "dspark"}
    assert chosen(runs, []) == runs
    with pytest.raises(ValueError, match="nothing-like-it"):
        chosen(runs, ["dspark-*", "nothing-like-it"])


def test_list_prints_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    assert capsys.readouterr().out.split() == [run.name for run in plan()]
