"""Configuration of a cell: section `cluster` of the file. Imports neither torch nor Ray."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dspark.errors import ConfigError
from dspark.runtime.addresses import split_endpoint
from dspark.runtime.identity import DEFAULT_CELL
from dspark.runtime.listen_config import ENGINES
from dspark.runtime.setting import check_settings, setting

MOST = 4096  # processes of a pool
NO_DRAFTER = "none"  # in place of a drafter's name: plain decoding
NAME = re.compile("[a-z0-9][a-z0-9-]{0,31}")  # of a cell


@dataclass(frozen=True)
class ClusterConfig:
    """One cell: a coordinator, a pool of verifiers, a pool of drafters, and front ends where
    clients are many."""

    target: str = setting(
        "", "Folder, hub id, GGUF file or name of the target (smollm2, the shipped pair)."
    )
    drafter: str = setting(
        "", "Folder or hub id of a drafter for it, of any family; none: plain decoding."
    )
    revision: str | None = setting(None, "Revision of both when they are hub ids.")
    engine: str = setting(
        "real",
        "real, or synthetic: workers of given step times and acceptance, no models.",
        one_of=ENGINES,
    )
    synthetic: str | None = setting(
        None, "YAML file of a synthetic pair, see docs/simulator.md; for that engine."
    )
    verifiers: int = setting(1, "Verifier processes.", least=1, most=MOST)
    drafters: int = setting(1, "Drafter processes.", least=0, most=MOST)
    frontends: int = setting(
        0, "Front end processes; 0 leaves clients to the coordinator's own.", least=0, most=MOST
    )
    cell: str = setting(
        DEFAULT_CELL,
        "Name of the cell: a label of its metrics, and what keeps cells of one Ray cluster apart.",
    )
    address: str | None = setting(
        None,
        "GCS address of a running Ray cluster; absent: that of RAY_ADDRESS, as in a Ray job, or "
        "else a local one is started.",
    )
    dashboard: bool = setting(
        False, "Run Ray's dashboard beside a local cluster, for `dspark ray -- list actors`."
    )
    bind: str = setting("127.0.0.1", "Address every server listens on.")
    port: int = setting(
        0, "Port of the coordinator; 0 takes a free one and keeps it.", least=0, most=65535
    )
    insecure: bool = setting(False, "Listen beyond this machine without asking for a token.")
    tls_cert: str | None = setting(
        None,
        "PEM file of the certificate of every process, at this path on every node (`dspark "
        "certificates`).",
    )
    tls_key: str | None = setting(None, "PEM file of its private key; likewise.")
    tls_ca: str | None = setting(
        None, "PEM file of the authority whose certificates are believed; likewise."
    )
    tls_server_name: str | None = setting(
        None, "Name expected in processes' certificates; absent: their address."
    )
    tls_require_client_cert: bool = setting(
        True, "Callers need a certificate too; off: a token is enough."
    )
    policy: str | None = setting(None, "Default policy: off, fixed:k, threshold:t or adaptive.")
    rule: str | None = setting(None, "Default acceptance rule: token, block or coupled.")
    device: str | None = setting(None, "Device of both pools; absent: what is there.")
    verifier_gpus: float | None = setting(
        None,
        "GPUs Ray reserves for each verifier; absent: one for each of its ranks, where the cluster "
        "has GPUs.",
        least=0,
    )
    drafter_gpus: float | None = setting(
        None,
        "The same for each drafter; a share, like 0.25, lets drafters have a card together.",
        least=0,
    )
    coordinator_cpus: float | None = setting(
        None, "CPUs Ray reserves for the coordinator and each front end; absent: as below.", least=0
    )
    verifier_cpus: float | None = setting(
        None,
        "CPUs Ray reserves for each verifier; absent: one a thread, less on nodes of fewer than 8.",
        least=0,
    )
    drafter_cpus: float | None = setting(None, "The same for each drafter.", least=0)
    verifier_memory_gib: float | None = setting(
        None,
        "Memory Ray reserves for each verifier, GiB; absent: of its weights and its full cache.",
        least=0,
    )
    drafter_memory_gib: float | None = setting(None, "The same for each drafter.", least=0)
    place_timeout_s: float = setting(
        10.0,
        "How long a process waits for a node that could hold it; more where nodes come on demand.",
        above=0,
    )
    coordinator_selector: str | None = setting(
        None, "Label nodes of the coordinator must have, `key=value`; absent: any node."
    )
    verifier_selector: str | None = setting(None, "The same for verifiers.")
    drafter_selector: str | None = setting(None, "The same for drafters.")
    http: str | None = setting(
        "127.0.0.1:8000",
        "host:port of the coordinator's HTTP front, or a free port if it is taken; none: off.",
    )
    drain_s: float = setting(
        30.0, "How long a worker that is scaled away may finish what it has.", least=0
    )
    start_timeout_s: float = setting(600.0, "Longest wait for the cell to serve.", above=0)

    def __post_init__(self) -> None:
        check_settings(self, "cluster")
        if self.bind.count(":") == 1:  # more are an address of IPv6
            raise ConfigError(
                f"cluster.bind: {self.bind!r} is no address alone; the port is cluster.port"
            )
        if (self.engine == "synthetic") != bool(self.synthetic):
            raise ConfigError(
                "cluster.synthetic: the file of a synthetic pair, needed with that engine and only "
                "there"
            )
        if self.synthetic and (self.target or self.drafter):
            raise ConfigError("cluster.target, cluster.drafter: a synthetic engine has no models")
        for key in ("verifier_gpus", "drafter_gpus"):
            if (cards := getattr(self, key) or 0.0) > 1 and not cards.is_integer():
                raise ConfigError(
                    f"cluster.{key}: {cards:g} is neither a share of one GPU nor a whole number of "
                    "them"
                )
        if not NAME.fullmatch(self.cell):
            raise ConfigError(
                f"cluster.cell: {self.cell!r} is not a name of up to 32 of a-z, 0-9 and -"
            )
        for key in ("coordinator_selector", "verifier_selector", "drafter_selector"):
            label, _, value = (getattr(self, key) or "any=any").partition("=")
            if not label or not value:
                raise ConfigError(f"cluster.{key}: {getattr(self, key)!r} is not key=value")
        if self.address is not None:
            split_endpoint(self.address, "cluster.address")
        if len({bool(path) for path in (self.tls_cert, self.tls_key, self.tls_ca)}) > 1:
            raise ConfigError(
                "cluster.tls_cert, cluster.tls_key, cluster.tls_ca: all three or none"
            )
        if self.http is not None:
            split_endpoint(self.http, "cluster.http")
