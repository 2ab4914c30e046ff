"""What an operator wants to run: section `cluster` of the configuration file. Torch-free, Ray-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dspark.errors import ConfigError
from dspark.runtime.identity import DEFAULT_CELL
from dspark.runtime.security import split_endpoint
from dspark.runtime.tls import Tls

NO_DRAFTER = "none"  # in place of a drafter's name: plain decoding
NAME = re.compile("[a-z0-9][a-z0-9-]{0,31}")  # of a cell
TLS_FILES = ("tls_cert", "tls_key", "tls_ca")


@dataclass(frozen=True)
class ClusterConfig:
    """One cell: a coordinator, a pool of verifiers, a pool of drafters, and front ends where clients are many."""

    target: str = field(
        default="", metadata={"doc": "Folder, hub id, GGUF file or name of the target (smollm2, the shipped pair)."}
    )
    drafter: str = field(
        default="", metadata={"doc": "Folder or hub id of a drafter for it, of any family; none: plain decoding."}
    )
    revision: str | None = field(default=None, metadata={"doc": "Revision of both when they are hub ids."})
    engine: str = field(
        default="real", metadata={"doc": "real, or synthetic: workers of given step times and acceptance, no models."}
    )
    synthetic: str | None = field(
        default=None, metadata={"doc": "YAML file of a synthetic pair, see docs/simulator.md; for that engine."}
    )
    verifiers: int = field(default=1, metadata={"doc": "Verifier processes."})
    drafters: int = field(default=1, metadata={"doc": "Drafter processes."})
    frontends: int = field(
        default=0, metadata={"doc": "Front end processes; 0 leaves clients to the coordinator's own."}
    )
    cell: str = field(
        default=DEFAULT_CELL,
        metadata={"doc": "Name of the cell: a label of its metrics, and what keeps cells of one Ray cluster apart."},
    )
    address: str | None = field(
        default=None,
        metadata={
            "doc": "GCS address of a running Ray cluster; absent: that of RAY_ADDRESS, as in a Ray job, or else a "
            "local one is started."
        },
    )
    dashboard: bool = field(
        default=False, metadata={"doc": "Run Ray's dashboard beside a local cluster, for `dspark ray -- list actors`."}
    )
    bind: str = field(default="127.0.0.1", metadata={"doc": "Address every server listens on."})
    port: int = field(default=0, metadata={"doc": "Port of the coordinator; 0 takes a free one and keeps it."})
    insecure: bool = field(default=False, metadata={"doc": "Listen beyond this machine without asking for a token."})
    tls_cert: str | None = field(
        default=None,
        metadata={
            "doc": "PEM file of the certificate of every process, at this path on every node (`dspark certificates`)."
        },
    )
    tls_key: str | None = field(default=None, metadata={"doc": "PEM file of its private key; likewise."})
    tls_ca: str | None = field(
        default=None, metadata={"doc": "PEM file of the authority whose certificates are believed; likewise."}
    )
    tls_server_name: str | None = field(
        default=None, metadata={"doc": "Name expected in processes' certificates; absent: their address."}
    )
    tls_require_client_cert: bool = field(
        default=True, metadata={"doc": "Callers need a certificate too; off, tokens alone say who calls."}
    )
    policy: str | None = field(default=None, metadata={"doc": "Default policy: off, fixed:k, threshold:t or adaptive."})
    rule: str | None = field(default=None, metadata={"doc": "Default acceptance rule: token, block or coupled."})
    device: str | None = field(default=None, metadata={"doc": "Device of both pools; absent: what is there."})
    verifier_gpus: float | None = field(
        default=None,
        metadata={"doc": "GPUs Ray reserves for each verifier; absent: one where the cluster has GPUs."},
    )
    drafter_gpus: float | None = field(
        default=None,
        metadata={"doc": "The same for each drafter; a share, like 0.25, lets drafters have a card together."},
    )
    coordinator_cpus: float | None = field(
        default=None, metadata={"doc": "CPUs Ray reserves for the coordinator and each front end; absent: as below."}
    )
    verifier_cpus: float | None = field(
        default=None,
        metadata={"doc": "CPUs Ray reserves for each verifier; absent: one a thread, less on nodes of fewer than 8."},
    )
    drafter_cpus: float | None = field(default=None, metadata={"doc": "The same for each drafter."})
    verifier_memory_gib: float | None = field(
        default=None,
        metadata={"doc": "Memory Ray reserves for each verifier, GiB; absent: of its weights and its full cache."},
    )
    drafter_memory_gib: float | None = field(default=None, metadata={"doc": "The same for each drafter."})
    place_timeout_s: float = field(
        default=10.0,
        metadata={"doc": "How long a process waits for a node that could hold it; more where nodes come on demand."},
    )
    coordinator_selector: str | None = field(
        default=None, metadata={"doc": "Label nodes of the coordinator must have, `key=value`; absent: any node."}
    )
    verifier_selector: str | None = field(default=None, metadata={"doc": "The same for verifiers."})
    drafter_selector: str | None = field(default=None, metadata={"doc": "The same for drafters."})
    http: str | None = field(
        default="127.0.0.1:8000",
        metadata={"doc": "host:port of the coordinator's HTTP front, or a free port if that one is taken; none: off."},
    )
    drain_s: float = field(
        default=30.0, metadata={"doc": "How long a worker that is scaled away may finish what it has."}
    )
    start_timeout_s: float = field(default=600.0, metadata={"doc": "Longest wait for the cell to serve."})

    def __post_init__(self) -> None:
        if self.engine not in ("real", "synthetic"):
            raise ConfigError(f"cluster.engine: {self.engine!r} is not real or synthetic")
        if (self.engine == "synthetic") != bool(self.synthetic):
            raise ConfigError("cluster.synthetic: the file of a synthetic pair, needed with that engine and only there")
        if self.synthetic and (self.target or self.drafter):
            raise ConfigError("cluster.target, cluster.drafter: a synthetic engine has no models")
        if self.verifiers < 1:
            raise ConfigError(f"cluster.verifiers: {self.verifiers} is too few, at least one verifier is needed")
        if self.drafters < 0:
            raise ConfigError(f"cluster.drafters: {self.drafters} is negative")
        if self.frontends < 0:
            raise ConfigError(f"cluster.frontends: {self.frontends} is negative")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"cluster.port: {self.port} is no port")
        for key in ("gpus", "cpus", "memory_gib"):
            for pool in ("coordinator", "verifier", "drafter"):
                if (getattr(self, f"{pool}_{key}", None) or 0.0) < 0:
                    raise ConfigError(f"cluster.{pool}_{key}: {getattr(self, f'{pool}_{key}'):g} is negative")
        for key in ("verifier_gpus", "drafter_gpus"):
            if (cards := getattr(self, key) or 0.0) > 1 and not cards.is_integer():
                raise ConfigError(f"cluster.{key}: {cards:g} is neither a share of one GPU nor a whole number of them")
        if not NAME.fullmatch(self.cell):
            raise ConfigError(f"cluster.cell: {self.cell!r} is not a name of up to 32 of a-z, 0-9 and -")
        for key in ("coordinator_selector", "verifier_selector", "drafter_selector"):
            label, _, value = (getattr(self, key) or "any=any").partition("=")
            if not label or not value:
                raise ConfigError(f"cluster.{key}: {getattr(self, key)!r} is not key=value")
        if self.address is not None and (":" not in self.address or "//" in self.address):
            raise ConfigError(f"cluster.address: {self.address!r} is not host:port of a Ray cluster's GCS")
        if len({bool(path) for path in (self.tls_cert, self.tls_key, self.tls_ca)}) > 1:
            raise ConfigError("cluster.tls_cert, cluster.tls_key, cluster.tls_ca: all three or none")
        if self.http is not None:
            split_endpoint(self.http)
        if self.drain_s < 0:
            raise ConfigError(f"cluster.drain_s: {self.drain_s} is negative")
        for key in ("start_timeout_s", "place_timeout_s"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"cluster.{key}: {getattr(self, key)} is not positive")

    def tls(self) -> Tls | None:
        """How processes of the cell call each other."""
        if self.tls_ca is None:
            return None
        return Tls(self.tls_cert, self.tls_key, self.tls_ca, self.tls_server_name)
