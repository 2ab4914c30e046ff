from dspark.wire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JournalBatch(_message.Message):
    __slots__ = ("unix_s", "requests", "numbers", "indices", "epochs", "lengths", "token_ids", "logprobs", "ends")
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    requests: _containers.RepeatedCompositeFieldContainer[JournalRequest]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    epochs: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[JournalLogprobs]
    ends: _containers.RepeatedCompositeFieldContainer[JournalEnd]
    def __init__(self, unix_s: _Optional[float] = ..., requests: _Optional[_Iterable[_Union[JournalRequest, _Mapping]]] = ..., numbers: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., epochs: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[JournalLogprobs, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[JournalEnd, _Mapping]]] = ...) -> None: ...

class JournalRequest(_message.Message):
    __slots__ = ("number", "request_id", "digest", "seed", "answers")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    request_id: str
    digest: bytes
    seed: int
    answers: int
    def __init__(self, number: _Optional[int] = ..., request_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., seed: _Optional[int] = ..., answers: _Optional[int] = ...) -> None: ...

class JournalLogprobs(_message.Message):
    __slots__ = ("commit", "tokens")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    commit: int
    tokens: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    def __init__(self, commit: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class JournalEnd(_message.Message):
    __slots__ = ("number", "index", "reason", "matched_token_id")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[JournalEnd.Reason]
        REASON_STOP: _ClassVar[JournalEnd.Reason]
        REASON_LENGTH: _ClassVar[JournalEnd.Reason]
        REASON_ABORT: _ClassVar[JournalEnd.Reason]
    REASON_UNSPECIFIED: JournalEnd.Reason
    REASON_STOP: JournalEnd.Reason
    REASON_LENGTH: JournalEnd.Reason
    REASON_ABORT: JournalEnd.Reason
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    reason: JournalEnd.Reason
    matched_token_id: int
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ..., reason: _Optional[_Union[JournalEnd.Reason, str]] = ..., matched_token_id: _Optional[int] = ...) -> None: ...
