"""The page of the wire protocol: services, messages and enums with the comments of the proto
files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from writing import cell, page

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "dspark/wire/v1"


def protocol() -> str:
    """Services, messages and enums of the wire protocol with the comments of the proto files."""
    lines = [
        "# Wire protocol",
        "",
        "gRPC package `dspark.wire.v1`. Clients need `generate.proto` alone; services speak the "
        "other files.",
    ]
    for file in _descriptors():
        comments = {tuple(place.path): _comment(place) for place in file.source_code_info.location}
        lines += ["", f"## {Path(file.name).name}"]
        for s, service in enumerate(file.service):
            lines += _described(f"service {service.name}", comments.get((6, s), ""))
            lines += ["| method | takes | gives | meaning |", "| --- | --- | --- | --- |"]
            for m, method in enumerate(service.method):
                takes, gives = (
                    f"{'stream ' if streams else ''}`{name.rpartition('.')[2]}`"
                    for name, streams in (
                        (method.input_type, method.client_streaming),
                        (method.output_type, method.server_streaming),
                    )
                )
                lines.append(
                    f"| `{method.name}` | {takes} | {gives} | "
                    f"{cell(comments.get((6, s, 2, m), ''))} |"
                )
        for m, message in enumerate(file.message_type):
            lines += _message(message, (4, m), comments, message.name)
        for e, enum in enumerate(file.enum_type):
            lines += _enum(enum, (5, e), comments, enum.name)
    return page(lines)


def _message(
    message: Any, path: tuple[int, ...], comments: dict[tuple[int, ...], str], name: str
) -> list[str]:
    if message.options.map_entry:
        return []
    lines = _described(name, comments.get(path, ""))
    if message.field:
        lines += ["| field | no. | type | meaning |", "| --- | --- | --- | --- |"]
    for f, field in enumerate(message.field):
        words = {3: "repeated "}.get(field.label, "optional " if field.proto3_optional else "")
        kind = (
            field.type_name.rpartition(".")[2]
            or field.Type.Name(field.type).removeprefix("TYPE_").lower()
        )
        lines.append(
            f"| `{field.name}` | {field.number} | {words}`{kind}` | "
            f"{cell(comments.get((*path, 2, f), ''))} |"
        )
    for n, nested in enumerate(message.nested_type):
        lines += _message(nested, (*path, 3, n), comments, f"{name}.{nested.name}")
    for n, enum in enumerate(message.enum_type):
        lines += _enum(enum, (*path, 4, n), comments, f"{name}.{enum.name}")
    return lines


def _enum(
    enum: Any, path: tuple[int, ...], comments: dict[tuple[int, ...], str], name: str
) -> list[str]:
    lines = _described(f"enum {name}", comments.get(path, ""))
    lines += ["| value | no. | meaning |", "| --- | --- | --- |"]
    for v, value in enumerate(enum.value):
        lines.append(
            f"| `{value.name}` | {value.number} | {cell(comments.get((*path, 2, v), ''))} |"
        )
    return lines


def _described(name: str, comment: str) -> list[str]:
    return ["", f"### {name}", "", *([comment, ""] if comment else [])]


def _descriptors() -> list[Any]:
    import grpc_tools
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    names = sorted(path.name for path in (ROOT / "protos" / FOLDER).glob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        include = [f"-I{ROOT / 'protos'}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
        options = ["--include_source_info", f"--descriptor_set_out={out.name}"]
        if protoc.main(["protoc", *include, *options, *(f"{FOLDER}/{name}" for name in names)]):
            raise RuntimeError("the proto files do not compile")
        return list(FileDescriptorSet.FromString(Path(out.name).read_bytes()).file)


def _comment(place: Any) -> str:
    text = place.leading_comments.strip() or place.trailing_comments.strip()
    return " ".join(text.split())
