"""With grpcio and protobuf alone: what needs more says what, and which extra brings it."""

import json
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import dspark
from dspark.cli import extras
from dspark.cli.main import main

ROOT = Path(__file__).parents[3]
PAIR = ROOT / "tests" / "data" / "pair"
# Hides every distribution but two, as if nothing else were installed, and runs a command.
BARE = """
import sys
from importlib import metadata

THERE = {"dspark", "deploy", "verify_service", "draft_service", "coordinator"}
THERE |= {"grpc", "google", "typing_extensions"}

class Bare:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in THERE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

found = metadata.version

def version(name):
    if name not in ("dspark-serving", "grpcio", "protobuf"):
        raise metadata.PackageNotFoundError(name)
    return found(name)

sys.meta_path.insert(0, Bare())
metadata.version = version
from dspark.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def _bare(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BARE, *words], capture_output=True, text=True, cwd=ROOT, timeout=200
    )


def test_doctor_looks_at_what_it_can_and_names_the_extras_that_are_missing() -> None:
    done = _bare("doctor", "--json", "--target", f"{PAIR}/target", "--drafter", f"{PAIR}/drafter")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0, done.stdout + done.stderr
    for extra in ("serve", "http", "tls", "ray", "otel"):
        assert findings[f"extra {extra}"]["level"] == "warn"
        assert f"'.[{extra}]'" in findings[f"extra {extra}"]["mend"]
    assert findings["pair"]["level"] == "ok", "files of settings need nothing"
    assert not [
        finding for finding in findings.values() if "could not be checked" in finding["said"]
    ]


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        (["serve", "verify", "--target", "models/target"], "structlog", "serve"),
        (["certificates", "folder", "--host", "a"], "cryptography", "tls"),
    ],
)
def test_a_command_names_the_extra_it_needs(words: list[str], module: str, extra: str) -> None:
    done = _bare(*words)
    assert done.returncode == 1
    assert done.stderr.startswith(f"dspark: this command needs the module '{module}'")
    assert f"'.[{extra}]'" in done.stderr


def test_a_frame_of_a_cell_needs_no_extra() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        done = _bare("top", "--once", "--endpoint", f"127.0.0.1:{nobody.getsockname()[1]}")
    assert done.returncode == 1
    assert "needs the module" not in done.stderr
    assert "127.0.0.1" in done.stderr


def test_the_version_is_known_to_commands_and_programs() -> None:
    done = _bare("--version")
    assert (done.returncode, done.stdout) == (0, f"dspark {metadata.version('dspark-serving')}\n")
    assert dspark.__version__ == metadata.version("dspark-serving")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dspark.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("torch", "serve"), ("yaml", "serve"), ("prometheus_client", "serve"),
        ("uvicorn.config", "http"),
        ("starlette", "http"), ("cryptography.x509", "tls"), ("ray.util", "ray"),
        ("opentelemetry.sdk", "otel"),
        ("matplotlib.pyplot", "train"), ("nobody_knows", "serve"),
    ],
)  # fmt: skip
def test_the_extra_that_brings_a_module(module: str, extra: str) -> None:
    assert extras.extra_of(module) == extra


@pytest.mark.parametrize(
    ("specifier", "version", "fits"),
    [
        (">=5.10,<6", "5.9.3", False), (">=5.10,<6", "5.10", True), (">=5.10,<6", "6.0.0", False),
        (">=2.9", "2.13.0+cpu", True), ("==1.81.1", "1.81.1", True), ("==1.81.1", "1.82", False),
        ("", "0", True),
        (">=0.22", "0.22rc1", True),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(specifier: str, version: str, fits: bool) -> None:
    assert extras.Requirement("x", specifier, "").fits(version) is fits


@pytest.mark.parametrize("words", [["health", "{}"], ["generate", "--endpoint", "{}", "a prompt"]])
def test_waiting_has_an_end(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # somebody who says nothing
        taken.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main([*(word.format(endpoint) for word in words), "--wait", "0.3"]) == 1
    assert f"dspark: not serving within 0.3 s: {endpoint}: " in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan", "inf", "1_0", "1e300"])
@pytest.mark.parametrize(
    "words", ["health 127.0.0.1:1 --wait", "top --endpoint 127.0.0.1:1 --every"]
)
def test_a_wait_is_a_number_of_seconds(
    words: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"{words}={seconds}".split()) == 2
    assert f"argument --{words.rpartition('--')[2]}: " in capsys.readouterr().err
