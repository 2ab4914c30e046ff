"""The text of the demo pair: library source, docstrings and topics of the running interpreter, and arithmetic.

A document belongs to the held-out split when the hash of its file says so, and so do all docstrings of that file;
a text that occurs in both splits is dropped from the training split.
"""

import ast
import hashlib
import inspect
import json
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from training.arithmetic import worksheet

DOMAINS = ("code", "prose", "math")
HELD_OUT_ONE_IN = 16
# Tables, grammars and demos that read like neither code nor prose; the test suites are large and unlike the library.
SKIPPED = {"site-packages", "test", "tests", "idle_test", "encodings", "turtledemo", "lib2to3", "pydoc_data"}
SKIPPED |= {"__pycache__", "msilib", "_pyrepl"}
LONG_DOCSTRING = 300
MATH_TRAIN_SHEETS, MATH_HELD_OUT_SHEETS = 6_000, 300
# A short worksheet teaches the beginning of one, a long one its continuation.
SHEET_LENGTHS = (4, 6, 8, 12)


@dataclass(frozen=True, slots=True)
class Document:
    domain: str
    name: str
    held_out: bool
    text: str


def is_held_out(name: str) -> bool:
    """One file in sixteen, by the hash of its path below the library: the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0


def library_files(root: Path) -> Iterator[tuple[str, str]]:
    """(path below the library, source) of every module that is neither skipped nor unreadable."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED.intersection(name.split("/")) or name.startswith("_sysconfigdata"):
            continue
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        # An empty package file and a generated table teach nothing.
        if len(source) >= 200 and max(map(len, source.splitlines())) < 400:
            yield name, source


def docstrings(source: str) -> list[str]:
    """The cleaned docstrings of a module, its classes and its functions, in the order of the file."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, holders)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    found = [ast.get_docstring(node, clean=False) for node in nodes]
    return [inspect.cleandoc(text) for text in found if text]


def prose_of(name: str, source: str) -> Iterator[Document]:
    """Long docstrings each on their own, the short ones of a module joined."""
    short: list[str] = []
    held_out = is_held_out(name)
    for number, text in enumerate(docstrings(source)):
        if len(text) >= LONG_DOCSTRING:
            yield Document("prose", f"{name}#{number}", held_out, text + "\n")
        elif len(text) >= 40:
            short.append(text)
    if short:
        yield Document("prose", f"{name}#short", held_out, "\n\n".join(short) + "\n")


def topics() -> Iterator[Document]:
    from pydoc_data.topics import topics as texts

    for name, text in sorted(texts.items()):
        yield Document("prose", f"topic/{name}", is_held_out(f"topic/{name}"), text.strip() + "\n")


def arithmetic(seed: int) -> Iterator[Document]:
    for split, sheets in (("train", MATH_TRAIN_SHEETS), ("held-out", MATH_HELD_OUT_SHEETS)):
        for number in range(sheets):
            rng = random.Random(f"{seed}/{split}/{number}")
            text = worksheet(rng, rng.choice(SHEET_LENGTHS))
            yield Document("math", f"{split}/{number}", split == "held-out", text)


def without_duplicates(documents: list[Document]) -> list[Document]:
    """First of each text; the held-out documents come first, so that none of them is ever trained on."""
    seen: set[str] = set()
    kept = []
    for document in sorted(documents, key=lambda d: not d.held_out):
        key = " ".join(document.text.split())
        if key not in seen:
            seen.add(key)
            kept.append(document)
    return kept


def collect(seed: int) -> list[Document]:
    documents: list[Document] = []
    for name, source in library_files(Path(sysconfig.get_path("stdlib"))):
        documents.append(Document("code", name, is_held_out(name), source))
        documents.extend(prose_of(name, source))
    documents.extend(topics())
    documents.extend(arithmetic(seed))
    return without_duplicates(documents)


def write(documents: list[Document], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(asdict(document)) + "\n")


def read(path: Path) -> list[Document]:
    with path.open(encoding="utf-8") as file:
        return [Document(**json.loads(line)) for line in file]


def summary(documents: list[Document]) -> dict[str, dict[str, int]]:
    """Characters and documents by domain and split."""
    rows: dict[str, dict[str, int]] = {}
    for document in documents:
        row = rows.setdefault(f"{document.domain}/{'held-out' if document.held_out else 'train'}", {})
        row["documents"] = row.get("documents", 0) + 1
        row["characters"] = row.get("characters", 0) + len(document.text)
    return rows
