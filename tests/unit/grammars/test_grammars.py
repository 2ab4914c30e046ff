"""Grammars of the tiny target, compiled in children of their own."""

import gc
import json
import os
import re
import signal
import socket
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tokenizers import Tokenizer

from dspark.types import Constraint, ConstraintKind, Refusal, RefusalReason
from tests.unit.grammars.fitting import AT_ONCE, END, TARGET, VOCAB, compiler, of, refused
from tests.waiting import wait_until
from verify_service.grammars import grammars as module
from verify_service.grammars.compiling import compiled, make_compiler
from verify_service.grammars.grammars import CPU_S, CROWDED_S, MAX_OF_ONE, Grammars
from verify_service.grammars.matcher import GrammarMatcher

KIND = ConstraintKind
HOSTILE = {
    "deep lists": (KIND.JSON_SCHEMA, '{"type":"array","items":' * 4000 + "{}" + "}" * 4000),
    "many optional keys": (
        KIND.JSON_SCHEMA,
        json.dumps(
            {"type": "object", "properties": {f"key_{n}": {"type": "string"} for n in range(4000)}}
        ),
    ),
    "parentheses": (KIND.REGEX, "(" * 50_000 + ")" * 50_000),
    "repetitions of repetitions": (
        KIND.REGEX,
        "((((x{1,500}){1,500}){1,500}){1,500}){1,500}y" * 40,
    ),
    "a text that is read in ever more ways": (KIND.REGEX, "(([a-z]{1,60}){1,60}){1,60}"),
    "a loop of rules": (KIND.GRAMMAR, "root ::= " + "(" * 30_000 + "root" + ")" * 30_000),
    "no grammar": (KIND.GRAMMAR, "root ::= missing"),
    "no regex": (KIND.REGEX, "(?=a)b"),
    "no schema": (KIND.JSON_SCHEMA, '{"type":"nonsense"}'),
}
HEAVY = Constraint(*HOSTILE["many optional keys"])
TEXTS = [bytes([byte]) for byte in range(256)] + [b""]
# takes 50 ms of the processor's time
LONG = "|".join(f"w{word * 7919 % 100003:05d}" for word in range(1000))


@pytest.fixture
def begun() -> Any:
    """Grammars of a process of their own, which has started."""
    made = Grammars(TARGET, VOCAB, [END])
    of(made.compile(Constraint(KIND.REGEX, "first"), ""))
    assert made._process is not None
    return made


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_compiled_is_refused_and_the_next_one_is_served(
    name: str, grammars: Grammars
) -> None:
    hostile = Constraint(*HOSTILE[name])
    refused(grammars.compile(hostile, ""))
    assert of(grammars.compile(Constraint(KIND.REGEX, f"{name}|x"), ""))().masks(()).any()
    assert grammars.compile(hostile, "").done(), "it is remembered"


@pytest.mark.parametrize("text", ["[a-z]{1,%d}", "[^0-9,]{2,%d}, [0-9a-f]{3}", "%d"])
def test_a_longer_bound_takes_no_more_memory(text: str) -> None:
    def size(most: int) -> int:
        form: dict[str, Any] = {"type": "string"}
        form |= {"maxLength": most} if text == "%d" else {"pattern": f"^{text % most}$"}
        constraint = Constraint(KIND.JSON_SCHEMA, json.dumps(form))
        return compiled(compiler(TEXTS), constraint).memory_size_bytes  # type: ignore[no-any-return]

    assert size(2000) == size(20)


