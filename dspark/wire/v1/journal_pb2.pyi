from dspark.wire.v1 import frontend_pb2 as _frontend_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JournalBatch(_message.Message):
    __slots__ = ("unix_s", "requests", "epochs", "said")
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    requests: _containers.RepeatedCompositeFieldContainer[JournalRequest]
    epochs: _containers.RepeatedCompositeFieldContainer[JournalEpoch]
    said: _frontend_pb2.CellBatch
    def __init__(self, unix_s: _Optional[float] = ..., requests: _Optional[_Iterable[_Union[JournalRequest, _Mapping]]] = ..., epochs: _Optional[_Iterable[_Union[JournalEpoch, _Mapping]]] = ..., said: _Optional[_Union[_frontend_pb2.CellBatch, _Mapping]] = ...) -> None: ...

class JournalRequest(_message.Message):
    __slots__ = ("number", "request_id", "digest", "seed", "answers", "rule")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    number: int
    request_id: str
    digest: bytes
    seed: int
    answers: int
    rule: int
    def __init__(self, number: _Optional[int] = ..., request_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., seed: _Optional[int] = ..., answers: _Optional[int] = ..., rule: _Optional[int] = ...) -> None: ...

class JournalEpoch(_message.Message):
    __slots__ = ("number", "index", "epoch", "target")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    epoch: int
    target: str
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ..., epoch: _Optional[int] = ..., target: _Optional[str] = ...) -> None: ...
