"""Configuration: three sources, one order, errors that name the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from dspark.errors import ConfigError
from dspark.runtime.config import load_config


@dataclass(frozen=True)
class Sample:
    target: str
    port: int = 0
    ratio: float = 0.5
    warm: bool = False
    peers: tuple[str, ...] = ()
    token_file: str | None = None


def test_flags_beat_environment_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "verify: {target: from-file, port: 1, ratio: 0.25, warm: yes}\ndraft: {target: other}\n"
    )
    environ = {
        "DSPARK_VERIFY__PORT": "2",
        "DSPARK_VERIFY__PEERS": "a:1, b:2, ",
        "DSPARK_DRAFT__PORT": "9",
    }
    config = load_config(
        Sample, section="verify", file=file, environ=environ, flags={"port": 3, "ratio": None}
    )
    assert config == Sample("from-file", 3, 0.25, True, ("a:1", "b:2"), None)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"target": "t", "prot": 1}, "verify.prot: unknown key"),
        ({"target": "t", "port": "many"}, "verify.port: 'many'"),
        ({"target": "t", "warm": "perhaps"}, "verify.warm: 'perhaps'"),
        ({"port": 1}, "verify.target: required"),
    ],
)
def test_errors_name_the_key(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(Sample, section="verify", flags=flags)


@pytest.mark.parametrize(
    "text", ["[1, 2]", "verify: 3", "verify: {target: [", "verify: {target: {a: 1}}"]
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load_config(Sample, section="verify", file=file)


def test_optional_values_can_be_unset() -> None:
    assert (
        load_config(Sample, section="s", flags={"target": "t", "token_file": "none"}).token_file
        is None
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("verfy: {target: t}", "verfy: unknown section, 'verify' is meant?"),
        ("verify: {target: t}\nzebra: {a: 1}", "zebra: unknown section; known: "),
        (
            "verify: {target: t}\nverify: {port: 3}",
            "the key 'verify' stands twice, in lines 1 and 2",
        ),
        (
            "verify:\n  target: t\n  port: 1\n  port: 2",
            "the key 'port' stands twice, in lines 3 and 4",
        ),
        ("verify: {target: t, prot: 2}", "verify.prot: unknown key .*, 'port' is meant"),
    ],
)
def test_what_is_misspelled_or_stands_twice_is_refused_by_name(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_config(Sample, section="verify", file=file)


def test_a_misspelled_section_in_the_environment_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"DSPARK_VERFY__PORT: unknown section 'verfy' .*, 'verify' is meant"
    ):
        load_config(
            Sample, section="verify", environ={"DSPARK_VERFY__PORT": "2"}, flags={"target": "t"}
        )
    environ = {
        "DSPARK_HOME": "/x",
        "DSPARK_CHROMIUM": "y",
        "OTHER__PORT": "2",
        "DSPARK_DRAFT__ANYTHING": "2",
    }
    assert load_config(Sample, section="verify", environ=environ, flags={"target": "t"}).port == 0


def test_merged_mappings_may_be_overridden(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("draft: &shared {target: a, port: 1}\nverify: {<<: *shared, port: 2}")
    assert load_config(Sample, section="verify", file=file) == Sample("a", 2)
