"""Numbers are taken as they stand, from texts and from values, or refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dspark.cli.main import build_parser
from dspark.cli.options import numbers_above_0, positives
from dspark.errors import ConfigError, InvalidRequest
from dspark.numerals import number_in, whole_in
from dspark.rounds.policy import parse_policy
from dspark.runtime.config import load_config

BENT = [
    "1_0",
    "1_0.5",
    "٣",
    "0x10",
    "",
    "x",
    "--1",
    "1e",
    "nan",
    "inf",
    "-inf",
    "1 2",
    "1e999",
    "\u00b2",
]


@pytest.mark.parametrize("text", BENT)
def test_a_text_that_is_no_plain_number_is_none(text: str) -> None:
    for read in (whole_in, number_in):
        with pytest.raises(ValueError, match="is not a"):
            read(text)


@pytest.mark.parametrize("text", ["7", "-7", "+7", "007", str(10**30), " 7"])
def test_a_whole_number_is_read_whole(text: str) -> None:
    assert whole_in(text) == int(text)


@pytest.mark.parametrize("text", ["7", "-7.5", ".5", "5.", "1e3", "1.5E-3"])
def test_a_number_is_read(text: str) -> None:
    assert number_in(text) == float(text)


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "1_0"],
        ["--max-tokens", "1.5"],
        ["--seed", "1e3"],
        ["--temperature", "nan"],
        ["--temperature", "0_1"],
        ["--stop-token-id", "1_0"],
        ["--logit-bias", "1_0=1"],
        ["--logit-bias", "1=nan"],
        ["--timeout", "inf"],
    ],
)
def test_a_command_bends_no_number(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        build_parser().parse_args(["generate", "a prompt", *words])
    assert stopped.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_nor_do_its_lists() -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["generate", "--token-ids", "1_0,2"])
    for read in (numbers_above_0, positives):
        with pytest.raises(Exception, match="is not a"):
            read("1,2_0")


@dataclass(frozen=True)
class Keys:
    pages: int = 1
    share: float = 0.5


@pytest.mark.parametrize(
    "text", ["pages: 1.7", "pages: true", "pages: '1_0'", "share: yes", "share: '1_0.5'"]
)
def test_nor_does_a_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"verify: {{{text}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"verify.{text.partition(':')[0]}: "):
        load_config(Keys, section="verify", file=file)


@pytest.mark.parametrize(("name", "value"), [("PAGES", "1_6"), ("SHARE", "0_1"), ("SHARE", "nan")])
def test_nor_does_the_environment(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"verify.{name.lower()}: "):
        load_config(Keys, section="verify", environ={f"DSPARK_VERIFY__{name}": value})


@pytest.mark.parametrize("text", ["threshold:0_1", "threshold:nan", "fixed:1_0", "fixed:\u00b2"])
def test_nor_does_a_policy(text: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^speculation\.policy: "):
        parse_policy(text)
