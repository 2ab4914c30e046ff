"""Configuration of a verifier process. Torch-free: the deployment reads it too."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.runtime.listen_config import WorkerConfig
from dspark.runtime.setting import setting

KV_TOKENS = 65536  # default where no GPU memory decides
FEATURE_DTYPES = ("bfloat16", "float8_e4m3")
ATTENTIONS = ("auto", "stateful")


@dataclass(frozen=True)
class VerifyConfig(WorkerConfig):
    """Settings of one verifier process."""

    target: str = setting("", "Folder or hub id of the target.")
    drafter: str | None = setting(
        None, "Folder or hub id of the drafter that rows are made for; none: plain decoding."
    )
    tensor_parallel_size: int = setting(
        1,
        "Devices of this machine that hold the target together, with a process for each.",
        least=1,
        most=64,
    )
    kv_tokens: int = setting(
        0,
        "Token slots of the KV pool; 0: what gpu_memory_utilization leaves, on a processor "
        f"{KV_TOKENS}.",
        least=0,
    )
    gpu_memory_utilization: float = setting(
        0.9,
        "Share of a card's memory that weights, passes and the key-value pool may fill.",
        least=0.05,
        most=1,
    )
    page_size: int = setting(16, "Token slots of one page.", least=1, most=4096)
    prefill_chunk: int = setting(
        256, "Prompt tokens per pass while no round is running.", least=1, most=1 << 20
    )
    step_prefill_tokens: int = setting(
        0, "Prompt tokens that ride in one round; 0 leaves it to the device.", least=0
    )
    prefix_cache: bool = setting(
        True, "Keep full pages of ended sequences for prompts that begin alike."
    )
    state_cache_mb: int = setting(
        1024, "MiB of states kept for such prompts, of a target that is served `stateful`.", least=0
    )
    max_batch_tokens: int = setting(
        4096, "Tokens of one packed pass; larger cohorts split.", least=1
    )
    max_sequences: int = setting(1024, "Sequences with state at one time.", least=1, most=1 << 20)
    lease_s: float = setting(
        120.0,
        "A sequence that its coordinator has not mentioned for so long is freed.",
        least=0.1,
        most=86_400,
    )
    attention: str = setting(
        "auto", "auto (paged if that is right for the target) or stateful.", one_of=ATTENTIONS
    )
    attention_kernel: bool = setting(
        True, "Read pages in place where a kernel here can; else they are gathered."
    )
    cuda_graphs: bool = setting(True, "On a GPU, with such a kernel: replay recorded passes.")
    lean_layers: bool = setting(
        True, "Run layers of a known shape in fewer operations, if trials show them equal."
    )
    cost_max_tokens: int = setting(128, "Largest step that the cost curve covers.", least=1)
    feature_dtype: str = setting(
        "bfloat16",
        "Feature rows on the wire: bfloat16, or float8_e4m3 with a scale per row.",
        one_of=FEATURE_DTYPES,
    )
    draft_deadline_s: float = setting(
        0.5,
        "Least deadline of an order to a drafter; where drafts take longer it gets more.",
        least=0.001,
        most=86_400,
    )
    drafter_patience_s: float = setting(
        5.0,
        "Silence after which a drafter that owes a block is given up.",
        least=0.001,
        most=86_400,
    )
    # no less than one message of them (`row_feeds.BULK_ROWS`)
    push_queue_rows: int = setting(
        65536, "Feature rows on their way to one drafter, of one coordinator.", least=512
    )
