"""`dspark chat` as a person has it: typed into a terminal, read off it."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from coordinator.http.template import find_template
from dspark.cli import chat
from dspark.cli.main import main
from dspark.client import Client
from dspark.client.events import read_event
from dspark.errors import ConfigError
from tests.services.http_cell import TARGET, HttpCell, of_module

LONGEST_S = 200.0
# a signal that falls between the library of the terminal and Python waits there for the next one
AGAIN_S = 15.0
SYSTEM, FIRST, SECOND = "import functools", "def wrapper(self", "class Action"
CHAT = [sys.executable, "-m", "dspark.cli.main", "chat"]
# Ctrl-C is a signal for whoever has the terminal: a new session takes it, then becomes the command.
# A background shell has its children ignore that signal.
TAKES_TERMINAL = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A process whose terminal is ours: what is typed goes in, what it shows comes out."""

    def __init__(self, *words: str) -> None:
        self._screen, inside = pty.openpty()
        command = [sys.executable, "-c", TAKES_TERMINAL, *CHAT, *words]
        self._process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )  # fmt: skip
        os.close(inside)
        self.shown = ""

    def until(self, text: str) -> str:
        """Reads until `text` is shown; returns everything up to it that was not returned before."""
        self._read(lambda: text in self.shown, f"{text!r}")
        before, _, self.shown = self.shown.partition(text)
        return before

    def until_something(self) -> None:
        """Reads until anything but blanks is shown, and hardly more."""
        self._read(lambda: bool(self.shown.strip()), "anything")

    def interrupt(self, heard: str) -> None:
        """Presses Ctrl-C, as often as a person does, until `heard` is shown."""
        pressed = -AGAIN_S

        def shown() -> bool:
            nonlocal pressed
            if heard in self.shown:
                return True
            if time.monotonic() - pressed >= AGAIN_S:
                pressed = time.monotonic()
                self.type("\x03")
            return False

        self._read(shown, f"{heard!r}")
        self.until(heard)

    def _read(self, enough: Callable[[], bool], wanted: str) -> None:
        deadline = time.monotonic() + LONGEST_S
        while not enough():
            assert time.monotonic() < deadline, f"{wanted} never came: {self.shown!r}"
            if select.select([self._screen], [], [], 1.0)[0]:
                try:
                    self.shown += (
                        os.read(self._screen, 8).decode(errors="replace").replace("\r", "")
                    )
                except OSError:  # it has ended
                    pytest.fail(f"it ended before {wanted}: {self.shown!r}")

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def say(self, turn: str) -> None:
        self.type(f"{turn}\n")
        self.until(f"{turn}\n")

    def __enter__(self) -> Self:
        self.until("Ctrl-D ends\n> ")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.type("\x04")
            self.until("\n")
        else:
            self._process.kill()
        code = self._process.wait(LONGEST_S)
        os.close(self._screen)  # before its end that would end it
        assert error is not None or code == 0


cell = of_module()


def _words(cell: HttpCell, *more: str) -> list[str]:
    there = ["--endpoint", cell.coordinator.endpoint, "--target", str(TARGET)]
    return [*there, "--temperature", "0", *more]


def _expected(cell: HttpCell, said: list[tuple[str, str]], tokens: int) -> str:
    template = find_template(str(TARGET), None)
    assert template is not None
    prompt = template.render(
        [{"role": r, "content": c} for r, c in said], {}, add_generation_prompt=True
    )
    with Client(cell.coordinator.endpoint) as client:
        return client.complete(prompt, max_tokens=tokens, temperature=0.0).text


def test_turns_build_on_what_was_said_before(cell: HttpCell) -> None:
    said = [("system", SYSTEM), ("user", FIRST)]
    said.append(("assistant", _expected(cell, said, 12)))
    said.append(("user", SECOND))
    with Terminal(*_words(cell, "--system", SYSTEM, "--max-tokens", "12")) as terminal:
        terminal.type("\n")  # an empty line is no turn
        terminal.say(FIRST)
        assert terminal.until("\n[12 tokens (the most), ") == said[2][1]
        assert "tokens/s" in terminal.until(" tokens a round]\n> ")
        terminal.say(SECOND)
        assert terminal.until("\n[12 tokens (the most), ") == _expected(cell, said, 12)
        terminal.until(" tokens a round]\n> ")


def test_ctrl_c_ends_the_answer_and_keeps_the_conversation(cell: HttpCell) -> None:
    with Terminal(*_words(cell, "--max-tokens", "3500")) as terminal:
        terminal.interrupt("Ctrl-D ends\n> ")  # no answer is running
        terminal.say(FIRST)
        # What is not read stays in the terminal's own buffer, which holds less than the answer: it
        # cannot end before.
        terminal.until_something()
        terminal.interrupt("[interrupted after ")
        terminal.until("tokens]\n> ")
        terminal.say(SECOND)
        terminal.until_something()
        terminal.interrupt("tokens]\n> ")


