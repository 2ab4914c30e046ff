"""A run is a function of its settings: not of where it stopped, of its pieces, nor of where
features come from."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from dspark.errors import ConfigError
from dspark.model.checkpoint import load_drafter
from dspark.model.formats.convert import without_tables
from dspark.training import trainer
from dspark.training.batches import pieces
from dspark.training.checkpoint import read_header
from dspark.training.disk import check_same_run, only_writer
from dspark.training.features import Features, make_cache, plan_for
from dspark.training.optimisers import make_optimisers
from dspark.training.record import StepLog
from dspark.training.run import WorkerGroup, open_run
from dspark.training.samples import Sample
from dspark.training.settings import FAMILIES, Settings, settled
from dspark.training.trainer import LOG, STATE, train_drafter
from tests.unit.model.golden import altered
from tests.unit.training.pipeline import COLUMNS, random_samples, short_run

ROOT = Path(__file__).parents[3]
Run = Callable[..., Settings]


@pytest.fixture(scope="module")
def run_in(tmp_path_factory: pytest.TempPathFactory, golden_target: Path) -> Run:
    """Settings of a short run in a folder."""
    samples = random_samples(tmp_path_factory.mktemp("samples") / "samples.safetensors")
    return partial(short_run, samples, golden_target)


@pytest.fixture(scope="module")
def first(run_in: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter to start from."""
    return train_drafter(run_in(tmp_path_factory.mktemp("first"), steps=1))


class Stopped(Exception):
    pass


def _curve(settings: Settings) -> dict[str, list[float]]:
    log = StepLog(Path(settings.out) / LOG).read()
    return {name: log[name] for name in COLUMNS}


def _train_telling(settings: Settings, step: Callable[..., None]) -> None:
    """Trains; `step` is told what the progress bar is told."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "progress", lambda *_, **__: nullcontext(step))
        train_drafter(settings)


def _train_and_stop(settings: Settings) -> None:
    """Trains until a step after the last state, which has to be done again."""

    def stop(completed: int, note: str) -> None:
        if completed == 3:
            raise Stopped

    with pytest.raises(Stopped):
        _train_telling(settings, stop)


RECIPES = [*((family, "adamw") for family in FAMILIES), ("dspark", "muon")]


@pytest.mark.parametrize(("family", "optimizer"), RECIPES)
def test_a_stopped_run_goes_on_to_the_same_bits(
    family: str, optimizer: str, run_in: Run, tmp_path: Path
) -> None:
    whole = run_in(tmp_path / "whole", family=family, optimizer=optimizer)
    parts = replace(whole, out=str(tmp_path / "parts"))
    folder = train_drafter(whole)
    assert load_drafter(folder).config.family == family
    _train_and_stop(parts)
    assert StepLog(Path(parts.out) / LOG).read()["step"] == [1, 2, 3]
    train_drafter(parts)
    assert repr(_curve(whole)) == repr(_curve(parts))
    ends = [
        load_file(Path(settings.out) / "drafter" / "model.safetensors")
        for settings in (whole, parts)
    ]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_run_goes_on_whose_state_tells_less_of_an_optimiser(run_in: Run, tmp_path: Path) -> None:
    """As states of before Muon was PyTorch's do."""
    whole = run_in(tmp_path / "whole", optimizer="muon")
    parts = replace(whole, out=str(tmp_path / "parts"))
    train_drafter(whole)
    _train_and_stop(parts)
    state = Path(parts.out) / STATE
    header = read_header(state)
    told = ("lr", "momentum", "weight_decay", "params")
    header["groups"]["muon"] = [
        {name: group[name] for name in told} for group in header["groups"]["muon"]
    ]
    rewritten = {name: json.dumps(value) for name, value in header.items()}
    state.write_bytes(save(load_file(state), rewritten))
    train_drafter(parts)
    assert repr(_curve(whole)) == repr(_curve(parts))


def test_muon_takes_the_matrices_of_layers_and_no_table_nor_head(
    run_in: Run, tmp_path: Path
) -> None:
    run = open_run(run_in(tmp_path, optimizer="muon"), WorkerGroup.of_process_group())
    names = {id(parameter): name for name, parameter in run.drafter.named_parameters()}
    taken = {
        label: {names[id(p)] for group in optimiser.param_groups for p in group["params"]}
        for label, optimiser in make_optimisers(run.drafter, run.settings).items()
    }
    projections = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o")
    matrices = (*projections, "mlp.gate", "mlp.up", "mlp.down")
    assert taken["muon"] == {"fc.weight", *(f"layers.0.{each}_proj.weight" for each in matrices)}
    trained = {name for name, p in run.drafter.named_parameters() if p.requires_grad}
    assert taken["adamw"] == trained - taken["muon"]
    assert {"markov_head.markov_w1.weight", "norm.weight"} < taken["adamw"]