def test_a_token_that_ends_answers_is_no_text_of_one() -> None:
    words = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    (stop,), (other,) = words.encode("a").ids, words.encode("b").ids
    form = Constraint(KIND.REGEX, "[a-z]+")
    matcher = GrammarMatcher(compiled(make_compiler(TARGET, VOCAB, [stop]), form), [stop])

    def may_end() -> bool:
        return bool(matcher.masks(())[0, stop // 32] >> stop % 32 & 1)

    assert not may_end()
    matcher.accept([other])
    assert may_end()


def test_a_grammar_is_kept_for_its_tenant_alone(grammars: Grammars) -> None:
    constraint = Constraint(KIND.REGEX, "kept")
    first = grammars.compile(constraint, "one")
    of(first)
    assert grammars.compile(constraint, "one").result() is first.result()
    assert grammars.compile(constraint, "two") is not first
    assert of(grammars.compile(constraint, "two")) is not first.result()
    glued = [("b", "a"), ("", "ba")]
    assert len({grammars.compile(Constraint(KIND.REGEX, text), salt) for salt, text in glued}) == 2
    assert {*map(len, grammars._kept)} == {32}, "no text is kept for its key"


def test_who_waited_for_a_grammar_is_not_kept_with_it(grammars: Grammars) -> None:
    class Waiting:
        def came(self, _: object) -> None: ...

    waits, constraint = Waiting(), Constraint(KIND.REGEX, "x" * 5001)
    compiled = grammars.compile(constraint, "")
    compiled.add_done_callback(waits.came)
    of(compiled)
    left = weakref.ref(waits)
    del waits, compiled
    wait_until(lambda: gc.collect() >= 0 and left() is None)
    assert grammars.compile(constraint, "").done()


class Counted(Grammars):
    """Notes whose grammar is asked for, and holds every one until it is let go."""

    def __init__(self) -> None:
        super().__init__(TARGET, VOCAB, [END])
        self.asked: list[str] = []
        self.allowed: dict[str, float] = {}  # seconds of processor time, by what was asked for
        self.go = threading.Semaphore(0)

    def ask(self, text: str, who: str) -> Future[Any]:
        return self.compile(Constraint(KIND.REGEX, text), who)

    def _ask(self, constraint: Constraint, cpu_s: float, wall_s: float) -> bytes:
        self.asked.append(constraint.text[0])
        self.allowed[constraint.text] = cpu_s
        assert self.go.acquire(timeout=60)
        return super()._ask(constraint, cpu_s, wall_s)


def test_who_asks_for_many_waits_behind_who_asks_for_few() -> None:
    counted = Counted()
    many = [counted.ask(f"m{n}", f"many/{n}") for n in range(12)]
    wait_until(lambda: len(counted.asked) == AT_ONCE)
    few = [counted.ask(f"f{n}", f"few/{n}") for n in range(2)]
    one = counted.ask("o", "one/")
    for place in range(2):  # whose turn it is shows one by one
        counted.go.release()
        wait_until(lambda at=place: len(counted.asked) == AT_ONCE + 1 + at)  # type: ignore[misc]
    assert set(counted.asked[AT_ONCE:]) == {"f", "o"}
    counted.go.release(99)
    for future in (*many, *few, one):
        of(future)
    assert counted.allowed["o"] == counted.allowed["m11"] == CPU_S, "no more of theirs wait"
    assert counted.allowed["m8"] == counted.allowed["f0"] == CROWDED_S
    assert not counted._lines
    wait_until(lambda: not counted._in_work)


def test_a_full_line_is_no_fault_of_a_grammar() -> None:
    counted = Counted()
    made = [counted.ask(f"m{n}", f"many/{n % 3}") for n in range(MAX_OF_ONE + 2 * AT_ONCE)]
    refused(made[-1], RefusalReason.BUSY)
    other = counted.ask("o", "other/")
    counted.go.release(len(made) + 1)
    of(other)
    wait_until(lambda: counted._waiting == 0)
    counted.go.release(len(made))
    of(counted.ask(f"m{len(made) - 1}", "many/0"))


def test_who_asks_a_compiler_that_hangs_is_not_refused_and_the_next_one_gets_another(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = Constraint(KIND.REGEX, "slow")
    begun._process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as bounded:
        bounded.setattr(module, "_START_S", 0.2)
        refused(begun.compile(constraint, ""), RefusalReason.INTERNAL)
    assert of(begun.compile(constraint, ""))().masks(()).any()


def test_a_child_that_does_not_end_is_not_waited_for(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WALL_S", 1.0), ("CPU_S", 50.0), ("_START_S", 10.0)):
        monkeypatch.setattr(module, name, value)
    children = Path(f"/proc/{begun._process.pid}/task/{begun._process.pid}/children")
    wait_until(lambda: not children.read_text())
    begun._answers = False
    future = begun.compile(HEAVY, "")
    wait_until(lambda: begun._answers)  # it has begun
    child = int(children.read_text())
    os.kill(child, signal.SIGSTOP)  # no bound ends it
    refused(future, RefusalReason.BUSY)
    os.kill(child, signal.SIGKILL)


class Late(socket.socket):
    """A socket whose reader is held up by others on a busy machine."""

    def settimeout(self, value: float | None) -> None:
        super().settimeout(30.0)


def test_a_child_out_of_time_is_no_fault_of_its_form(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = socket.socketpair

    def held_up() -> tuple[socket.socket, socket.socket]:
        ours, theirs = pair()
        return Late(fileno=ours.detach()), theirs

    monkeypatch.setattr(socket, "socketpair", held_up)
    monkeypatch.setattr(module, "CPU_S", 50.0)
    monkeypatch.setattr(module, "WALL_S", 0.1)
    refused(begun.compile(HEAVY, ""), RefusalReason.BUSY)


@pytest.mark.parametrize("bound", ["WALL_S", "CPU_S"])
def test_what_others_left_no_time_for_may_be_asked_for_again(
    bound: str, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = Constraint(KIND.REGEX, LONG)
    with monkeypatch.context() as bounded:  # behind it `patient` holds again
        bounded.setattr(module, bound, 1e-4)
        told = begun.compile(constraint, "")
        refused(told, RefusalReason.BUSY if bound == "WALL_S" else RefusalReason.INVALID)
    if bound == "WALL_S":
        assert of(begun.compile(constraint, ""))().masks(()).any()
    else:
        assert begun.compile(constraint, "").done(), "it is remembered"


def test_who_has_waited_too_long_is_told_so_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    monkeypatch.setattr(module, "WALL_S", 0.0)
    made = [counted.ask(f"m{n}", "many/") for n in range(AT_ONCE)]
    wait_until(lambda: len(counted.asked) == AT_ONCE)  # while the process starts nobody is late
    counted._answers = True
    late = [counted.ask(f"l{n}", "many/") for n in range(9)]
    counted.go.release()
    for each in late:
        refused(each, RefusalReason.BUSY)
    assert len(counted.asked) == AT_ONCE
    monkeypatch.setattr(module, "WALL_S", 50.0)
    counted.go.release(len(made))
    of(counted.ask("l0", "many/"))


def test_what_takes_long_while_more_of_its_tenant_wait_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted()
    monkeypatch.setattr(module, "CROWDED_S", 1e-4)
    made = [counted.ask(f"m{n}", "many/") for n in range(AT_ONCE)]
    wait_until(lambda: len(counted.asked) == AT_ONCE)
    first, last = (counted.ask(text, "many/") for text in (LONG, "last"))
    counted.go.release(AT_ONCE + 3)
    refused(first, RefusalReason.BUSY)
    for each in (*made, last, counted.ask(LONG, "many/")):
        of(each)


def test_a_compiler_that_ended_is_started_again(grammars: Grammars) -> None:
    of(grammars.compile(Constraint(KIND.REGEX, "before"), ""))
    assert grammars._process is not None
    grammars._process.kill()
    grammars._process.wait()
    deadline = time.monotonic() + 30
    while isinstance(  # one that was asked just then is lost with it
        made := grammars.compile(Constraint(KIND.REGEX, f"after{time.monotonic()}"), "").result(60),
        Refusal,
    ):
        assert made.reason is RefusalReason.INTERNAL
        assert time.monotonic() < deadline


def test_who_asked_one_that_ended_meanwhile_is_not_refused_for_good() -> None:
    """Though another has been started by the time it looks."""

    class Replaced(Grammars):
        def _ask(self, constraint: Constraint, cpu_s: float, wall_s: float) -> bytes:
            assert self._process is not None
            before = self._process
            before.send_signal(signal.SIGSTOP)  # it takes the question and does not look at it
            threading.Timer(0.2, before.kill).start()
            try:
                return super()._ask(constraint, cpu_s, wall_s)
            finally:
                before.wait()
                self._started()
                assert self._process is not before

    mine = Replaced(TARGET, VOCAB, [END])
    for _ in range(2):
        refused(mine.compile(Constraint(KIND.REGEX, "x"), ""), RefusalReason.INTERNAL)


def test_what_fails_here_is_no_fault_of_a_form(grammars: Grammars) -> None:
    for _ in range(2):  # and is not remembered
        made = grammars.compile(Constraint(KIND.CHOICE, "5"), "")  # which no client can ask for
        assert "compiler failed" in refused(made, RefusalReason.INTERNAL)
    endless = {"type": "string", "minLength": 1, "pattern": "a{99999999999}"}
    for unread in ({"properties": {"a": {}}, "patternProperties": {"(": {}}}, endless):
        refused(grammars.compile(Constraint(KIND.JSON_SCHEMA, json.dumps(unread)), ""))


def test_who_asks_where_no_thread_can_be_started_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, form = Grammars(TARGET, VOCAB, [END]), Constraint(KIND.REGEX, "abc")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no new thread")))
        made = mine.compile(form, "")
        assert made.done(), "nobody would take it up"
        assert "no new thread" in refused(made, RefusalReason.INTERNAL)
    of(mine.compile(form, ""))
    assert not mine._waiting
    assert not mine._lines


def test_who_asks_where_no_more_threads_can_be_started_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)
    go_on = threading.Event()

    class Held(Grammars):
        def _made(self, *given: Any) -> Any:
            assert go_on.wait(20)
            return super()._made(*given)

    mine = Held(TARGET, VOCAB, [END])
    first = mine.compile(Constraint(KIND.REGEX, "first"), "")
    wait_until(lambda: bool(mine._in_work))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no new thread")))
        second = mine.compile(Constraint(KIND.REGEX, "second"), "")
    assert not second.done()
    go_on.set()
    of(first)
    of(second)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"patternProperties": True}},
        {"const": {"patternProperties": 5}},
        {"type": "string", "minLength": 1, "pattern": "^[[a]+$"},
    ],
)
def test_words_and_patterns_of_clients_are_no_failure_here(schema: Any, grammars: Grammars) -> None:
    of(grammars.compile(Constraint(KIND.JSON_SCHEMA, json.dumps(schema)), ""))


def test_compilers_that_end_leave_no_descriptor() -> None:
    mine, open_ones = Grammars(TARGET, VOCAB, [END]), set[int]()
    for _ in range(4):
        mine._started()
        assert mine._process is not None
        open_ones.add(len(os.listdir("/proc/self/fd")))
        mine._process.kill()
        mine._process.wait()
    assert len(open_ones) == 1


def test_a_target_without_words_refuses_all(tmp_path: Path) -> None:
    a = Constraint(KIND.REGEX, "a")
    for of_none, said in (
        (Grammars(tmp_path, VOCAB, [END]), "no tokenizer"),
        (Grammars(TARGET, VOCAB, []), "ends an answer"),
    ):
        assert re.match(f"unsupported: .*{said}", refused(of_none.compile(a, "")))
