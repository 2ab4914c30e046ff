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
ROLE_UNSPECIFIED: Role
ROLE_COORDINATOR: Role
ROLE_VERIFY: Role
ROLE_DRAFT: Role
ROLE_FRONTEND: Role

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
    __slots__ = ("connected", "idle")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    connected: int
    idle: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, connected: _Optional[int] = ..., idle: _Optional[_Iterable[str]] = ...) -> None: ...

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
