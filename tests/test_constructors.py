"""A constructor takes six arguments at most: what belongs together has a name of its own."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("dspark", "coordinator", "draft_service", "verify_service", "deploy", "benchmarks")
MOST = 6


def wide(text: str) -> Iterator[tuple[str, int]]:
    """(class, arguments) of the constructors in a module that take more. Generated ones, of plain
    data, are apart."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                given = method.args
                count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
                if count > MOST:
                    yield node.name, count


def test_no_constructor_takes_more_than_six_arguments() -> None:
    found = [
        (str(path.relative_to(ROOT)), *each)
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
        for each in wide(path.read_text(encoding="utf-8"))
    ]
    assert not found, found


def test_a_wide_constructor_would_be_seen() -> None:
    text = "class A:\n    def __init__(self, a, b, c, d, *, e=1, f=2{}) -> None: ..."
    assert not list(wide(text.format("")))
    assert list(wide(text.format(", g=3"))) == [("A", 7)]
