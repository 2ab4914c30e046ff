"""Settings of a drafter process. Without torch, because the deployment reads them too."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.runtime.listen_config import WorkerConfig
from dspark.runtime.setting import setting


@dataclass(frozen=True)
class DraftConfig(WorkerConfig):
    """Settings of one drafter process."""

    drafter: str = setting("", "Folder or hub id of the drafter.")
    target: str = setting(
        "", "Folder or hub id of the target; read where the drafter leaves out their tables."
    )
    context_tokens: int = setting(65536, "Context rows of the pool.", least=1)
    page_size: int = setting(16, "Context rows of one page.", least=1, most=4096)
    context_length: int | None = setting(
        None, "Blocks past this length are empty; absent: the checkpoint's own limit.", least=1
    )
    whole_blocks: bool = setting(
        False, "Compute all slots of a block, as in training, though fewer are asked for."
    )
    q_entries: int = setting(64, "Entries kept of each draft distribution.", least=1, most=4096)
    max_sequences: int = setting(1024, "Sequences with context at one time.", least=1, most=1 << 20)
    lease_s: float = setting(
        120.0,
        "What a verifier opened is freed when it says nothing for so long, but for 30 s at least.",
        least=0.1,
        most=86_400,
    )
    max_batch_sequences: int = setting(
        256, "Blocks of one pass; more are drafted in turns.", least=1, most=1 << 16
    )
    rounds_port: int | None = setting(
        0,
        "Port beside that of `bind`, on the same address, where verifiers run their rounds: 0 "
        "takes any, none leaves rounds on that of `bind`, a little slower. A verifier "
        "that cannot reach it uses that of `bind`.",
        least=0,
        most=65535,
    )
    cost_max_sequences: int = setting(32, "Largest pass that the cost curve covers.", least=1)
