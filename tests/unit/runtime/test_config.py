"""Configuration: three sources, one order, bounds, errors that name the key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dspark.errors import ConfigError
from dspark.runtime.config import load_config
from dspark.runtime.setting import check_settings, setting


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


TARGET = "verify: {target: t}\n"


@pytest.mark.parametrize(
    ("text", "flags", "environ", "said"),
    [
        (TARGET, {"prot": 1}, {}, "verify.prot: unknown key"),
        (TARGET, {"port": "many"}, {}, "verify.port: 'many'"),
        (TARGET, {"warm": "perhaps"}, {}, "verify.warm: 'perhaps'"),
        ("", {"port": 1}, {}, "verify.target: required"),
        ("[1, 2]", {}, {}, "must hold a mapping of sections"),
        ("verify: 3", {}, {}, "verify must be a mapping"),
        ("verify: []", {}, {}, "verify must be a mapping"),
        (f"{TARGET[:-2]}, peers: {{a: 1}}}}", {}, {}, "verify.peers: {'a': 1} .*: must be a list"),
        (f"{TARGET[:-2]}, peers: !!set {{a}}}}", {}, {}, "verify.peers: {'a'} .*: must be a list"),
        (f"{TARGET[:-2]}, peers: 3}}", {}, {}, "verify.peers: 3 .*: must be a list"),
        (f"{TARGET[:-2]}, peers:}}", {}, {}, "verify.peers: None .*: must be a list"),
        (f"{TARGET[:-2]}, peers: [[a]]}}", {}, {}, r"verify.peers: \['a'\] .*: must be a text"),
        ("verify: {target: !!set {a}}", {}, {}, "verify.target: {'a'} .*: must be a text"),
        ("verify: {target: !!binary YQ==}", {}, {}, "verify.target: b'a' .*: must be a text"),
        ("verify: {target: [", {}, {}, "cannot be read: expected the node content"),
        ("verify: {target: {a: 1}}", {}, {}, "verify.target: .*: must be a text"),
        ("verify: {target: 2026-13-01}", {}, {}, "cannot be read: month must be"),
        ("verify: {target:}", {}, {}, "verify.target: None .*: must be a text"),
        ("verify: {target: off}", {}, {}, "verify.target: False .*: must be a text"),
        ("verfy: {target: t}", {}, {}, "verfy: unknown section, 'verify' is meant?"),
        (f"{TARGET}zebra: {{a: 1}}", {}, {}, "zebra: unknown section; known: "),
        (f"{TARGET}verify: {{port: 3}}", {}, {}, "the key 'verify' stands twice, in lines 1 and 2"),
        ("verify:\n  port: 1\n  port: 2", {}, {}, "the key 'port' stands twice, in lines 2 and 3"),
        ("verify: {prot: 2}", {}, {}, "verify.prot: unknown key .*, 'port' is meant"),
        (TARGET, {}, {"VERFY__PORT": "2"}, "VERFY__PORT: unknown section 'VERFY' .*, 'VERIFY' is"),
        (TARGET, {}, {"verify__PORT": "2"}, "verify__PORT: .*'verify' .*'VERIFY' is meant"),
        (TARGET, {}, {"VERIFY_PORT": "2"}, "VERIFY_PORT: .* 'DSPARK_VERIFY__PORT' is meant"),
    ],
)
def test_what_is_wrong_is_named_wherever_it_was_said(
    tmp_path: Path, text: str, flags: dict[str, object], environ: dict[str, str], said: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    set_here = {f"DSPARK_{name}": value for name, value in environ.items()}
    with pytest.raises(ConfigError, match=said):
        load_config(Sample, section="verify", file=file, flags=flags, environ=set_here)


def test_what_is_none_of_its_sections_in_the_environment_is_let_be() -> None:
    environ = {
        "DSPARK_HOME": "/x",
        "DSPARK_CHROMIUM": "y",
        "OTHER__PORT": "2",
        "DSPARK_DRAFT__ANYTHING": "2",
        "DSPARK_DRAFT_PORT": "2",
        "DSPARK_VERIFY_PORT": "tcp://10.0.0.1:7061",  # Kubernetes', of a service `dspark-verify`
        "DSPARK_VERIFY_SERVICE_PORT": "7061",
    }
    assert load_config(Sample, section="verify", environ=environ, flags={"target": "t"}).port == 0


def test_the_home_folder_may_be_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell has read a file, and none reads `--target=~/t`."""
    monkeypatch.setenv("HOME", "/home/me")
    for given, found in (("~/t", "/home/me/t"), ("~nobody-of-this-name/t",) * 2, ("a~/t",) * 2):
        assert load_config(Sample, section="verify", flags={"target": given}).target == found


def test_merged_mappings_may_be_overridden(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("draft: &shared {target: a, port: 1}\nverify: {<<: *shared, port: 2}")
    assert load_config(Sample, section="verify", file=file) == Sample("a", 2)


@dataclass(frozen=True)
class Bounded:
    count: int = setting(1, "From one on.", least=1)
    span: float = setting(0.5, "A share.", above=0, most=1)
    port: int | None = setting(None, "A port, or none.", least=0, most=65535)
    wait_s: float = setting(1.0, "Longer than nothing.", above=0)
    mode: str = setting("one", "One or two.", one_of=("one", "two"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "count: 0 is less than 1"),
        ({"span": 0.0}, "span: 0.0 is not above 0, up to 1"),
        ({"span": 1.5}, "span: 1.5 is not above 0, up to 1"),
        ({"port": 65536}, "port: 65536 is not in 0..65535"),
        ({"port": -1}, "port: -1 is not in 0..65535"),
        ({"wait_s": 0.0}, "wait_s: 0.0 is not above 0"),
        ({"mode": "three"}, "mode: 'three' is none of one, two"),
        ({"count": 10**400}, f"count: {10**400} is more than 100000000"),
        ({"wait_s": 1e30}, r"wait_s: 1e\+30 is more than 100000000"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        check_settings(Bounded(**given))
    with pytest.raises(ConfigError, match=rf"^part\.{said}"):
        load_config(Bounded, section="part", flags=given)


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "inf", "1e999"])
def test_no_number_is_without_end_whatever_it_comes_from(tmp_path: Path, value: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"draft: {{target: t, ratio: {value}}}")
    with pytest.raises(ConfigError, match=r"draft\.ratio: "):
        load_config(Sample, section="draft", file=file)
    with pytest.raises(ConfigError, match=r"draft\.ratio: "):
        load_config(Sample, section="draft", environ={"DSPARK_DRAFT__RATIO": value})


def test_what_is_at_its_bounds_will_do() -> None:
    for given in ({"count": 1, "span": 1.0, "port": 0}, {"port": 65535, "mode": "two"}, {}):
        check_settings(Bounded(**given))
