"""The checked-in stubs are what the proto files generate today, and every field is explained."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROTOS = sorted((ROOT / "protos" / "dspark" / "wire" / "v1").glob("*.proto"))


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    names = [str(path.relative_to(ROOT)) for path in PROTOS]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", *outputs, *names],
        cwd=ROOT,
        check=True,
    )
    fresh = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*pb2*")}
    kept = {
        path.relative_to(ROOT): path.read_text()
        for path in (ROOT / "dspark" / "wire" / "v1").glob("*pb2*")
    }
    assert fresh == kept, "run `make protos`"


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_every_field_carries_a_comment(path: Path) -> None:
    field = re.compile(r"^\s+(optional |repeated )?[\w.<>, ]+ = \d+;")
    lines = path.read_text().splitlines()
    bare = [
        line.strip()
        for before, line in zip(["", *lines], lines, strict=False)
        if field.match(line) and "//" not in line and not before.strip().startswith("//")
    ]
    assert not bare, "\n".join(bare)
