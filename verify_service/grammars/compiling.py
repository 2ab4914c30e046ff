"""A process that tries grammars: `python -m verify_service.grammars.compiling SOCKET FOLDER
VOCABULARY STOPS`.

Each grammar is compiled in a child process with limits on time and memory: one that explodes or
crashes the compiler ends only its child. A request arrives as a socket, on which the child answers:
one byte at its start, then `ok` and the size of the compiled grammar in bytes, `no` and a sentence,
or `er` and an error that is not the grammar's fault. Only its limits end a child without an answer,
and clients need not wait for one. After `ok` the client compiles the grammar itself, in a fifth of
the time that it takes to serialize and parse a compiled one.

The compiler needs neither torch nor transformers, but its package imports both. Without them this
process starts in a third of a second and takes 60 MB.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import resource
import signal
import socket
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dspark.token_bytes import read_token_bytes
from dspark.types import Constraint, ConstraintKind
from verify_service.grammars.expressions import (
    check_grammar,
    learn_classes,
    of_json_schema,
    of_whole_text,
)
from verify_service.grammars.matcher import SLOW_S
from verify_service.grammars.mending import coded, mend
from verify_service.grammars.readings import MOST, ways
from verify_service.grammars.rewriting import rewritten
from verify_service.grammars.schema import inside, misshapen, refuse, unkept
from verify_service.grammars.serialized import WrittenGrammar

GRACE_S = 0.1  # added to a child's wall time, so that one about to end can finish
AMBIGUOUS = "it repeats repetitions with nothing between them: a text may be read in too many ways"
MEMORY = 1 << 30  # address space of a child
MAX_BYTES = 16 << 20  # largest compiled grammar
MOST_SAID = 200  # characters of a refusal
FOLLOWED, DOUBTED = 32, 8  # tokens tried of an answer, and of an ambiguous part
SPACES = 16  # most white space between two parts of JSON, so that no answer is endless blanks


class _Absent(types.ModuleType):
    """Stand-in for an absent package: every attribute is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


def main(arguments: list[str]) -> None:
    fd, folder, vocab_size, stops = arguments
    _import_compiler()
    requests = socket.socket(fileno=int(fd))
    compiler = make_compiler(Path(folder), int(vocab_size), json.loads(stops))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children need no wait
    while True:
        message, sockets, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return  # the verifier has ended
        answer = socket.socket(fileno=sockets[0])
        if os.fork() == 0:
            _child(compiler, answer)
        answer.close()


def make_compiler(folder: Path, vocab_size: int, stop_ids: Sequence[int]) -> Any:
    """The xgrammar compiler for a target's vocabulary. Any thread may use it."""
    import xgrammar

    learn_classes()
    words = read_token_bytes(folder, vocab_size, special_too=True) or []
    for token in stop_ids:  # whatever it is written as, it is no text of an answer
        words[token : token + 1] = [b"\xff\xff%d" % token]
    info = xgrammar.TokenizerInfo(words, vocab_size=vocab_size, stop_token_ids=list(stop_ids))
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def _import_compiler() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi looks for it and works without
    importlib.import_module("tvm_ffi")
    for name in ("torch", "transformers"):
        sys.modules[name] = _Absent(name)
    importlib.import_module("xgrammar")


def _child(compiler: Any, answer: socket.socket) -> None:
    """Runs one request in a forked child; never returns."""
    os.nice(8)
    for bound in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(bound, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer.sendall(b".")
        with answer.makefile("rb") as asked:
            cpu_s, wall_s, kind, text = json.load(asked)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, wall_s + GRACE_S)  # the client has given up by then
        answer.sendall(_answered(compiler, Constraint(ConstraintKind(kind), text)))
        answer.close()  # before the exit, which takes a while to free memory
    finally:
        os._exit(0)


def _answered(compiler: Any, constraint: Constraint) -> bytes:
    with tempfile.TemporaryFile() as said:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(said.fileno(), 2)  # the compiler warns on stderr of what it ignores
            grammar = grammar_of(constraint)
            os.dup2(nowhere, 2)
            try_parts(compiler, constraint)
            size: int = checked(compiler.compile_grammar(grammar)).memory_size_bytes
        except RecursionError:
            return b"noit is nested too deeply"
        except (ValueError, RuntimeError, re.error, MemoryError) as error:
            # from the checks here or from the compiler
            return f"no{_sentence(str(error))}".encode()
        except Exception as error:
            return f"er{error!r}".encode()
        said.seek(0)
        warned = re.search("Warning: (.*)", said.read().decode(errors="replace"))
    if warned:
        return f"no{_sentence(warned[1])}".encode()
    if size > MAX_BYTES:
        return f"nocompiled it takes {size} bytes, at most {MAX_BYTES} are allowed".encode()
    return f"ok{size}".encode()


def try_parts(compiler: Any, constraint: Constraint) -> None:
    """Raises ValueError if a text has too many readings, or a mask of an ambiguous part is slow.

    Each ambiguous part is tried on its own, wherever in an answer it is.
    """
    import xgrammar

    for written in _written(constraint):
        found, parts = ways(written)
        if found > MOST:
            raise ValueError(AMBIGUOUS)
        for part in parts:
            made = compiler.compile_grammar(xgrammar.Grammar.deserialize_json(part))
            if any(took > SLOW_S for took, _ in _follow(made, DOUBTED)):
                raise ValueError(AMBIGUOUS)


