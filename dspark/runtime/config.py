"""Configuration: one frozen dataclass per process, filled from YAML, environment and flags, in that
order of override.

Values are scalars or tuples of strings. Errors name the key and where it came from.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dspark.errors import ConfigError
from dspark.numerals import number, number_in, whole, whole_in
from dspark.runtime.setting import check_settings

T = TypeVar("T")

# sections of the one file for all processes
SECTIONS = ("cluster", "autoscale", "coordinator", "frontend", "verify", "draft")

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def load_config(
    cls: type[T],
    *,
    section: str,
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> T:
    """An instance of the dataclass `cls`.

    `file` is YAML with one mapping per section; `environ` holds `DSPARK_<SECTION>__<KEY>`; `flags`
    wins, where None means "not given". Unknown keys and sections are errors, and so are a key that
    stands twice and a value out of its bounds.
    """
    _check_environment(environ or {}, {*SECTIONS, section})
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    prefix = f"DSPARK_{section.upper()}__"
    _check_underscores(environ or {}, prefix, known)
    sources: list[tuple[str, Mapping[str, object]]] = [
        (str(file), _read_section(file, section) if file else {}),
        (
            "environment",
            {
                k[len(prefix) :].lower(): v
                for k, v in (environ or {}).items()
                if k.startswith(prefix)
            },
        ),
        ("flags", {k: v for k, v in (flags or {}).items() if v is not None}),
    ]
    for source, given in sources:
        for key, value in given.items():
            if key not in known:
                meant = _meant(key, known)
                raise ConfigError(
                    f"{section}.{key}: unknown key (from {source}){meant}; known: "
                    f"{', '.join(sorted(known))}"
                )
            values[key] = _convert(value, hints[key], f"{section}.{key}", source)
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{section}.{missing[0]}: required and not given")
    made = cls(**values)
    check_settings(made, section)
    return made


def _read_section(file: str | Path, section: str) -> Mapping[str, object]:
    document = read_yaml(file)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: must hold a mapping of sections")
    known = {*SECTIONS, section}
    for name in document:
        if name not in known:
            raise ConfigError(
                f"{file}: {name}: unknown section{_meant(name, known)}; known: "
                f"{', '.join(sorted(known))}"
            )
    content = document.get(section)
    if content is None:  # its keys are comments, say
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: {section} must be a mapping")
    return content


def _check_environment(environ: Mapping[str, str], known: set[str]) -> None:
    upper = {section.upper() for section in known}  # any other case is not read
    for name in environ:
        section, mark, _ = name.removeprefix("DSPARK_").partition("__")
        if name.startswith("DSPARK_") and mark and section not in upper:
            meant = _meant(section.upper(), upper)
            raise ConfigError(f"{name}: unknown section {section!r} in the environment{meant}")


def _check_underscores(environ: Mapping[str, str], prefix: str, known: set[str]) -> None:
    """Refuses a setting behind one underscore. Other names are let be: Kubernetes tells of a
    service `dspark-verify` in DSPARK_VERIFY_PORT and the like, where values begin with tcp://."""
    for name, value in environ.items():
        key = name.removeprefix(prefix[:-1])
        if key != name and key.lower() in known and not value.startswith("tcp://"):
            raise ConfigError(f"{name}: names no setting, {prefix + key!r} is meant?")


def _meant(word: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), sorted(known), n=1)
    return f", {close[0]!r} is meant?" if close else ""


def _convert(value: object, hint: Any, key: str, source: str) -> object:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if value is None or (isinstance(value, str) and value.lower() in {"", "none", "null"}):
            return None
        return _convert(value, options[0], key, source)
    try:
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            if isinstance(value, str):
                value = [part.strip() for part in value.split(",")]
            if not isinstance(value, list | tuple):  # of a mapping, say, the keys alone would count
                raise ValueError("must be a list, or a text with commas")
            return tuple(_convert(part, item, key, source) for part in value if part != "")
        if hint is bool:
            word = str(value).lower()
            if word in _TRUE | _FALSE:
                return word in _TRUE
            raise ValueError("must be true or false")
        if hint is int:
            return whole_in(value) if isinstance(value, str) else whole(value)
        if hint is float:
            made = number_in(value) if isinstance(value, str) else number(value)
            if not math.isfinite(made):
                raise ValueError("must be a finite number")
            return made
        if hint is str:
            # YAML's `off` is false
            if value is None or isinstance(value, bool | bytes | dict | list | set | tuple):
                raise ValueError("must be a text, in quotes where YAML reads something else")
            return os.path.expanduser(str(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {value!r} (from {source}): {error}") from error
    raise ConfigError(f"{key}: type {hint} cannot be configured")


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                continue
            line = key_node.start_mark.line + 1
            if key in seen:
                problem = f"the key {key!r} stands twice, in lines {seen[key]} and {line}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen[key] = line
        return super().construct_mapping(node, deep)


def read_yaml(file: str | Path) -> Any:
    """The content of a YAML file; raises ConfigError with the reason if it cannot be read."""
    try:
        return _Loader(Path(file).read_text(encoding="utf-8")).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{file}: cannot be read: {error.problem}{_at(error)}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        # ValueError: no UTF-8, a date that there is not, a number of too many digits
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: cannot be read: {why}") from error


def _at(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return (
        ""
        if mark is None or "lines" in str(error.problem)
        else f" (line {mark.line + 1}, column {mark.column + 1})"
    )
