"""The map of rooms: who may import whom, read from the sources."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.commands import python

ROOT = Path(__file__).parent.parent
ROOMS = {"draft_service", "verify_service", "coordinator", "deploy", "benchmarks"}
SERVICES = {"draft_service", "verify_service", "coordinator"}
DANGEROUS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.hub.load", "joblib.load"}
DANGEROUS |= {"pickle.load", "pickle.loads", "yaml.load", "yaml.unsafe_load"}
BELOW_ALL = ("clock", "config")  # files of the coordinator that any of its packages may import


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(dotted module, or what is taken from one; whether the import runs when the file is
    imported)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node not in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", node not in late
            yield from ((f"{node.module}.{alias.name}", node not in late) for alias in node.names)


def _sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def _forbidden(room: str, path: Path, module: str, at_import: bool) -> str | None:
    head = module.split(".")[0]
    inside = str(path.relative_to(ROOT))
    if head == "ray" and room != "deploy":
        return "only deploy/ imports ray"
    if room in SERVICES and head in ROOMS - {room}:
        return "services never import each other"
    if room == "dspark" and head in ROOMS and (at_import or not inside.startswith("dspark/cli/")):
        return "dspark knows no room; dspark/cli may import one inside a function"
    if module.startswith("dspark.training") and (
        room in SERVICES
        or (
            room == "dspark"
            and not inside.startswith("dspark/training/")
            and (at_import or "/cli/" not in inside)
        )
    ):
        return "nothing that serves knows training; dspark/cli may import it inside a function"
    if module.startswith("dspark.cli.") and inside.startswith(
        ("dspark/training/", "dspark/loadgen/")
    ):
        return "commands know training and load, not the other way"
    if room == "coordinator" and (
        head in {"torch", "transformers", "safetensors"}
        or module.startswith(
            ("dspark.model", "dspark.decoding", "dspark.gguf", "dspark.wire.tensors")
        )
    ):
        return "the coordinator never loads torch"
    if module in {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}:
        return "no pickle anywhere"
    return None


@pytest.mark.parametrize("room", sorted(ROOMS | {"dspark"}))
def test_every_import_stays_inside_the_map(room: str) -> None:
    sources = _sources(room)
    assert sources, f"{room} has no sources"
    wrong = [
        f"{path.relative_to(ROOT)}: {module}: {reason}"
        for path in sources
        for module, at_import in _imports(path)
        if (reason := _forbidden(room, path, module, at_import))
    ]
    assert not wrong, "\n".join(wrong)


def _graph(files: dict[str, Path]) -> dict[str, set[str]]:
    """Module -> modules of `files` that it imports anywhere: inside functions and for types alone,
    too."""
    return {
        module: {name for name, _ in _imports(path) if name in files} - {module}
        for module, path in files.items()
    }


def _circle(graph: dict[str, set[str]]) -> set[str]:
    """Modules that import each other in a circle, if any do."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return set(error.args[1])
    return set()


def _modules() -> dict[str, Path]:
    """Every file of every room, by the name of its module."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for room in sorted(ROOMS | {"dspark"})
        for path in _sources(room)
    }


def test_no_module_imports_itself_on_any_way() -> None:
    assert not _circle(_graph(_modules()))


def test_a_circle_would_be_seen(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.py" for name in ("a", "b", "c", "d")}
    for name, text in (
        ("a", "import b"),
        ("b", "def f():\n    from c import x"),
        ("c", "import a"),
        ("d", "import a"),
    ):
        files[name].write_text(text, encoding="utf-8")
    assert _circle(_graph(files)) == {"a", "b", "c"}


def test_dangerous_calls_are_absent() -> None:
    wrong = []
    for path in _modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                remote = any(
                    k.arg == "trust_remote_code" and ast.unparse(k.value) != "False"
                    for k in node.keywords
                )
                if name in DANGEROUS or remote:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module",
    ["coordinator.process", "coordinator.frontend.process", "dspark.cli.main", "dspark.client"],
)
def test_light_entry_points_load_neither_torch_nor_ray(module: str) -> None:
    code = (
        f"import sys, {module}; print([m for m in ('torch', 'transformers', 'ray') if m in "
        "sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_the_client_needs_grpc_and_protobuf_alone() -> None:
    blocked = (
        "('numpy', 'yaml', 'structlog', 'prometheus_client', 'tokenizers', 'torch', 'ray', 'rich')"
    )
    code = (
        "import sys\n"
        f"for name in {blocked}: sys.modules[name] = None\n"
        "import dspark.client, dspark.cli.main\n"
        "dspark.cli.main.build_parser()\n"
    )
    python(code)


def _packages() -> dict[str, set[str]]:
    """Files that the map names, by package of the coordinator, from the doors down."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.split("## Inside the coordinator")[1].split("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {row[1].strip(" `/"): set(re.findall(r"`(\w+)`", row[3])) for row in rows}


def test_the_map_of_the_coordinator_names_every_file() -> None:
    here = {
        path.name: path
        for path in (ROOT / "coordinator").iterdir()
        if (path / "__init__.py").exists()
    }
    packages = _packages()
    assert set(packages) == set(here)
    for name, named in packages.items():
        files = {path.stem for path in here[name].glob("*.py")} - {"__init__"}
        # of one, the main ones
        assert named <= files if name == "simulation" else named == files, name
    assert {path.stem for path in (ROOT / "coordinator").glob("*.py")} == {
        "__init__",
        "process",
        *BELOW_ALL,
    }


def test_packages_of_the_coordinator_import_only_from_those_below() -> None:
    packages = list(_packages())
    wrong = []
    for place, name in enumerate([*packages, *BELOW_ALL]):
        above = {*packages[:place], "process"}
        file = ROOT / f"coordinator/{name}.py"
        for path in [file] if name in BELOW_ALL else _sources(f"coordinator/{name}"):
            for module, _ in _imports(path):
                _, _, inside = module.partition("coordinator.")
                if (
                    module.startswith("coordinator.")
                    and inside.split(".")[0] in above
                    and "config" not in inside
                ):
                    wrong.append(f"{path.relative_to(ROOT)}: {module}")
    assert not wrong, "\n".join(wrong)


def _classes(files: dict[str, Path]) -> dict[str, set[str]]:
    """Name of a class -> modules that have one of this name, inside others too."""
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).add(module)
    return found


def test_no_two_classes_share_a_name() -> None:
    """The wire's generated twins apart."""
    files = {
        name: path for name, path in _modules().items() if not name.startswith("dspark.wire.v1.")
    }
    shared = {
        name: sorted(modules) for name, modules in _classes(files).items() if len(modules) > 1
    }
    assert not shared


def test_a_shared_name_would_be_seen(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.py" for name in ("a", "b")}
    files["a"].write_text("class Plan: ...\nclass Pace: ...\n", encoding="utf-8")
    files["b"].write_text("def f():\n    class Plan: ...\n", encoding="utf-8")
    assert _classes(files)["Plan"] == {"a", "b"}


def _wide(path: Path) -> Iterator[tuple[str, int]]:
    """(class, arguments) of written constructors that take more than six: what belongs together has
    a name of its own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                given = method.args
                count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
                if count > 6:
                    yield node.name, count


def test_no_constructor_takes_more_than_six_arguments(tmp_path: Path) -> None:
    found = [(name, *each) for name, path in _modules().items() for each in _wide(path)]
    assert not found, found
    for more, seen in (("", []), (", g=3", [("A", 7)])):  # one would be seen
        text = f"class A:\n    def __init__(self, a, b, c, d, *, e=1, f=2{more}) -> None: ..."
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        assert list(_wide(tmp_path / "a.py")) == seen
