from dspark.wire.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_COORDINATOR: _ClassVar[Role]
    ROLE_VERIFY: _ClassVar[Role]
    ROLE_DRAFT: _ClassVar[Role]
    ROLE_FRONTEND: _ClassVar[Role]

class Origin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORIGIN_UNSPECIFIED: _ClassVar[Origin]
    ORIGIN_DRAFTED: _ClassVar[Origin]
    ORIGIN_CORRECTED: _ClassVar[Origin]
    ORIGIN_BONUS: _ClassVar[Origin]
    ORIGIN_PLAIN: _ClassVar[Origin]

class Fate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FATE_UNSPECIFIED: _ClassVar[Fate]
    FATE_ACCEPTED: _ClassVar[Fate]
    FATE_REJECTED: _ClassVar[Fate]
    FATE_VOID: _ClassVar[Fate]
    FATE_UNVERIFIED: _ClassVar[Fate]
    FATE_CUT: _ClassVar[Fate]
    FATE_FORBIDDEN: _ClassVar[Fate]

class PrefixEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFIX_END_UNSPECIFIED: _ClassVar[PrefixEnd]
    PREFIX_END_NO_DRAFT: _ClassVar[PrefixEnd]
    PREFIX_END_WHOLE: _ClassVar[PrefixEnd]
    PREFIX_END_ROOM: _ClassVar[PrefixEnd]
    PREFIX_END_FIXED: _ClassVar[PrefixEnd]
    PREFIX_END_THRESHOLD: _ClassVar[PrefixEnd]
    PREFIX_END_PRICE: _ClassVar[PrefixEnd]
ROLE_UNSPECIFIED: Role
ROLE_COORDINATOR: Role
ROLE_VERIFY: Role
ROLE_DRAFT: Role
ROLE_FRONTEND: Role
ORIGIN_UNSPECIFIED: Origin
ORIGIN_DRAFTED: Origin
ORIGIN_CORRECTED: Origin
ORIGIN_BONUS: Origin
ORIGIN_PLAIN: Origin
FATE_UNSPECIFIED: Fate
FATE_ACCEPTED: Fate
FATE_REJECTED: Fate
FATE_VOID: Fate
FATE_UNVERIFIED: Fate
FATE_CUT: Fate
FATE_FORBIDDEN: Fate
PREFIX_END_UNSPECIFIED: PrefixEnd
PREFIX_END_NO_DRAFT: PrefixEnd
PREFIX_END_WHOLE: PrefixEnd
PREFIX_END_ROOM: PrefixEnd
PREFIX_END_FIXED: PrefixEnd
PREFIX_END_THRESHOLD: PrefixEnd
PREFIX_END_PRICE: PrefixEnd

class WorkerEndpoint(_message.Message):
    __slots__ = ("role", "endpoint", "incarnation", "name", "draining")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    role: Role
    endpoint: str
    incarnation: int
    name: str
    draining: bool
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., endpoint: _Optional[str] = ..., incarnation: _Optional[int] = ..., name: _Optional[str] = ..., draining: _Optional[bool] = ...) -> None: ...

class AnnounceRequest(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerEndpoint]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerEndpoint, _Mapping]]] = ...) -> None: ...

class AnnounceReply(_message.Message):
    __slots__ = ("idle",)
    IDLE_FIELD_NUMBER: _ClassVar[int]
    idle: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, idle: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessStatus(_message.Message):
    __slots__ = ("role", "name", "endpoint", "pid", "incarnation", "state", "sequences", "pages_held", "pages_total", "model", "detail", "metrics_port", "busy_s", "wait_s", "waits")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PAGES_HELD_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    role: Role
    name: str
    endpoint: str
    pid: int
    incarnation: int
    state: str
    sequences: int
    pages_held: int
    pages_total: int
    model: str
    detail: str
    metrics_port: int
    busy_s: float
    wait_s: float
    waits: int
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., name: _Optional[str] = ..., endpoint: _Optional[str] = ..., pid: _Optional[int] = ..., incarnation: _Optional[int] = ..., state: _Optional[str] = ..., sequences: _Optional[int] = ..., pages_held: _Optional[int] = ..., pages_total: _Optional[int] = ..., model: _Optional[str] = ..., detail: _Optional[str] = ..., metrics_port: _Optional[int] = ..., busy_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., waits: _Optional[int] = ...) -> None: ...

class LaneStatus(_message.Message):
    __slots__ = ("verifier", "drafters", "running", "waiting", "policy", "cost_curve_in_force", "verify_cost", "draft_cost", "mean_acceptance_length", "rounds", "attention_path")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    COST_CURVE_IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    VERIFY_COST_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COST_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_PATH_FIELD_NUMBER: _ClassVar[int]
    verifier: str
    drafters: _containers.RepeatedScalarFieldContainer[str]
    running: int
    waiting: int
    policy: str
    cost_curve_in_force: bool
    verify_cost: _types_pb2.CostCurve
    draft_cost: _types_pb2.CostCurve
    mean_acceptance_length: float
    rounds: int
    attention_path: str
    def __init__(self, verifier: _Optional[str] = ..., drafters: _Optional[_Iterable[str]] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., policy: _Optional[str] = ..., cost_curve_in_force: _Optional[bool] = ..., verify_cost: _Optional[_Union[_types_pb2.CostCurve, _Mapping]] = ..., draft_cost: _Optional[_Union[_types_pb2.CostCurve, _Mapping]] = ..., mean_acceptance_length: _Optional[float] = ..., rounds: _Optional[int] = ..., attention_path: _Optional[str] = ...) -> None: ...