@pytest.mark.parametrize("family", ["dspark", "eagle3", "mtp", "lm"])
def test_how_steps_are_cut_changes_rounding_only(family: str, run_in: Run, tmp_path: Path) -> None:
    curves = []
    for tokens in (1, 70, 4096):
        out, changes = tmp_path / str(tokens), {"family": family, "steps": 2, "rate": 1e-3}
        settings = run_in(out, micro_tokens=tokens, **changes)
        train_drafter(settings)
        curves.append(_curve(settings))
    for other in curves[1:]:
        for name in COLUMNS:
            assert other[name] == pytest.approx(curves[0][name], rel=2e-4, nan_ok=True)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 800))
def test_no_piece_is_larger_than_asked_padding_included(lengths: list[int], most: int) -> None:
    found = pieces(lengths, most)
    assert sorted(place for piece in found for place in piece) == list(range(len(lengths)))
    for piece in found:
        longest = max(lengths[place] for place in piece)
        assert len(piece) == 1 or len(piece) * longest <= most


def test_a_piece_is_learned_from_before_the_next_is_computed(run_in: Run, tmp_path: Path) -> None:
    run = open_run(run_in(tmp_path, micro_tokens=1), WorkerGroup.of_process_group())
    events: list[str] = []

    class Told:
        def __init__(self) -> None:
            self.inner = run.features

        def of(self, numbers: Sequence[int], read: Sequence[Sample]) -> list[Features]:
            events.append("features")
            return self.inner.of(numbers, read)

    run.features = Told()
    next(p for p in run.drafter.parameters() if p.requires_grad).register_hook(
        lambda _: events.append("learned")
    )
    run.sums([0, 1, 2], (1,), learn=True)
    assert events == ["features", "learned"] * 3


def test_a_cache_gives_the_curve_of_a_target_beside_a_drafter(run_in: Run, tmp_path: Path) -> None:
    online = run_in(tmp_path / "online", steps=2)
    cached = replace(online, out=str(tmp_path / "cached"), cache=str(tmp_path / "cache"))
    make_cache(cached, plan_for(cached, "float32"), tmp_path / "cache")
    train_drafter(online)
    train_drafter(cached)
    wanted, found = _curve(online), _curve(cached)
    for name in COLUMNS:
        assert found[name] == pytest.approx(wanted[name], rel=2e-4, nan_ok=True)


def test_a_run_goes_on_under_its_own_settings_and_samples_only(run_in: Run, tmp_path: Path) -> None:
    settings = run_in(tmp_path / "run", steps=2)
    train_drafter(settings)
    with pytest.raises(ConfigError, match=r"rate: .* was begun with"):
        train_drafter(replace(settings, rate=1e-4))
    with pytest.raises(ConfigError, match=r"markov_rank: .* was begun with 4, not 8"):
        train_drafter(replace(settings, markov_rank=8))
    other = random_samples(tmp_path / "other.safetensors", seed=1)
    with pytest.raises(ConfigError, match=r"samples: .* was begun with"):
        train_drafter(replace(settings, samples=str(other)))


def test_two_runs_do_not_write_into_one_folder(run_in: Run, tmp_path: Path) -> None:
    def meanwhile(**_: object) -> None:
        with pytest.raises(ConfigError, match="another process"):
            train_drafter(run_in(tmp_path))

    _train_telling(run_in(tmp_path), meanwhile)
    assert _curve(run_in(tmp_path))["step"] == [1, 2, 3, 4]


Damage = Callable[[bytes], bytes]
NO_STATE, NO_LOG = "no state of a training run", "not the log of a training run"
DAMAGED: list[tuple[str, str, Damage]] = [
    (STATE, NO_STATE, lambda whole: whole[:200]),
    (STATE, NO_STATE, lambda whole: whole[:-9]),
    (STATE, NO_STATE, lambda whole: save({"embed_tokens.weight": torch.ones(3)})),
    (LOG, NO_LOG, lambda whole: whole.replace(b"step", b"stop")),
    (LOG, NO_LOG, lambda whole: whole.replace(b"\n2.0,", b"\n\xff,")),
    (LOG, NO_LOG, lambda whole: whole.replace(b"\n2.0,", b"\n")),
    (LOG, NO_LOG, lambda whole: whole + b"\n"),
]


@pytest.mark.parametrize(("name", "said", "damage"), DAMAGED)
def test_a_file_that_is_damaged_is_named(
    name: str, said: str, damage: Damage, run_in: Run, tmp_path: Path
) -> None:
    train_drafter(run_in(tmp_path, steps=2))
    file = tmp_path / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigError, match=f"^{file}: {said}"):
        train_drafter(run_in(tmp_path, steps=2))


