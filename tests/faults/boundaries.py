"""Every kind of message that crosses from one process to another, read from the protocol itself.

A kind is the message's type and, where the type is a choice or a list of choices, what was chosen:
`RoundsCommand.order`, `ControlUp.report`, `FeatureChunk`, `DescribeRequest`. Of a list it is what
is said rarely, the last of them in the protocol. A command that is added to the protocol is a kind
at once.
"""

import functools
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, OneofDescriptor
from google.protobuf.message_factory import GetMessageClass

from dspark.wire.v1 import control_pb2, draft_pb2, features_pb2, frontend_pb2, verify_pb2

OFTEN = ("plan", "acknowledged", "report")  # parts of lists that come with nearly all of them
# files whose services are no clients'
INTERNAL = (
    verify_pb2,
    draft_pb2,
    features_pb2,
    frontend_pb2,
    control_pb2,
)


@functools.cache
def methods() -> dict[str, tuple[Descriptor, Descriptor]]:
    """Of every internal method, e.g. "/dspark.wire.v1.Verify/Control" -> (request, response)."""
    return {
        f"/{service.full_name}/{method.name}": (method.input_type, method.output_type)
        for file in INTERNAL
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def kinds() -> Iterator[tuple[str, bool, str]]:
    """(method, whether it is a request, kind) of everything that can be said between processes."""
    for method, pair in methods().items():
        for asked, descriptor in zip((True, False), pair, strict=True):
            choice, listed = _choice(descriptor), _list(descriptor)
            names = [""]
            if choice is not None:
                names = [f".{field.name}" for field in choice.fields]
            elif listed is not None:
                names = [".empty", *(f".{field.name}" for field in listed[1].fields)]
            for name in names:
                yield method, asked, descriptor.name + name


def kind_of(method: str, asked: bool, data: bytes) -> str:
    """Of one serialised message; "" of a method that is not internal."""
    pair = methods().get(method)
    if pair is None:
        return ""
    descriptor = pair[0 if asked else 1]
    choice, listed = _choice(descriptor), _list(descriptor)
    if choice is None and listed is None:
        return str(descriptor.name)
    message: Any = GetMessageClass(descriptor)()
    message.ParseFromString(data)
    if choice is not None:
        return f"{descriptor.name}.{message.WhichOneof(choice.name)}"
    assert listed is not None
    field, each = listed
    said = [one.WhichOneof(each.name) for one in getattr(message, field)]
    order = [its.name for its in each.fields]
    most = max(said, key=lambda name: (name not in OFTEN, order.index(name)), default="empty")
    return f"{descriptor.name}.{most}"


def _choice(descriptor: Descriptor) -> OneofDescriptor | None:
    """The choice a message is made of; `optional` fields are choices in name only."""
    real = [one for one in descriptor.oneofs if not one.name.startswith("_")]
    return max(real, key=lambda one: len(one.fields), default=None)


def _list(descriptor: Descriptor) -> tuple[str, OneofDescriptor] | None:
    """The field that lists choices, and the choice, of a message that is such a list."""
    for field in descriptor.fields:
        if (
            field.message_type is not None
            and field.is_repeated
            and (each := _choice(field.message_type)) is not None
        ):
            return field.name, each
    return None
