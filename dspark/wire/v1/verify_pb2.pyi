from dspark.wire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierDescription(_message.Message):
    __slots__ = ("incarnation", "pid", "model", "fingerprint", "vocab_size", "context_length", "hidden_size", "projection", "page_size", "attention_path", "device", "dtype", "cost", "load", "feature_dtype", "stop_token_ids", "draining", "metrics_port", "warm", "attention_reason")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_PATH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    FEATURE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_REASON_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    pid: int
    model: str
    fingerprint: str
    vocab_size: int
    context_length: int
    hidden_size: int
    projection: str
    page_size: int
    attention_path: str
    device: str
    dtype: str
    cost: _types_pb2.CostCurve
    load: _types_pb2.Load
    feature_dtype: str
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    draining: bool
    metrics_port: int
    warm: bool
    attention_reason: str
    def __init__(self, incarnation: _Optional[int] = ..., pid: _Optional[int] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., hidden_size: _Optional[int] = ..., projection: _Optional[str] = ..., page_size: _Optional[int] = ..., attention_path: _Optional[str] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., cost: _Optional[_Union[_types_pb2.CostCurve, _Mapping]] = ..., load: _Optional[_Union[_types_pb2.Load, _Mapping]] = ..., feature_dtype: _Optional[str] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., draining: _Optional[bool] = ..., metrics_port: _Optional[int] = ..., warm: _Optional[bool] = ..., attention_reason: _Optional[str] = ...) -> None: ...

class Draws(_message.Message):
    __slots__ = ("drafter_version", "slots", "places", "drift", "variance", "blocks", "luck", "luck_variance")
    DRAFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    VARIANCE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LUCK_FIELD_NUMBER: _ClassVar[int]
    LUCK_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    drafter_version: str
    slots: int
    places: _containers.RepeatedScalarFieldContainer[int]
    drift: float
    variance: float
    blocks: int
    luck: float
    luck_variance: float
    def __init__(self, drafter_version: _Optional[str] = ..., slots: _Optional[int] = ..., places: _Optional[_Iterable[int]] = ..., drift: _Optional[float] = ..., variance: _Optional[float] = ..., blocks: _Optional[int] = ..., luck: _Optional[float] = ..., luck_variance: _Optional[float] = ...) -> None: ...

