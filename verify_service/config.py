"""What a verifier process can be told. Torch-free: the deployment reads it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspark.runtime.listen_config import ListenConfig

KV_TOKENS = 65536  # where nobody says how many, and no card does
FEATURE_DTYPES = ("bfloat16", "float8_e4m3")


@dataclass(frozen=True)
class VerifyConfig(ListenConfig):
    """One verifier process."""

    target: str = field(default="", metadata={"doc": "Folder or hub id of the target."})
    engine: str = field(default="real", metadata={"doc": "real, or synthetic: no weights, given step times."})
    synthetic: str | None = field(default=None, metadata={"doc": "YAML file of a synthetic engine."})
    target_revision: str | None = field(default=None, metadata={"doc": "Hub revision of the target."})
    drafter: str | None = field(
        default=None, metadata={"doc": "Folder or hub id of the drafter that rows are made for; none: plain decoding."}
    )
    drafter_revision: str | None = field(default=None, metadata={"doc": "Hub revision of the drafter."})
    device: str = field(default="auto", metadata={"doc": "auto, cpu, cuda or cuda:N."})
    dtype: str = field(default="auto", metadata={"doc": "auto, float32, bfloat16 or float16."})
    threads: int = field(default=1, metadata={"doc": "Torch threads of the device thread."})
    kv_tokens: int = field(
        default=0,
        metadata={
            "doc": f"Token slots of the KV pool; 0: what gpu_memory_utilization leaves, on a processor {KV_TOKENS}."
        },
    )
    gpu_memory_utilization: float = field(
        default=0.9, metadata={"doc": "Share of a card's memory that weights, passes and the key-value pool may fill."}
    )
    page_size: int = field(default=16, metadata={"doc": "Token slots of one page."})
    prefill_chunk: int = field(default=256, metadata={"doc": "Prompt tokens per pass while no round is running."})
    step_prefill_tokens: int = field(
        default=0, metadata={"doc": "Prompt tokens that ride in one round; 0 leaves it to the device."}
    )
    prefix_cache: bool = field(
        default=True, metadata={"doc": "Keep full pages of ended sequences for prompts that begin alike."}
    )
    state_cache_mb: int = field(
        default=1024, metadata={"doc": "MiB of states kept for such prompts, of a target that is served `stateful`."}
    )
    max_batch_tokens: int = field(default=4096, metadata={"doc": "Tokens of one packed pass; larger cohorts split."})
    max_sequences: int = field(default=1024, metadata={"doc": "Sequences with state at one time."})
    lease_s: float = field(
        default=120.0, metadata={"doc": "A sequence that its coordinator has not mentioned for so long is freed."}
    )
    attention: str = field(
        default="auto", metadata={"doc": "auto (paged if that is right for the target) or stateful."}
    )
    attention_kernel: bool = field(
        default=True, metadata={"doc": "Read pages in place where a kernel here can; else they are gathered."}
    )
    cuda_graphs: bool = field(default=True, metadata={"doc": "On a GPU, with such a kernel: replay recorded passes."})
    lean_layers: bool = field(
        default=True, metadata={"doc": "Run layers of a known shape in fewer operations, if trials show them equal."}
    )
    measure_cost: bool = field(default=True, metadata={"doc": "Measure the cost curve at start, or load a stored one."})
    cost_max_tokens: int = field(default=128, metadata={"doc": "Largest step that the cost curve covers."})
    feature_dtype: str = field(
        default="bfloat16", metadata={"doc": "Feature rows on the wire: bfloat16, or float8_e4m3 with a scale per row."}
    )
    draft_deadline_s: float = field(
        default=0.5, metadata={"doc": "Least deadline of an order to a drafter; where drafts take longer it gets more."}
    )
    drafter_patience_s: float = field(
        default=5.0, metadata={"doc": "Silence after which a drafter that owes a block is given up."}
    )
    push_queue_rows: int = field(default=65536, metadata={"doc": "Feature rows that may wait for one drafter."})