class GetStatusReply(_message.Message):
    __slots__ = ("processes", "lanes", "queued", "queue_limit", "version", "totals", "distributions")
    class TotalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStatus]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneStatus]
    queued: int
    queue_limit: int
    version: str
    totals: _containers.ScalarMap[str, float]
    distributions: _containers.RepeatedCompositeFieldContainer[Distribution]
    def __init__(self, processes: _Optional[_Iterable[_Union[ProcessStatus, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[LaneStatus, _Mapping]]] = ..., queued: _Optional[int] = ..., queue_limit: _Optional[int] = ..., version: _Optional[str] = ..., totals: _Optional[_Mapping[str, float]] = ..., distributions: _Optional[_Iterable[_Union[Distribution, _Mapping]]] = ...) -> None: ...

class Distribution(_message.Message):
    __slots__ = ("name", "bounds", "counts", "sum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, name: _Optional[str] = ..., bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "rounds")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    rounds: int
    def __init__(self, request_id: _Optional[str] = ..., rounds: _Optional[int] = ...) -> None: ...

class SlotExplanation(_message.Message):
    __slots__ = ("token_id", "confidence", "survival", "gain", "fate")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    FATE_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    confidence: float
    survival: float
    gain: float
    fate: Fate
    def __init__(self, token_id: _Optional[int] = ..., confidence: _Optional[float] = ..., survival: _Optional[float] = ..., gain: _Optional[float] = ..., fate: _Optional[_Union[Fate, str]] = ...) -> None: ...

class RoundExplanation(_message.Message):
    __slots__ = ("lane", "index", "round", "offset", "policy", "drafter", "empty_because", "asked", "slots", "prefix", "accepted", "token_ids", "origins", "why", "price", "sequences", "step_drafted", "step_verified", "step_tokens", "step_committed", "plain", "round_ms", "draft_ms", "draft_pass_ms", "verify_pass_ms", "late", "forced")
    LANE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    EMPTY_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STEP_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    STEP_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    ROUND_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PASS_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_PASS_MS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    lane: str
    index: int
    round: int
    offset: int
    policy: str
    drafter: str
    empty_because: str
    asked: int
    slots: _containers.RepeatedCompositeFieldContainer[SlotExplanation]
    prefix: int
    accepted: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    origins: _containers.RepeatedScalarFieldContainer[Origin]
    why: PrefixEnd
    price: float
    sequences: int
    step_drafted: int
    step_verified: int
    step_tokens: int
    step_committed: int
    plain: bool
    round_ms: float
    draft_ms: float
    draft_pass_ms: float
    verify_pass_ms: float
    late: _containers.RepeatedScalarFieldContainer[str]
    forced: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, lane: _Optional[str] = ..., index: _Optional[int] = ..., round: _Optional[int] = ..., offset: _Optional[int] = ..., policy: _Optional[str] = ..., drafter: _Optional[str] = ..., empty_because: _Optional[str] = ..., asked: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[SlotExplanation, _Mapping]]] = ..., prefix: _Optional[int] = ..., accepted: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., origins: _Optional[_Iterable[_Union[Origin, str]]] = ..., why: _Optional[_Union[PrefixEnd, str]] = ..., price: _Optional[float] = ..., sequences: _Optional[int] = ..., step_drafted: _Optional[int] = ..., step_verified: _Optional[int] = ..., step_tokens: _Optional[int] = ..., step_committed: _Optional[int] = ..., plain: _Optional[bool] = ..., round_ms: _Optional[float] = ..., draft_ms: _Optional[float] = ..., draft_pass_ms: _Optional[float] = ..., verify_pass_ms: _Optional[float] = ..., late: _Optional[_Iterable[str]] = ..., forced: _Optional[_Iterable[bool]] = ...) -> None: ...

class GetEndedRequest(_message.Message):
    __slots__ = ("request_id", "most")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    most: int
    def __init__(self, request_id: _Optional[str] = ..., most: _Optional[int] = ...) -> None: ...

class GetEndedReply(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[EndedAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[EndedAnswer, _Mapping]]] = ...) -> None: ...

class EndedAnswer(_message.Message):
    __slots__ = ("request_id", "index", "outcome", "error", "policy", "rule", "verifier", "drafter", "prompt_tokens", "completion_tokens", "draft_tokens", "verified_histogram", "accepted_histogram", "mean_acceptance_length", "queue_ms", "ttft_ms", "total_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTANCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    outcome: str
    error: str
    policy: str
    rule: str
    verifier: str
    drafter: str
    prompt_tokens: int
    completion_tokens: int
    draft_tokens: int
    verified_histogram: _containers.RepeatedScalarFieldContainer[int]
    accepted_histogram: _containers.RepeatedScalarFieldContainer[int]
    mean_acceptance_length: float
    queue_ms: float
    ttft_ms: float
    total_ms: float
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., outcome: _Optional[str] = ..., error: _Optional[str] = ..., policy: _Optional[str] = ..., rule: _Optional[str] = ..., verifier: _Optional[str] = ..., drafter: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., verified_histogram: _Optional[_Iterable[int]] = ..., accepted_histogram: _Optional[_Iterable[int]] = ..., mean_acceptance_length: _Optional[float] = ..., queue_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., total_ms: _Optional[float] = ...) -> None: ...