class RowLogprobs(_message.Message):
    __slots__ = ("row", "tokens")
    ROW_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    row: int
    tokens: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprobs]
    def __init__(self, row: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[_types_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class ControlDown(_message.Message):
    __slots__ = ("incarnation", "orders")
    class Order(_message.Message):
        __slots__ = ("admission", "drafter", "plan", "acknowledged", "released", "kept")
        ADMISSION_FIELD_NUMBER: _ClassVar[int]
        DRAFTER_FIELD_NUMBER: _ClassVar[int]
        PLAN_FIELD_NUMBER: _ClassVar[int]
        ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
        RELEASED_FIELD_NUMBER: _ClassVar[int]
        KEPT_FIELD_NUMBER: _ClassVar[int]
        admission: Admission
        drafter: DrafterAt
        plan: RoundPlan
        acknowledged: Acknowledgements
        released: Releases
        kept: Kept
        def __init__(self, admission: _Optional[_Union[Admission, _Mapping]] = ..., drafter: _Optional[_Union[DrafterAt, _Mapping]] = ..., plan: _Optional[_Union[RoundPlan, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledgements, _Mapping]] = ..., released: _Optional[_Union[Releases, _Mapping]] = ..., kept: _Optional[_Union[Kept, _Mapping]] = ...) -> None: ...
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    orders: _containers.RepeatedCompositeFieldContainer[ControlDown.Order]
    def __init__(self, incarnation: _Optional[int] = ..., orders: _Optional[_Iterable[_Union[ControlDown.Order, _Mapping]]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("sequence", "epoch", "token_ids", "sampling", "room", "stop_ids", "longest", "keep_rows", "cache_salt", "prompt_logprobs", "drafter", "repeatable")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    KEEP_ROWS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    REPEATABLE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _types_pb2.SequenceSampling
    room: int
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    longest: int
    keep_rows: bool
    cache_salt: str
    prompt_logprobs: int
    drafter: int
    repeatable: bool
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_types_pb2.SequenceSampling, _Mapping]] = ..., room: _Optional[int] = ..., stop_ids: _Optional[_Iterable[int]] = ..., longest: _Optional[int] = ..., keep_rows: _Optional[bool] = ..., cache_salt: _Optional[str] = ..., prompt_logprobs: _Optional[int] = ..., drafter: _Optional[int] = ..., repeatable: _Optional[bool] = ...) -> None: ...

class DrafterAt(_message.Message):
    __slots__ = ("drafter", "at", "use")
    class Use(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        USE_YES: _ClassVar[DrafterAt.Use]
        USE_NO_NEW: _ClassVar[DrafterAt.Use]
        USE_GONE: _ClassVar[DrafterAt.Use]
    USE_YES: DrafterAt.Use
    USE_NO_NEW: DrafterAt.Use
    USE_GONE: DrafterAt.Use
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    drafter: int
    at: _types_pb2.FeatureSink
    use: DrafterAt.Use
    def __init__(self, drafter: _Optional[int] = ..., at: _Optional[_Union[_types_pb2.FeatureSink, _Mapping]] = ..., use: _Optional[_Union[DrafterAt.Use, str]] = ...) -> None: ...

class RoundPlan(_message.Message):
    __slots__ = ("terms", "cohorts", "window", "draft_s", "sequence", "drafter", "own_terms", "other_terms")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_OFF: _ClassVar[RoundPlan.Kind]
        KIND_FIXED: _ClassVar[RoundPlan.Kind]
        KIND_THRESHOLD: _ClassVar[RoundPlan.Kind]
        KIND_PRICE: _ClassVar[RoundPlan.Kind]
    KIND_OFF: RoundPlan.Kind
    KIND_FIXED: RoundPlan.Kind
    KIND_THRESHOLD: RoundPlan.Kind
    KIND_PRICE: RoundPlan.Kind
    class Terms(_message.Message):
        __slots__ = ("kind", "slots", "price", "weight", "cap")
        KIND_FIELD_NUMBER: _ClassVar[int]
        SLOTS_FIELD_NUMBER: _ClassVar[int]
        PRICE_FIELD_NUMBER: _ClassVar[int]
        WEIGHT_FIELD_NUMBER: _ClassVar[int]
        CAP_FIELD_NUMBER: _ClassVar[int]
        kind: RoundPlan.Kind
        slots: int
        price: float
        weight: float
        cap: int
        def __init__(self, kind: _Optional[_Union[RoundPlan.Kind, str]] = ..., slots: _Optional[int] = ..., price: _Optional[float] = ..., weight: _Optional[float] = ..., cap: _Optional[int] = ...) -> None: ...
    TERMS_FIELD_NUMBER: _ClassVar[int]
    COHORTS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DRAFT_S_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    OWN_TERMS_FIELD_NUMBER: _ClassVar[int]
    OTHER_TERMS_FIELD_NUMBER: _ClassVar[int]
    terms: RoundPlan.Terms
    cohorts: int
    window: int
    draft_s: float
    sequence: _containers.RepeatedScalarFieldContainer[int]
    drafter: _containers.RepeatedScalarFieldContainer[int]
    own_terms: _containers.RepeatedScalarFieldContainer[int]
    other_terms: _containers.RepeatedCompositeFieldContainer[RoundPlan.Terms]
    def __init__(self, terms: _Optional[_Union[RoundPlan.Terms, _Mapping]] = ..., cohorts: _Optional[int] = ..., window: _Optional[int] = ..., draft_s: _Optional[float] = ..., sequence: _Optional[_Iterable[int]] = ..., drafter: _Optional[_Iterable[int]] = ..., own_terms: _Optional[_Iterable[int]] = ..., other_terms: _Optional[_Iterable[_Union[RoundPlan.Terms, _Mapping]]] = ...) -> None: ...

class Acknowledgements(_message.Message):
    __slots__ = ("sequence", "epoch", "through_round")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    THROUGH_ROUND_FIELD_NUMBER: _ClassVar[int]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    through_round: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., through_round: _Optional[_Iterable[int]] = ...) -> None: ...

class Releases(_message.Message):
    __slots__ = ("sequence", "epoch", "drop")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    drop: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, sequence: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., drop: _Optional[_Iterable[bool]] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("sequence", "epoch")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ...) -> None: ...

class ControlUp(_message.Message):
    __slots__ = ("incarnation", "lease_ms", "news")
    class News(_message.Message):
        __slots__ = ("report", "released", "drafter", "draining")
        REPORT_FIELD_NUMBER: _ClassVar[int]
        RELEASED_FIELD_NUMBER: _ClassVar[int]
        DRAFTER_FIELD_NUMBER: _ClassVar[int]
        DRAINING_FIELD_NUMBER: _ClassVar[int]
        report: PassReport
        released: SequenceReleased
        drafter: DrafterHealth
        draining: _types_pb2.Draining
        def __init__(self, report: _Optional[_Union[PassReport, _Mapping]] = ..., released: _Optional[_Union[SequenceReleased, _Mapping]] = ..., drafter: _Optional[_Union[DrafterHealth, _Mapping]] = ..., draining: _Optional[_Union[_types_pb2.Draining, _Mapping]] = ...) -> None: ...
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    NEWS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    lease_ms: int
    news: _containers.RepeatedCompositeFieldContainer[ControlUp.News]
    def __init__(self, incarnation: _Optional[int] = ..., lease_ms: _Optional[int] = ..., news: _Optional[_Iterable[_Union[ControlUp.News, _Mapping]]] = ...) -> None: ...

