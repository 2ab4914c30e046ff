from dspark.wire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeatureChunk(_message.Message):
    __slots__ = ("sink_incarnation", "source_incarnation", "projection", "sequence", "epoch", "start_position", "token_ids", "rows")
    SINK_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    sink_incarnation: int
    source_incarnation: int
    projection: str
    sequence: int
    epoch: int
    start_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    rows: _types_pb2.TensorChunk
    def __init__(self, sink_incarnation: _Optional[int] = ..., source_incarnation: _Optional[int] = ..., projection: _Optional[str] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., start_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., rows: _Optional[_Union[_types_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class FeatureAck(_message.Message):
    __slots__ = ("chunks", "refused", "watermarks")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    refused: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRef]
    watermarks: _containers.RepeatedCompositeFieldContainer[Watermark]
    def __init__(self, chunks: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[_types_pb2.SequenceRef, _Mapping]]] = ..., watermarks: _Optional[_Iterable[_Union[Watermark, _Mapping]]] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("sequence", "epoch", "rows")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    rows: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...
