"""Stages of a whole training say what they lack before anything long runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark.errors import ConfigError
from dspark.training.chain_stages import split


@pytest.mark.parametrize(("rows", "held"), [(20, 2), (30, 3)])
def test_too_few_held_out_prompts_are_told_of_before_training(
    rows: int, held: int, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"q{n}"}) + "\n" for n in range(rows)))
    if held < 3:
        with pytest.raises(ConfigError, match=f"held_out_share: 0.1 of the prompts are {held}"):
            split(file, tmp_path, 0.1, 1, 0)
    else:
        found = split(file, tmp_path, 0.1, 1, 0)
        assert [
            len(Path(found[f"{part}_file"]).read_text().splitlines())
            for part in ("calibrate", "evaluate")
        ] == [2, 1]
