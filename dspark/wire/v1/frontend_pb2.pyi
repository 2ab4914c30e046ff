from dspark.wire.v1 import generate_pb2 as _generate_pb2
from dspark.wire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FrontendBatch(_message.Message):
    __slots__ = ("hello", "submits", "finishes", "drops", "aborts", "number")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    hello: FrontendHello
    submits: _containers.RepeatedCompositeFieldContainer[Submit]
    finishes: _containers.RepeatedCompositeFieldContainer[Finish]
    drops: _containers.RepeatedCompositeFieldContainer[Failed]
    aborts: _containers.RepeatedCompositeFieldContainer[AbortCall]
    number: int
    def __init__(self, hello: _Optional[_Union[FrontendHello, _Mapping]] = ..., submits: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ..., finishes: _Optional[_Iterable[_Union[Finish, _Mapping]]] = ..., drops: _Optional[_Iterable[_Union[Failed, _Mapping]]] = ..., aborts: _Optional[_Iterable[_Union[AbortCall, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class FrontendHello(_message.Message):
    __slots__ = ("name", "endpoint", "incarnation", "pid", "metrics_port")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    endpoint: str
    incarnation: int
    pid: int
    metrics_port: int
    def __init__(self, name: _Optional[str] = ..., endpoint: _Optional[str] = ..., incarnation: _Optional[int] = ..., pid: _Optional[int] = ..., metrics_port: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("call", "request", "waited_us", "deadline_us", "tenant")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WAITED_US_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    call: int
    request: _generate_pb2.GenerateRequest
    waited_us: int
    deadline_us: int
    tenant: str
    def __init__(self, call: _Optional[int] = ..., request: _Optional[_Union[_generate_pb2.GenerateRequest, _Mapping]] = ..., waited_us: _Optional[int] = ..., deadline_us: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("call", "index")
    CALL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    call: int
    index: int
    def __init__(self, call: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class AbortCall(_message.Message):
    __slots__ = ("call", "request_ids")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    call: int
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, call: _Optional[int] = ..., request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CellBatch(_message.Message):
    __slots__ = ("terms", "calls", "indices", "lengths", "rounds", "drafted", "verified", "accepted", "token_ids", "logprobs", "started", "ended", "failed", "aborted", "number")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    terms: Terms
    calls: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    rounds: _containers.RepeatedScalarFieldContainer[int]
    drafted: _containers.RepeatedScalarFieldContainer[int]
    verified: _containers.RepeatedScalarFieldContainer[int]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[CommitLogprobs]
    started: _containers.RepeatedCompositeFieldContainer[Started]
    ended: _containers.RepeatedCompositeFieldContainer[Ended]
    failed: _containers.RepeatedCompositeFieldContainer[Failed]
    aborted: _containers.RepeatedCompositeFieldContainer[Aborted]
    number: int
    def __init__(self, terms: _Optional[_Union[Terms, _Mapping]] = ..., calls: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., rounds: _Optional[_Iterable[int]] = ..., drafted: _Optional[_Iterable[int]] = ..., verified: _Optional[_Iterable[int]] = ..., accepted: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[CommitLogprobs, _Mapping]]] = ..., started: _Optional[_Iterable[_Union[Started, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[Ended, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[Failed, _Mapping]]] = ..., aborted: _Optional[_Iterable[_Union[Aborted, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class CommitLogprobs(_message.Message):
    __slots__ = ("commit", "tokens")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    commit: int
    tokens: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    def __init__(self, commit: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("call", "index", "queue_us", "cached_tokens", "prompt_logprobs")
    CALL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    call: int
    index: int
    queue_us: int
    cached_tokens: int
    prompt_logprobs: _types_pb2.PromptLogprobs
    def __init__(self, call: _Optional[int] = ..., index: _Optional[int] = ..., queue_us: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., prompt_logprobs: _Optional[_Union[_types_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("call", "index", "reason", "matched_token_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    call: int
    index: int
    reason: _generate_pb2.FinishReason
    matched_token_id: int
    def __init__(self, call: _Optional[int] = ..., index: _Optional[int] = ..., reason: _Optional[_Union[_generate_pb2.FinishReason, str]] = ..., matched_token_id: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("call", "kind", "message", "field", "retry_after_ms")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Failed.Kind]
        KIND_INVALID: _ClassVar[Failed.Kind]
        KIND_UNSUPPORTED: _ClassVar[Failed.Kind]
        KIND_OVERLOADED: _ClassVar[Failed.Kind]
        KIND_UNAVAILABLE: _ClassVar[Failed.Kind]
        KIND_EXPIRED: _ClassVar[Failed.Kind]
        KIND_INTERNAL: _ClassVar[Failed.Kind]
        KIND_CANCELLED: _ClassVar[Failed.Kind]
        KIND_CONTEXT_EXCEEDED: _ClassVar[Failed.Kind]
    KIND_UNSPECIFIED: Failed.Kind
    KIND_INVALID: Failed.Kind
    KIND_UNSUPPORTED: Failed.Kind
    KIND_OVERLOADED: Failed.Kind
    KIND_UNAVAILABLE: Failed.Kind
    KIND_EXPIRED: Failed.Kind
    KIND_INTERNAL: Failed.Kind
    KIND_CANCELLED: Failed.Kind
    KIND_CONTEXT_EXCEEDED: Failed.Kind
    CALL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    call: int
    kind: Failed.Kind
    message: str
    field: str
    retry_after_ms: int
    def __init__(self, call: _Optional[int] = ..., kind: _Optional[_Union[Failed.Kind, str]] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Aborted(_message.Message):
    __slots__ = ("call", "request_ids")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    call: int
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, call: _Optional[int] = ..., request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("closed", "model", "drafter", "block_size", "vocab_size", "context_length", "capacity", "stop_token_ids", "policy", "rule", "fingerprint", "starting")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    closed: str
    model: str
    drafter: str
    block_size: int
    vocab_size: int
    context_length: int
    capacity: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    policy: str
    rule: _types_pb2.Rule
    fingerprint: str
    starting: bool
    def __init__(self, closed: _Optional[str] = ..., model: _Optional[str] = ..., drafter: _Optional[str] = ..., block_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., capacity: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., policy: _Optional[str] = ..., rule: _Optional[_Union[_types_pb2.Rule, str]] = ..., fingerprint: _Optional[str] = ..., starting: _Optional[bool] = ...) -> None: ...