class PassReport(_message.Message):
    __slots__ = ("sequence", "epoch", "round", "committed_before", "tokens", "token_ids", "accepted", "verified", "drafted", "confidence", "drafter", "why_empty", "reasons", "logprobs", "labels", "draws", "forward_s", "round_s", "draft_s", "waited_s", "context", "batch_tokens", "prefill_tokens", "pages_free", "started", "forced", "forbidden")
    PASS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    WHY_EMPTY_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_S_FIELD_NUMBER: _ClassVar[int]
    DRAFT_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FREE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    FORBIDDEN_FIELD_NUMBER: _ClassVar[int]
    sequence: _containers.RepeatedScalarFieldContainer[int]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    round: _containers.RepeatedScalarFieldContainer[int]
    committed_before: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    verified: _containers.RepeatedScalarFieldContainer[int]
    drafted: _containers.RepeatedScalarFieldContainer[int]
    confidence: _containers.RepeatedScalarFieldContainer[float]
    drafter: _containers.RepeatedScalarFieldContainer[int]
    why_empty: _containers.RepeatedScalarFieldContainer[int]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    labels: bytes
    draws: _containers.RepeatedCompositeFieldContainer[Draws]
    forward_s: float
    round_s: float
    draft_s: float
    waited_s: float
    context: float
    batch_tokens: int
    prefill_tokens: int
    pages_free: int
    started: PrefillStarted
    forced: _containers.RepeatedScalarFieldContainer[bool]
    forbidden: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, sequence: _Optional[_Iterable[int]] = ..., epoch: _Optional[_Iterable[int]] = ..., round: _Optional[_Iterable[int]] = ..., committed_before: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., accepted: _Optional[_Iterable[int]] = ..., verified: _Optional[_Iterable[int]] = ..., drafted: _Optional[_Iterable[int]] = ..., confidence: _Optional[_Iterable[float]] = ..., drafter: _Optional[_Iterable[int]] = ..., why_empty: _Optional[_Iterable[int]] = ..., reasons: _Optional[_Iterable[str]] = ..., logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ..., labels: _Optional[bytes] = ..., draws: _Optional[_Iterable[_Union[Draws, _Mapping]]] = ..., forward_s: _Optional[float] = ..., round_s: _Optional[float] = ..., draft_s: _Optional[float] = ..., waited_s: _Optional[float] = ..., context: _Optional[float] = ..., batch_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., pages_free: _Optional[int] = ..., started: _Optional[_Union[PrefillStarted, _Mapping]] = ..., forced: _Optional[_Iterable[bool]] = ..., forbidden: _Optional[_Iterable[bool]] = ..., **kwargs) -> None: ...

class PrefillStarted(_message.Message):
    __slots__ = ("cached_tokens", "prompt_logprobs")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    prompt_logprobs: _types_pb2.PromptLogprobs
    def __init__(self, cached_tokens: _Optional[int] = ..., prompt_logprobs: _Optional[_Union[_types_pb2.PromptLogprobs, _Mapping]] = ...) -> None: ...

class SequenceReleased(_message.Message):
    __slots__ = ("sequence", "epoch", "rounds", "why", "refusal")
    class Why(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHY_AS_WISHED: _ClassVar[SequenceReleased.Why]
        WHY_NO_PAGES: _ClassVar[SequenceReleased.Why]
        WHY_OUT_OF_PAGES: _ClassVar[SequenceReleased.Why]
        WHY_FAILED: _ClassVar[SequenceReleased.Why]
        WHY_STALE_EPOCH: _ClassVar[SequenceReleased.Why]
    WHY_AS_WISHED: SequenceReleased.Why
    WHY_NO_PAGES: SequenceReleased.Why
    WHY_OUT_OF_PAGES: SequenceReleased.Why
    WHY_FAILED: SequenceReleased.Why
    WHY_STALE_EPOCH: SequenceReleased.Why
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    rounds: int
    why: SequenceReleased.Why
    refusal: _types_pb2.Refusal
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., rounds: _Optional[int] = ..., why: _Optional[_Union[SequenceReleased.Why, str]] = ..., refusal: _Optional[_Union[_types_pb2.Refusal, _Mapping]] = ...) -> None: ...

class DrafterHealth(_message.Message):
    __slots__ = ("drafter", "what")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    drafter: int
    what: str
    def __init__(self, drafter: _Optional[int] = ..., what: _Optional[str] = ...) -> None: ...