def test_a_torn_last_line_of_a_log_is_left_out(run_in: Run, tmp_path: Path) -> None:
    settings = run_in(tmp_path, steps=2)
    train_drafter(settings)
    whole, log = _curve(settings), tmp_path / LOG
    with log.open("a") as file:
        file.write("3.0,0.1")
    assert repr(_curve(settings)) == repr(whole)
    train_drafter(settings)
    assert repr(_curve(settings)) == repr(whole)


def test_what_a_killed_process_left_half_written_is_removed(run_in: Run, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    settings = run_in(tmp_path / "run", steps=1, cache=str(cache))
    program = """
import os, sys
from pathlib import Path
from dspark.whole_file import placed
under_way = [placed(Path(name)) for name in sys.argv[1:]]
for each in under_way:
    each.__enter__().with_name(".tmp123456").write_text("half")  # as safetensors writes
os.kill(os.getpid(), 9)
"""
    drafter = Path(settings.out) / "drafter"
    for folder in (cache, drafter):
        folder.mkdir(parents=True)
    names = (cache / "manifest.json", Path(settings.out) / STATE)
    others = (Path(settings.out) / "others.safetensors", drafter / "model.safetensors")
    subprocess.run([sys.executable, "-c", program, *names, *others], cwd=ROOT, timeout=100)
    assert len([*tmp_path.rglob(".tmp*")]) == 4
    make_cache(settings, plan_for(settings, "float32"), cache)
    train_drafter(settings)
    assert [path.parent.name[:8] for path in tmp_path.rglob(".tmp*")] == [".others."]


def test_two_caches_are_not_written_into_one_folder(run_in: Run, tmp_path: Path) -> None:
    settings = run_in(tmp_path / "run", cache=str(tmp_path / "cache"))
    plan = plan_for(settings, "float32")
    with only_writer(tmp_path / "cache"), pytest.raises(ConfigError, match="another process"):
        make_cache(settings, plan, tmp_path / "cache")


def test_a_run_keeps_the_precision_that_came_out(run_in: Run, tmp_path: Path) -> None:
    settings = run_in(tmp_path, steps=1, precision="auto")
    train_drafter(settings)
    kept = read_header(tmp_path / STATE)["facts"]["settings"]
    assert kept["precision"] == "fp32"
    train_drafter(settings)
    train_drafter(replace(settings, precision="fp32"))
    with pytest.raises(ConfigError, match=r"^precision: .* begun with 'fp32', not 'bf16'"):
        # what auto comes to on a GPU
        check_same_run(tmp_path, kept, settled(replace(settings, precision="bf16")))


def _narrow(tensors: dict[str, torch.Tensor]) -> None:
    mlp = "layers.0.mlp"
    for name in (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"):
        tensors[name] = tensors[name][:8].clone()
    name = f"{mlp}.down_proj.weight"
    tensors[name] = tensors[name][:, :8].contiguous()


@pytest.mark.parametrize(
    ("change", "theirs", "tensors", "said"),
    [
        ({"family": "dflash"}, None, None, "family .* is 'dspark'"),
        ({"layers": 2}, None, None, "num_hidden_layers .* is 1, .* 2"),
        ({"taps": (0, 1, 2, 3)}, None, None, "target_layer_ids "),
        ({"markov_rank": 8}, None, None, "markov_rank .* is 4, .* 8"),
        ({}, {"sample_from_anchor": False}, None, "sample_from_anchor of .* is False"),
        ({}, {"intermediate_size": 8}, _narrow, r"layers\.0\.mlp\.\w+\.weight of .* is of shape "),
    ],
)
def test_a_start_that_does_not_fit_is_refused_with_what_differs(
    change: dict[str, object], theirs: Any, tensors: Any, said: str,
    run_in: Run, first: Path, tmp_path: Path,
) -> None:  # fmt: skip
    start = altered(tmp_path / "first", theirs, tensors, of=first)
    with pytest.raises(ConfigError, match=f"^start: {said}"):
        train_drafter(run_in(tmp_path / "again", start=str(start), **change))


def test_a_start_keeps_its_mask_token_and_its_rotation(
    run_in: Run, first: Path, golden_target: Path, tmp_path: Path
) -> None:
    """Its weights were trained with them, and no setting of the run says either; any length of
    blocks will do."""
    theirs = {"mask_token_id": 5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    start = altered(tmp_path / "first", theirs, of=first)
    settings = run_in(tmp_path / "again", steps=1, block_size=3, start=str(start))
    made = load_drafter(train_drafter(settings), target=golden_target).config
    assert (made.mask_token_id, made.rope_theta, made.block_size) == (5, 5e5, 3)
    with pytest.raises(ConfigError, match=r"^start: .* was begun with '\w+', not None"):
        train_drafter(replace(settings, start=""))


def test_a_cache_may_move_and_a_run_may_not_leave_it(run_in: Run, tmp_path: Path) -> None:
    cache, moved = tmp_path / "cache", tmp_path / "moved"
    settings = run_in(tmp_path / "run", steps=1, cache=str(cache))
    make_cache(settings, plan_for(settings, "float32"), cache)
    train_drafter(settings)
    cache.rename(moved)
    train_drafter(replace(settings, cache=str(moved)))
    with pytest.raises(ConfigError, match=r"^cache: .* was begun with 'float32', not None"):
        train_drafter(replace(settings, cache=""))


def test_a_start_whose_head_says_other_tokens_is_refused(run_in: Run, tmp_path: Path) -> None:
    """As many of them: no shape would tell."""
    kept = [tmp_path / name for name in ("some.json", "others.json")]
    for number, path in enumerate(kept):
        path.write_text(json.dumps(list(range(number, number + 64))))
    settings = run_in(tmp_path / "first", steps=1, keep_tokens=str(kept[0]))
    again = replace(settings, out=str(tmp_path / "again"), start=str(train_drafter(settings)))
    with pytest.raises(ConfigError, match=r"^start: the head of .* other tokens"):
        train_drafter(replace(again, keep_tokens=str(kept[1])))
    train_drafter(again)


def test_a_start_may_leave_its_tables_to_the_target(
    run_in: Run, first: Path, golden_target: Path, tmp_path: Path
) -> None:
    without_tables(first, tmp_path / "shared", target=golden_target)
    whole, less = (
        train_drafter(run_in(tmp_path / name, steps=1, start=str(folder)))
        for name, folder in (("whole", first), ("less", tmp_path / "shared"))
    )
    weights = "model.safetensors"
    assert (whole / weights).read_bytes() == (less / weights).read_bytes()


def test_the_size_of_a_cache_is_told_without_reading_a_weight(
    run_in: Run, golden_target: Path, tmp_path: Path
) -> None:
    settings = run_in(tmp_path)
    wanted = plan_for(settings, "bfloat16")
    bare = tmp_path / "bare"
    shutil.copytree(golden_target, bare)
    for file in bare.glob("*.safetensors"):
        file.write_bytes(b"nothing that could be loaded")
    found = plan_for(replace(settings, target=str(bare)), "bfloat16")
    assert found.target != wanted.target
    assert replace(found, target=wanted.target) == wanted


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"family": "gpt"}, "family: "),
        ({"batch": 0}, "batch: "),
        ({"rate": 0.0}, "rate: "),
        ({"warmup": 1.0}, "warmup: "),
        ({"block_size": 65}, "block_size: "),
        ({"family": "eagle3", "layers": 2}, "layers: "),
        ({"family": "eagle3", "taps": (-1, 1)}, "taps: "),
        ({"family": "mtp", "taps": (1, 5)}, "taps: .* mtp reads one layer, not 2"),
        ({"taps": (1, 99)}, "taps: "),
        *(({"held_out": n}, f"held_out: {n} of 14 conversations") for n in (13, 14, 99)),
        ({"family": "lm", "keep_tokens": [1, 2]}, "keep_tokens: .* says every token"),
        ({"keep_tokens": [1, 128]}, "keep_tokens: .* ids below 128"),
    ],
)
def test_a_setting_that_does_not_fit_is_named(
    change: dict[str, Any], said: str, run_in: Run, tmp_path: Path
) -> None:
    if "keep_tokens" in change:
        (tmp_path / "kept.json").write_text(json.dumps(change["keep_tokens"]))
        change = change | {"keep_tokens": str(tmp_path / "kept.json")}
    with pytest.raises(ConfigError, match=f"^{said}"):
        train_drafter(run_in(tmp_path, **change))


@pytest.mark.parametrize("family", ["dspark", "dflash", "eagle3", "mtp"])
def test_a_head_of_few_tokens_is_trained_and_read_back(
    family: str, run_in: Run, golden_target: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(list(range(2, 60))))
    settings = run_in(tmp_path / "run", family=family, keep_tokens=str(kept), steps=2)
    made = load_drafter(train_drafter(settings))
    assert made.draft_vocabulary is not None
    assert made.draft_vocabulary.target_ids.tolist() == list(range(2, 60))
    target_head = load_file(golden_target / "model.safetensors")["lm_head.weight"]
    assert torch.equal(made.lm_head.weight, target_head[2:60])
    kept.write_text(json.dumps(list(range(3, 61))))
    with pytest.raises(ConfigError, match="keep_tokens"):
        train_drafter(settings)


def test_the_loss_falls_on_text_that_can_be_learned(run_in: Run, tmp_path: Path) -> None:
    settings = run_in(tmp_path, steps=30, batch=12, optimizer="muon", evaluate_every=30)
    train_drafter(settings)
    curve = _curve(settings)
    assert curve["loss"][-1] < 0.8 * curve["loss"][0]