def test_a_pipe_is_a_conversation_too_and_errors_leave_it_open(
    cell: HttpCell, tmp_path: Path
) -> None:
    words = _words(cell, "--max-tokens", "4000", "--top-p", "7")
    code, _, told = _talk(words, b"word " * 2000 + b"\n" + FIRST.encode() + b"\n")
    assert code == 1, "a script is to know"
    assert told.count("dspark: ") == 2, "every turn is refused, none ends the conversation"
    elsewhere = ["--endpoint", cell.coordinator.endpoint, "--target", str(tmp_path)]
    code, _, told = _talk(elsewhere, b"")
    assert code == 1
    assert f"{tmp_path}: no tokenizer is found; --target names a folder" in told


def _talk(words: list[str], typed: bytes) -> tuple[int, str, str]:
    """(status, conversation, what is not) of a chat that reads a pipe."""
    done = subprocess.run([*CHAT, *words], input=typed, capture_output=True, timeout=LONGEST_S)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_line_that_is_not_utf_8_costs_that_turn_alone(cell: HttpCell) -> None:
    code, said, told = _talk(
        _words(cell, "--max-tokens", "12"), b"gr\xfc\xdfe\n" + FIRST.encode() + b"\n"
    )
    assert code == 1, told
    assert "dspark: this line: is not UTF-8: byte 0xFC behind 2 characters; is it Latin-1?" in told
    assert said == _expected(cell, [("user", FIRST)], 12) + "\n"
    code, _, told = _talk(
        [*_words(cell), "--system", b"gr\xfc\xdfe".decode(errors="surrogateescape")], b""
    )
    assert (code, "system: is not UTF-8" in told) == (1, True)


def _chat_here(monkeypatch: pytest.MonkeyPatch, typed: str, *words: str) -> None:
    """In this process, whose own way with Ctrl-C stays."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert main(["chat", *words]) == 0
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("place", ["before the answer", "behind the answer"])
def test_ctrl_c_where_nothing_listens_breaks_nothing_in_the_middle(
    cell: HttpCell, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted, tell = chat.fitted, chat.say

    def fit(*asked: Any) -> tuple[int, ...]:
        if place == "before the answer":
            signal.raise_signal(signal.SIGINT)
        return fitted(*asked)

    def told(line: str) -> None:
        if place == "behind the answer" and "tokens a round" in line:
            signal.raise_signal(signal.SIGINT)
        tell(line)

    monkeypatch.setattr(chat, "fitted", fit)
    monkeypatch.setattr(chat, "say", told)
    _chat_here(monkeypatch, f"{FIRST}\n{SECOND}\n", *_words(cell, "--max-tokens", "12"))
    said = capsys.readouterr().err
    assert (said.count("[12 tokens (the most), "), said.count("[interrupted after 0 tokens]")) == (
        (0, 1) if place == "before the answer" else (1, 0)
    ), "and the next turn is not asked"


def test_ctrl_c_raises_nothing_in_the_middle_of_a_call(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception there can leave locks behind that the process waits for at its end."""
    went_on = 0

    def read(message: Any) -> Any:
        nonlocal went_on
        signal.raise_signal(signal.SIGINT)
        went_on += 1
        return read_event(message)

    monkeypatch.setattr("dspark.client.synchronous.read_event", read)
    _chat_here(monkeypatch, f"{FIRST}\n", *_words(cell, "--max-tokens", "3500"))
    assert went_on
    assert "[interrupted after " in capsys.readouterr().err


def test_a_conversation_fits_into_the_pool_where_that_is_smaller_than_the_context() -> None:
    with HttpCell(verify={"kv_tokens": 256}) as small:
        with Client(small.coordinator.endpoint) as client:
            assert client.model_info().context_length == 256
        assert httpx.get(f"{small.url}/v1/models").json()["data"][0]["max_model_len"] == 256
        asked = httpx.post(f"{small.url}/tokenize", json={"prompt": FIRST}).json()
        assert asked["max_model_len"] == 256
        turns = "\n".join(["one two three four five six seven eight"] * 5)
        code, _, told = _talk(_words(small, "--max-tokens", "90"), turns.encode())
        assert (code, told.count("tokens a round")) == (0, 5), told
        code, _, told = _talk(_words(small, "--max-tokens", "256"), b"")
        assert (code, "leaves no room in 256 tokens" in told) == (1, True)


def test_the_oldest_turns_make_room() -> None:
    def render(said: list[chat.Message]) -> tuple[int, ...]:
        return tuple(range(sum(len(message["content"]) for message in said)))

    said = [
        {"role": role, "content": "four"}
        for role in ("system", "user", "assistant", "user", "assistant", "user")
    ]
    assert len(chat.fitted(said, render, 17)) == 16
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]


def test_a_target_that_is_not_here_is_named_and_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def out_of_reach(target: str, name: str, **_: object) -> None:
        asked.append(name)
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", out_of_reach)
    with pytest.raises(ConfigError, match=r"nowhere/at-all: no tokenizer is found; --target"):
        chat.renderer("nowhere/at-all")
    assert asked == ["tokenizer.json"]
