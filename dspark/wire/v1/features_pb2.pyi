from dspark.wire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeatureChunk(_message.Message):
    __slots__ = ("sink_incarnation", "source_incarnation", "sequence", "epoch", "start_position", "token_ids", "rows", "projection")
    SINK_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    sink_incarnation: int
    source_incarnation: int
    sequence: int
    epoch: int
    start_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    rows: _types_pb2.TensorChunk
    projection: str
    def __init__(self, sink_incarnation: _Optional[int] = ..., source_incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., start_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., rows: _Optional[_Union[_types_pb2.TensorChunk, _Mapping]] = ..., projection: _Optional[str] = ...) -> None: ...

class FeatureAck(_message.Message):
    __slots__ = ("sequence", "epoch", "watermark", "refusal")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    watermark: int
    refusal: _types_pb2.Refusal
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., watermark: _Optional[int] = ..., refusal: _Optional[_Union[_types_pb2.Refusal, _Mapping]] = ...) -> None: ...
