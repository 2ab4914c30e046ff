"""What a command line is written in, and where its answer goes."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dspark.cli import main as cli
from dspark.cli.options import shown

ROOT = Path(__file__).parents[3]
MAIN = ("-m", "dspark.cli.main")


def _python(*words: Any, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs it with an environment of its own, that takes nobody's buffer away."""
    how = {"env": {"PYTHONPATH": str(ROOT)}, "stderr": subprocess.PIPE, "timeout": 100, **how}
    return subprocess.run([sys.executable, *words], **how)


@pytest.mark.parametrize(
    "words", [[b"caf\xe9"], [b"coffee", b"--stop", b"caf\xe9"], [b"coffee", b"--label", b"caf\xe9"]]
)
def test_a_word_in_latin_1_is_a_sentence(words: list[bytes]) -> None:
    done = _python(*MAIN, "generate", "--endpoint", "127.0.0.1:1", *words)
    name = {b"--stop": "stop", b"--label": "label"}.get(
        words[-2] if len(words) > 1 else b"", "prompt"
    )
    said = f"dspark: {name}: is not UTF-8: byte 0xE9 behind 3 characters; is it Latin-1?\n"
    assert (done.returncode, done.stderr.decode()) == (1, said)


def test_utf_8_is_read_as_it_was_typed_in_any_locale() -> None:
    program = (
        "import sys; from dspark.cli import generate, main, options; from dspark import client\n"
        "class Told:\n"
        "    def generate(self, prompt, *, label, **_):\n"
        "        print(ascii((prompt, label)), file=sys.stderr); raise SystemExit(0)\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *_): pass\n"
        "generate.open_client = lambda args: Told()\n"
        "sys.exit(main.main(['generate', '--json', '--label', *sys.argv[1:]]))"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    typed = "café".encode()
    for locale in ({"LC_ALL": "C.UTF-8"}, plain):
        for prompt in ([typed], ["--prompt-file", "-"]):
            environment = {"PYTHONPATH": str(ROOT)} | locale
            done = _python("-c", program, typed, *prompt, input=typed, env=environment)
            assert done.stderr == b"('caf\\xe9', 'caf\\xe9')\n"


@pytest.mark.parametrize("stdout", ["/dev/full", "gone"])
def test_a_process_that_cannot_say_where_it_serves_serves(stdout: str, tmp_path: Path) -> None:
    """The program says its line, goes on, and ends in order."""
    program = (
        "from dspark.cli.options import tell; tell('here'); open('after', 'w').write('served')"
    )
    reader = None
    if stdout == "gone":
        reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
        reader.wait()
        target = reader.stdin
    else:
        target = open(stdout, "wb")  # noqa: SIM115
    done = _python("-c", program, cwd=tmp_path, stdout=target)
    if target is not None:
        target.close()
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(b"stdout cannot be written")
    assert (tmp_path / "after").read_text() == "served"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_open_on_nothing(closed: str, tmp_path: Path) -> None:
    program = (
        "import os, sys; from dspark.cli import main as cli; "
        "cli._run = lambda words: open('seen', 'w').write(str("
        "[each.isatty() and each.fileno() for each in (sys.stdin, sys.stdout, sys.stderr)]"
        " + [os.open('/', os.O_RDONLY) > 2])) and 0; sys.exit(cli.main([]))"
    )
    started = f'exec "$0" -c "$1" {closed}'
    subprocess.run(
        ["sh", "-c", started, sys.executable, program], cwd=tmp_path, check=True, timeout=100,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (tmp_path / "seen").read_text() == "[False, False, False, True]"


def test_a_full_disk_is_a_sentence() -> None:
    with open("/dev/full", "wb") as full:
        done = _python(*MAIN, "doctor", cwd=ROOT, stdout=full)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"internal error" not in done.stderr


FAILS = (
    "import sys; from dspark.cli import main as cli; "
    "cli._run = lambda words: print('said') or 1; sys.exit(cli.main([]))"
)


@pytest.mark.parametrize(
    ("words", "code"), [((*MAIN, "--help"), 0), ((*MAIN, "--version"), 0), (("-c", FAILS), 1)]
)
def test_a_command_ends_with_its_own_code_whoever_reads(words: tuple[str, ...], code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = _python(*words, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (code, b"")


def test_a_file_that_is_missing_is_no_fault_of_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_run", Mock(side_effect=FileNotFoundError("as --debug shows it")))
    with pytest.raises(FileNotFoundError):
        cli.main([])


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_steers_no_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    said = "a\tb\n\x1b]0;owned\x07 \x9b2J ü"
    assert shown(said) == ("a\tb\n\\x1b]0;owned\\x07 \\x9b2J ü" if terminal else said)


def test_what_the_encoding_of_stdout_lacks_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(cli, "_run", lambda words: print("naïve 日本") or 0)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert cli.main([]) == 0
    assert written.getvalue().decode("latin-1") == "naïve \\u65e5\\u672c\n"
