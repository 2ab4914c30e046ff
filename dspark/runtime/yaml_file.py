"""YAML files of settings, read safely: plain values alone, and no key twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dspark.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Refuses what YAML leaves to the last one who says it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(key, str | int | float | bool) and key in seen:
                problem = f"the key {key!r} stands twice, in lines {seen[key]} and {line}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if isinstance(key, str | int | float | bool):
                seen[key] = line
        return super().construct_mapping(node, deep)


def read_yaml(file: str | Path) -> Any:
    """What the file holds; ConfigError says why it cannot be read."""
    try:
        return _Loader(Path(file).read_text(encoding="utf-8")).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{file}: cannot be read: {error.problem}{_at(error)}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error


def _at(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return "" if mark is None or "lines" in str(error.problem) else f" (line {mark.line + 1}, column {mark.column + 1})"