def _written(constraint: Constraint) -> Iterator[str]:
    """Serialized grammars of the parts that may be ambiguous: expressions and EBNF. Skips parts
    that the compiler cannot read, as it reports them itself."""
    import xgrammar

    for part in _objects(form_of(constraint)):
        names = part.get("patternProperties")
        expressions = [part.get("pattern"), *(names if isinstance(names, dict) else ())]
        grammar = part.get("grammar") if part.get("type") == "grammar" else None
        for make, texts in ((_of_expression, expressions), (xgrammar.Grammar.from_ebnf, [grammar])):
            for text in texts:
                if isinstance(text, str):
                    with contextlib.suppress(Exception):
                        yield make(text).serialize_json()


def checked(made: Any) -> Any:
    """Returns a compiled grammar. Raises ValueError if no answer can begin, as rules lead to no
    token.

    Follows one answer for FOLLOWED tokens. If the number of readings grows, one token may take
    seconds, during which a shared pass would wait; here the limits of the child end it.
    """
    for length, (_, going_on) in enumerate(_follow(made, FOLLOWED)):
        if not (length or going_on):
            raise ValueError("no answer begins as it asks for")
    return made


def _follow(made: Any, longest: int) -> Iterator[tuple[float, bool]]:
    """Follows one random answer; yields the CPU seconds of each mask, and whether it allows a
    token."""
    import numpy as np
    import xgrammar

    mask = np.zeros((1, -(-made.tokenizer_info.vocab_size // 32)), np.int32)
    matcher, draw = xgrammar.GrammarMatcher(made), random.Random(0)
    for _ in range(longest):
        began = time.thread_time()
        matcher.fill_next_token_bitmask(mask, 0)
        yield time.thread_time() - began, bool(mask.any())
        may = np.unpackbits(
            mask.view(np.uint8), count=made.tokenizer_info.vocab_size, bitorder="little"
        )
        may[made.tokenizer_info.stop_token_ids] = 0
        going_on = np.flatnonzero(may)
        if not len(going_on) or not matcher.accept_token(int(draw.choice(going_on))):
            return


def form_of(constraint: Constraint) -> Any:
    """A constraint of any kind as a structural tag, with regular expressions rewritten for the
    compiler. Raises ValueError."""
    text, kind = constraint.text, constraint.kind
    if kind is ConstraintKind.STRUCTURAL_TAG:
        tag = json.loads(text)
    else:
        tag = {"type": "structural_tag", "format": _part(kind, text)}
    _characters(tag)
    for part in _objects(tag, beyond="json_schema"):
        if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
            part["pattern"] = of_whole_text(part["pattern"])
        if part.get("type") == "grammar" and isinstance(part.get("grammar"), str):
            check_grammar(part["grammar"])
    return tag


def _objects(value: Any, beyond: str = "") -> list[dict[str, Any]]:
    return [part for part in inside(value, beyond) if isinstance(part, dict)]


def _part(kind: ConstraintKind, text: str) -> dict[str, Any]:
    match kind:
        case ConstraintKind.JSON_SCHEMA | ConstraintKind.JSON_OBJECT:
            any_object = {"type": "object", "additionalProperties": True}
            schema = json.loads(text) if kind is ConstraintKind.JSON_SCHEMA else any_object
            return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": SPACES}
        case ConstraintKind.CHOICE:
            texts = [{"type": "const_string", "value": each} for each in json.loads(text)]
            return {"type": "or", "elements": texts}
        case ConstraintKind.REGEX:
            return {"type": "regex", "pattern": text}
    return {"type": "grammar", "grammar": text}


def grammar_of(constraint: Constraint) -> Any:
    """The xgrammar grammar of a constraint. Raises ValueError and errors of the compiler, also for
    what it would ignore or no answer can satisfy."""
    import xgrammar

    tag = form_of(constraint)
    for part in _objects(tag, beyond="json_schema"):
        if "json_schema" in part:
            schema = part["json_schema"]
            refuse(misshapen, schema)
            schema = rewritten(schema)
            refuse(unkept, schema)
            part["json_schema"] = coded(schema)
    written = xgrammar.Grammar.from_structural_tag(json.dumps(tag)).serialize_json()
    made = WrittenGrammar(written)
    mend(made, lambda expression: WrittenGrammar(_of_expression(expression).serialize_json()))
    made.drop_endless()  # before compilation, which expands every repetition
    return xgrammar.Grammar.deserialize_json(made.text())


def compiled(compiler: Any, constraint: Constraint) -> Any:
    """The compiled grammar for matchers. Raises as `grammar_of` does."""
    return compiler.compile_grammar(grammar_of(constraint))


def _of_expression(expression: str) -> Any:
    """The grammar of a regular expression inside a schema."""
    import xgrammar

    return xgrammar.Grammar.from_regex(of_json_schema(expression))


def _characters(value: Any) -> None:
    """Raises ValueError for JSON with lone surrogates, as no answer has one."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"\\u{ord(error.object[error.start]):04x} is a lone surrogate, half of a character"
        ) from error


def _sentence(said: str) -> str:
    """Shortens a compiler message: no source position, no position in an expression, no note that
    something is ignored."""
    said = said.strip()
    if ".cc:" in said:
        said = said.rpartition(".cc:")[2].partition(": ")[2] or said
    said = re.sub(
        r"^Regex parsing \w+ at position \d+: |(; ignoring| and is ignored|[. ]+It is ignored).*",
        "",
        said,
    )
    return said if len(said) <= MOST_SAID else f"{said[:MOST_SAID]}..."


if __name__ == "__main__":
    main(sys.argv[1:])
