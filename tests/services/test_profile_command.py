"""`dspark profile` describes the pair that a running cell serves."""

import asyncio
import json
from pathlib import Path

import pytest

from dspark.cli.main import main
from dspark.synthetic.spec import load_spec
from tests.services.cell import Cell

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "benchmarks/synthetic/paper.yaml"
SHIPPED = ROOT / "models/smollm2-dspark/metrics.json"


async def test_what_a_profile_tells_of_the_served_pair_is_what_its_workers_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A synthetic worker announces its own table, so the way there and back changes nothing."""
    out, plot = tmp_path / "pair.yaml", tmp_path / "pair.svg"

    async def profile(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["profile", str(SHIPPED), *words])
        return code, capsys.readouterr().err

    async with Cell(pair=PAPER) as cell:
        serving = await cell.whole()
        at = ("--endpoint", serving.endpoint)
        assert await profile("--out", str(out), "--plot", str(plot), *at) == (0, "")
        code, said = await profile("--verifier", "verify/7", *at)
        assert code == 1
        assert "no lane of verify/7; the cell has verify/0" in said
        alone = await cell.coordinator(drafters=())
        code, said = await profile("--endpoint", alone.endpoint)
        assert code == 1
        assert "no drafter of this lane has measured its passes" in said
    made, paper = load_spec(out), load_spec(PAPER)
    for tokens in (1, 8, 100, 2048):
        assert made.verify.seconds(tokens, 2048) == pytest.approx(
            paper.verify.seconds(tokens, 2048)
        )
        assert made.draft.seconds(tokens, 0) == pytest.approx(paper.draft.seconds(tokens, 0))
    sets = json.loads(SHIPPED.read_text())["temperatures"]["T=0"]["datasets"]
    assert {each.name: each.accept[0] for each in made.domains} == {
        each["domain"]: pytest.approx(each["conditional"][0], abs=1e-4) for each in sets.values()
    }
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        pytest.param(
            {"temperatures": {}}, (), "has figures of no temperature, not 0", id="no temperature"
        ),
        pytest.param(None, ("--temperature", "0.5"), "of 0, 0.7, 1, not 0.5", id="another one"),
        pytest.param({"block_size": 7}, (), "is no metrics.json", id="another file"),
        pytest.param([1], (), "is no metrics.json", id="a list"),
        pytest.param(
            {"temperatures": {"T=0": {"datasets": {"a": {"domain": "a", "conditional": ["x"]}}}}},
            (),
            "is no metrics.json",
            id="words",
        ),
        pytest.param(None, ("--out", str(SHIPPED)), "is read here", id="the file that it reads"),
        pytest.param(None, ("--plot", "a.txt"), "must end in one of", id="no picture"),
    ],
)
def test_what_cannot_be_described_is_refused_by_name_before_a_cell_is_asked(
    content: object,
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = SHIPPED
    if content is not None:
        file = tmp_path / "metrics.json"
        file.write_text(json.dumps(content))
    assert main(["profile", str(file), *words, "--endpoint", "127.0.0.1:1"]) > 0
    assert said in capsys.readouterr().err
