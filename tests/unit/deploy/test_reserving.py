"""What Ray is to reserve for each process, and what it is told to lack."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config

from deploy import footprint
from deploy.config import ClusterConfig
from deploy.reserving import GIB, Node, misfit, reserve
from deploy.topology import ProcessRole, Topology, desired, resized
from dspark.model.config_file import read_drafter_config
from dspark.model.formats.convert import without_tables
from tests.unit.model.golden import altered

PAIR = Path(__file__).parents[2] / "data" / "pair"
ALONE: dict[str, Any] = {"target": "t", "drafter": "d"}
JOINED: dict[str, Any] = {**ALONE, "address": "head:6379"}
DEVICE: dict[ProcessRole, dict[str, Any]] = {
    ProcessRole.VERIFY: {"device": "auto"},
    ProcessRole.DRAFT: {"device": "auto"},
}


def _node(
    number: int = 0, *, gpus: float = 0, cpus: float = 2, gib: float = 16, **labels: str
) -> Node:
    return Node(
        f"node-{number}",
        {"CPU": cpus, "memory": gib * GIB, **({"GPU": gpus} if gpus else {})},
        labels,
    )


def _cell(
    config: ClusterConfig,
    *nodes: Node,
    settings: Mapping[ProcessRole, Mapping[str, Any]] = DEVICE,
    memory: int = GIB,
    most: Mapping[ProcessRole, int] | None = None,
) -> tuple[Topology, str]:
    topology = desired(config, settings)
    sizes = {**topology.sizes, **(most or {})}
    sized, own = dict.fromkeys(ProcessRole, memory), config.address is None
    return reserve(topology, nodes, own=own, most=sizes, memory=sized)


def _fit(topology: Topology, *nodes: Node) -> str:
    """Why the first process that does not fit does not."""
    return misfit(topology.replicas.values(), nodes).partition(" cannot be placed: ")[2]


def test_two_processors_hold_a_verifier_and_two_drafters_and_more_that_come() -> None:
    topology, warning = _cell(ClusterConfig(**ALONE, drafters=2), _node())
    assert warning == ""
    assert {replica.cpus for replica in topology.replicas.values()} == {0.25}
    assert _fit(resized(topology, 2, 4), _node()) == ""
    short = "no node with 0.25 CPU free: 3.5 wanted, 2 there"
    assert _fit(resized(topology, 4, 9), _node()) == short


def test_a_large_machine_gives_a_processor_a_thread() -> None:
    settings = {ProcessRole.VERIFY: {"threads": 4}, ProcessRole.DRAFT: {"threads": 2}}
    topology, _ = _cell(
        ClusterConfig(**JOINED), _node(cpus=0), _node(1, cpus=32), settings=settings
    )
    assert [replica.cpus for replica in topology.replicas.values()] == [1.0, 4.0, 2.0]


def test_a_cell_of_many_threads_fits_on_its_own_machine_and_pays_what_was_said() -> None:
    settings = {ProcessRole.VERIFY: {"threads": 8}, ProcessRole.DRAFT: {"threads": 8}}
    topology, _ = _cell(ClusterConfig(**ALONE, drafters=3), _node(cpus=8), settings=settings)
    assert _fit(topology, _node(cpus=8)) == ""
    said, _ = _cell(ClusterConfig(**ALONE, verifier_cpus=1.5), _node(), settings=settings)
    assert said.replicas["verify/0"].cpus == 1.5
    assert _fit(said, _node()) == ""


def test_pools_that_follow_the_load_have_room_for_their_largest() -> None:
    topology, _ = _cell(
        ClusterConfig(**ALONE), _node(), most={ProcessRole.VERIFY: 4, ProcessRole.DRAFT: 8}
    )
    assert _fit(resized(topology, 4, 8), _node()) == ""


def test_where_no_node_is_there_yet_whole_processors_are_asked_for() -> None:
    for nodes in ((), (_node(cpus=0),)):
        topology, _ = _cell(ClusterConfig(**JOINED), *nodes)
        assert topology.replicas["verify/0"].cpus == 1.0


def test_a_worker_takes_a_card_where_there_are_cards() -> None:
    nodes = [_node(number, gpus=4, cpus=16) for number in range(2)]
    topology, _ = _cell(ClusterConfig(**JOINED, verifiers=2), *nodes)
    given = {name: replica.gpus for name, replica in topology.replicas.items()}
    assert given.pop("coordinator/0") == 0.0
    assert given == {"verify/0": 1.0, "verify/1": 1.0, "draft/0": 1.0}
    shared, _ = _cell(ClusterConfig(**JOINED, drafter_gpus=0.25), *nodes)
    assert shared.replicas["draft/0"].gpus == 0.25
    for device in ("cpu", "cuda:1"):
        chosen, _ = _cell(
            ClusterConfig(**JOINED),
            *nodes,
            settings={ProcessRole.VERIFY: {"device": device}, ProcessRole.DRAFT: {}},
        )
        assert chosen.replicas["verify/0"].gpus == 0.0, "Ray would hide the card that was named"


@pytest.mark.parametrize(
    ("cards", "verifiers", "share", "problem"),
    [
        (8, 2, (4.0, 1.0), "no node with 1 GPU free: 10 wanted, 8 there"),
        (9, 2, (4.0, 0.25), ""),
        (10, 2, (4.0, 1.0), ""),
        (3, 1, (4.0, 1.0), "no node with 4 GPU free: 6 wanted, 3 there"),
    ],
)
def test_a_verifier_takes_a_card_for_each_rank(
    cards: int, verifiers: int, share: tuple[float, float], problem: str
) -> None:
    settings = {ProcessRole.VERIFY: {"tensor_parallel_size": 4}, ProcessRole.DRAFT: {}}
    node = _node(gpus=cards, cpus=64, gib=64)
    config = ClusterConfig(**ALONE, verifiers=verifiers, drafters=2)
    topology, _ = _cell(config, node, settings=settings)
    verifier = topology.replicas["verify/0"]
    assert (verifier.gpus, topology.replicas["draft/0"].gpus) == share
    assert verifier.memory_gib == 4 * footprint.ON_CARD / GIB, "each is a process"
    assert verifier.cpus == 4, "with a thread at least"
    assert _fit(topology, node) == problem


@pytest.mark.parametrize(
    ("verifiers", "drafters", "cards", "share"),
    [
        (1, 1, 1, (0.6, 0.1)),
        (1, 1, 2, (1.0, 1.0)),
        (1, 2, 2, (1.0, 0.25)),
        (2, 2, 2, (0.6, 0.1)),
        (1, 6, 1, (0.6, 0.0666)),
    ],
)
def test_too_few_cards_of_a_machine_are_shared_but_by_no_two_verifiers(
    verifiers: int, drafters: int, cards: int, share: tuple[float, float]
) -> None:
    node = _node(gpus=cards, cpus=16)
    topology, _ = _cell(ClusterConfig(**ALONE, verifiers=verifiers, drafters=drafters), node)
    assert (topology.replicas["verify/0"].gpus, topology.replicas["draft/0"].gpus) == share
    assert _fit(topology, node) == ""
    assert _fit(resized(topology, cards + 1, 0), node).startswith("no node with ")


@pytest.mark.parametrize(
    ("drafters", "cards", "given", "share"),
    [
        (1, 1, 0.9, 0.8),
        (4, 1, 0.9, 0.5),
        (9, 1, 0.9, 0.5004),
        (1, 1, 0.4, 0.4),
        (1, 2, 0.9, 0.9),
        (0, 1, 0.9, 0.9),
    ],
)
def test_the_pool_of_a_verifier_leaves_its_card_what_drafters_reserve_there(
    drafters: int, cards: int, given: float, share: float
) -> None:
    settings = {ProcessRole.VERIFY: {**DEVICE[ProcessRole.VERIFY], "gpu_memory_utilization": given}}
    settings[ProcessRole.DRAFT] = DEVICE[ProcessRole.DRAFT]
    config = ClusterConfig(**ALONE, drafters=drafters)
    topology, _ = _cell(config, _node(gpus=cards, cpus=16), settings=settings)
    assert topology.replicas["verify/0"].settings["gpu_memory_utilization"] == pytest.approx(
        share, abs=1e-3
    )


def test_memory_that_is_not_there_is_told_and_not_in_the_way_on_a_machine_of_its_own() -> None:
    topology, warning = _cell(ClusterConfig(**ALONE), _node(gib=2))
    assert "takes 3.0 GiB, 2.0 GiB are here" in warning
    assert "verify.kv_tokens" in warning
    assert _fit(topology, _node(gib=2)) == ""
    joined, warning = _cell(ClusterConfig(**JOINED), _node(gib=2))
    short = "no node with 1.0 GiB of memory free: 3.0 wanted, 2.0 there"
    assert (_fit(joined, _node(gib=2)), warning) == (short, "")


def test_cards_hold_weights_and_caches_so_that_little_is_left_to_main_memory() -> None:
    topology, _ = _cell(ClusterConfig(**JOINED), _node(gpus=2, cpus=16), memory=64 * GIB)
    assert topology.replicas["verify/0"].memory_gib == footprint.ON_CARD / GIB


def test_what_is_missing_is_said_by_name() -> None:
    config = ClusterConfig(**JOINED, verifiers=2, drafters=0, verifier_gpus=1)
    topology, _ = _cell(config, _node(gpus=1))
    short = "no node with 1 GPU free: 2 wanted, 1 there"
    found = misfit(topology.replicas.values(), [_node(gpus=1)])
    assert found == f"verify/1 cannot be placed: {short}"
    assert _fit(topology, _node()) == "no node with 1 GPU free: 2 wanted, 0 there"
    assert _fit(topology) == "no node is there"
    selected, _ = _cell(ClusterConfig(**JOINED, verifier_selector="dspark.io/role=verify"), _node())
    assert _fit(selected, _node()) == "no node labelled dspark.io/role=verify: 1 nodes there"
    apart, _ = _cell(
        ClusterConfig(**JOINED, verifier_gpus=1, verifier_cpus=4), _node(gpus=1), _node(1, cpus=8)
    )
    assert _fit(apart, _node(gpus=1), _node(1, cpus=8)).startswith(
        "no node with 1 GPU and 4 CPU and "
    )


def test_what_a_worker_takes_follows_from_its_files_and_its_cache(
    golden_target: Path, golden_drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {"engine": "real", "dtype": "auto", "device": "auto"}
    base |= {"kv_tokens": 0, "context_tokens": 0}

    def verifier(target: object, **more: Any) -> int:
        settings = {**base, "target": str(target), **more}
        return footprint.of(ProcessRole.VERIFY, settings) - footprint.HEAVY

    def drafter(folder: Path, **more: Any) -> int:
        settings = {**base, "drafter": str(folder), **more}
        return footprint.of(ProcessRole.DRAFT, settings) - footprint.HEAVY

    one, empty = (verifier(golden_target, kv_tokens=tokens) for tokens in (1000, 1))
    size = sum(file.stat().st_size for file in golden_target.glob("*.safetensors"))
    row = (one - empty) // 999
    assert empty == size + row, "float32 on a processor, as it is stored"
    stored = altered(tmp_path / "stored", {"dtype": "bfloat16"}, of=golden_target)
    assert verifier(stored, kv_tokens=1) == 2 * size + row, "whatever is stored"
    half = verifier(golden_target, kv_tokens=1000, dtype="bfloat16")
    assert 2 * half == pytest.approx(one, rel=1e-3)
    assert verifier(golden_target, kv_tokens=1999) - one == one - empty > 0
    drafted = verifier(golden_target, drafter=str(golden_drafter), kv_tokens=1000)
    assert drafted - one == 1000 * 2 * read_drafter_config(golden_drafter).hidden_size
    assert drafter(golden_drafter, context_tokens=1000) > drafter(golden_drafter)
    without_tables(PAIR / "drafter", tmp_path / "shared", target=PAIR / "target")
    whole = pytest.approx(drafter(PAIR / "drafter"), rel=1e-2)
    assert drafter(tmp_path / "shared") == whole, "tables of the target"
    other = tmp_path / "other names"
    GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4).save_pretrained(other)
    assert verifier(other, kv_tokens=1000) == 1000 * 2 * 2 * 64 * 4
    assert verifier("no/such-model") == 0, "what is elsewhere is not weighed"
    divided = verifier(golden_target, kv_tokens=1000, tensor_parallel_size=3)
    assert divided == one + 2 * footprint.HEAVY, "two more processes"
    shutil.copytree(golden_target, tmp_path / "broken")
    (tmp_path / "broken" / "config.json").write_text("{}")
    assert verifier(tmp_path / "broken") == 0, "the worker says what is wrong"
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert verifier(other, kv_tokens=1000) == 0, "nothing knows them"
    synthetic = footprint.of(ProcessRole.VERIFY, {"engine": "synthetic"})
    assert synthetic == footprint.of(ProcessRole.COORDINATOR, {}) == footprint.LIGHT
