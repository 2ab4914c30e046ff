from dspark.wire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmptyReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMPTY_REASON_UNSPECIFIED: _ClassVar[EmptyReason]
    EMPTY_REASON_FEATURES_MISSING: _ClassVar[EmptyReason]
    EMPTY_REASON_UNKNOWN_SEQUENCE: _ClassVar[EmptyReason]
    EMPTY_REASON_TOO_LONG: _ClassVar[EmptyReason]
    EMPTY_REASON_INVALID: _ClassVar[EmptyReason]
EMPTY_REASON_UNSPECIFIED: EmptyReason
EMPTY_REASON_FEATURES_MISSING: EmptyReason
EMPTY_REASON_UNKNOWN_SEQUENCE: EmptyReason
EMPTY_REASON_TOO_LONG: EmptyReason
EMPTY_REASON_INVALID: EmptyReason

class DrafterDescription(_message.Message):
    __slots__ = ("incarnation", "pid", "model", "fingerprint", "projection", "vocab_size", "hidden_size", "block_size", "q_entries", "context_length", "device", "dtype", "cost", "load", "calibrated", "page_size", "draining", "metrics_port", "warm", "rounds_port")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    Q_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PORT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    pid: int
    model: str
    fingerprint: str
    projection: str
    vocab_size: int
    hidden_size: int
    block_size: int
    q_entries: int
    context_length: int
    device: str
    dtype: str
    cost: _types_pb2.CostCurve
    load: _types_pb2.Load
    calibrated: bool
    page_size: int
    draining: bool
    metrics_port: int
    warm: bool
    rounds_port: int
    def __init__(self, incarnation: _Optional[int] = ..., pid: _Optional[int] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., projection: _Optional[str] = ..., vocab_size: _Optional[int] = ..., hidden_size: _Optional[int] = ..., block_size: _Optional[int] = ..., q_entries: _Optional[int] = ..., context_length: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., cost: _Optional[_Union[_types_pb2.CostCurve, _Mapping]] = ..., load: _Optional[_Union[_types_pb2.Load, _Mapping]] = ..., calibrated: _Optional[bool] = ..., page_size: _Optional[int] = ..., draining: _Optional[bool] = ..., metrics_port: _Optional[int] = ..., warm: _Optional[bool] = ..., rounds_port: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class Blocks(_message.Message):
    __slots__ = ("lengths", "token_ids", "confidence", "q_entries", "q_ids", "q_probs", "empty_reasons", "watermarks", "forward_ns", "order")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    Q_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    Q_IDS_FIELD_NUMBER: _ClassVar[int]
    Q_PROBS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_REASONS_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    confidence: _containers.RepeatedScalarFieldContainer[float]
    q_entries: _containers.RepeatedScalarFieldContainer[int]
    q_ids: bytes
    q_probs: bytes
    empty_reasons: _containers.RepeatedScalarFieldContainer[EmptyReason]
    watermarks: _containers.RepeatedScalarFieldContainer[int]
    forward_ns: int
    order: int
    def __init__(self, lengths: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., confidence: _Optional[_Iterable[float]] = ..., q_entries: _Optional[_Iterable[int]] = ..., q_ids: _Optional[bytes] = ..., q_probs: _Optional[bytes] = ..., empty_reasons: _Optional[_Iterable[_Union[EmptyReason, str]]] = ..., watermarks: _Optional[_Iterable[int]] = ..., forward_ns: _Optional[int] = ..., order: _Optional[int] = ...) -> None: ...

class RoundsCommand(_message.Message):
    __slots__ = ("hello", "open", "close", "order", "rows", "keep")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    hello: RoundsHello
    open: OpenContext
    close: CloseContexts
    order: Order
    rows: OrderRows
    keep: KeepContexts
    def __init__(self, hello: _Optional[_Union[RoundsHello, _Mapping]] = ..., open: _Optional[_Union[OpenContext, _Mapping]] = ..., close: _Optional[_Union[CloseContexts, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., rows: _Optional[_Union[OrderRows, _Mapping]] = ..., keep: _Optional[_Union[KeepContexts, _Mapping]] = ...) -> None: ...

class RoundsHello(_message.Message):
    __slots__ = ("drafter_incarnation", "verifier_incarnation", "projection")
    DRAFTER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    drafter_incarnation: int
    verifier_incarnation: int
    projection: str
    def __init__(self, drafter_incarnation: _Optional[int] = ..., verifier_incarnation: _Optional[int] = ..., projection: _Optional[str] = ...) -> None: ...

class OpenContext(_message.Message):
    __slots__ = ("sequence", "epoch", "reserve_tokens", "sampling")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESERVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    reserve_tokens: int
    sampling: _types_pb2.SequenceSampling
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., reserve_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_types_pb2.SequenceSampling, _Mapping]] = ...) -> None: ...

class CloseContexts(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRef]
    def __init__(self, sequences: _Optional[_Iterable[_Union[_types_pb2.SequenceRef, _Mapping]]] = ...) -> None: ...

class KeepContexts(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[_types_pb2.SequenceRef]
    def __init__(self, sequences: _Optional[_Iterable[_Union[_types_pb2.SequenceRef, _Mapping]]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("order", "sequence", "epoch", "round", "committed_len", "anchors", "slots", "rows", "token_ids", "features", "mask_bytes", "masks")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MASK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    order: int
    sequence: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    round: _containers.RepeatedScalarFieldContainer[int]
    committed_len: _containers.RepeatedScalarFieldContainer[int]
    anchors: _containers.RepeatedScalarFieldContainer[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    features: _types_pb2.TensorChunk
    mask_bytes: _containers.RepeatedScalarFieldContainer[int]
    masks: bytes
    def __init__(self, order: _Optional[int] = ..., sequence: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., round: _Optional[_Iterable[int]] = ..., committed_len: _Optional[_Iterable[int]] = ..., anchors: _Optional[_Iterable[int]] = ..., slots: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., features: _Optional[_Union[_types_pb2.TensorChunk, _Mapping]] = ..., mask_bytes: _Optional[_Iterable[int]] = ..., masks: _Optional[bytes] = ...) -> None: ...

class OrderRows(_message.Message):
    __slots__ = ("order", "features")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    order: int
    features: _types_pb2.TensorChunk
    def __init__(self, order: _Optional[int] = ..., features: _Optional[_Union[_types_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class RoundsEvent(_message.Message):
    __slots__ = ("welcome", "blocks", "opened")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    welcome: RoundsWelcome
    blocks: Blocks
    opened: ContextOpened
    def __init__(self, welcome: _Optional[_Union[RoundsWelcome, _Mapping]] = ..., blocks: _Optional[_Union[Blocks, _Mapping]] = ..., opened: _Optional[_Union[ContextOpened, _Mapping]] = ...) -> None: ...

class RoundsWelcome(_message.Message):
    __slots__ = ("incarnation", "drafter_version")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    drafter_version: str
    def __init__(self, incarnation: _Optional[int] = ..., drafter_version: _Optional[str] = ...) -> None: ...

class ContextOpened(_message.Message):
    __slots__ = ("sequence", "epoch", "refusal")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    refusal: _types_pb2.Refusal
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., refusal: _Optional[_Union[_types_pb2.Refusal, _Mapping]] = ...) -> None: ...
