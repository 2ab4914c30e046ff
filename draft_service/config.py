"""What a drafter process can be told. Torch-free: the deployment reads it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.runtime.listen_config import ListenConfig


@dataclass(frozen=True)
class DraftConfig(ListenConfig):
    """One drafter process."""

    drafter: str = field(default="", metadata={"doc": "Folder or hub id of the drafter."})
    target: str = field(
        default="", metadata={"doc": "Folder or hub id of the target; read where the drafter leaves out their tables."}
    )
    engine: str = field(default="real", metadata={"doc": "real, or synthetic: no weights, given step times."})
    synthetic: str | None = field(default=None, metadata={"doc": "YAML file of a synthetic engine."})
    drafter_revision: str | None = field(default=None, metadata={"doc": "Hub revision of the drafter."})
    target_revision: str | None = field(default=None, metadata={"doc": "Hub revision of the target."})
    device: str = field(default="auto", metadata={"doc": "auto, cpu, cuda or cuda:N."})
    dtype: str = field(default="auto", metadata={"doc": "auto, float32, bfloat16 or float16."})
    threads: int = field(default=1, metadata={"doc": "Torch threads of the device thread."})
    context_tokens: int = field(default=65536, metadata={"doc": "Context rows of the pool."})
    page_size: int = field(default=16, metadata={"doc": "Context rows of one page."})
    context_length: int | None = field(
        default=None, metadata={"doc": "Blocks past this length are empty; absent: the checkpoint's own limit."}
    )
    whole_blocks: bool = field(
        default=False, metadata={"doc": "Compute all slots of a block, as in training, though fewer are asked for."}
    )
    q_entries: int = field(default=64, metadata={"doc": "Entries kept of each draft distribution."})
    max_sequences: int = field(default=1024, metadata={"doc": "Sequences with context at one time."})
    lease_s: float = field(
        default=120.0,
        metadata={"doc": "What a verifier opened is freed when it says nothing for so long, but for 30 s at least."},
    )
    max_batch_sequences: int = field(default=256, metadata={"doc": "Blocks of one pass; more are drafted in turns."})
    rounds_port: int | None = field(
        default=0,
        metadata={
            "doc": "Port beside that of `bind`, on the same address, where verifiers run their rounds: 0 takes any, "
            "none leaves rounds on that of `bind`, a little slower. Who cannot reach it uses that of `bind`."
        },
    )
    measure_cost: bool = field(default=True, metadata={"doc": "Measure the cost curve at start, or load a stored one."})
    cost_max_sequences: int = field(default=32, metadata={"doc": "Largest pass that the cost curve covers."})
