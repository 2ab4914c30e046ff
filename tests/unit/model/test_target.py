"""Targets are loaded exactly or refused, and taps are the raw outputs of decoder layers."""

from typing import Any

import pytest
import torch
import transformers

from dspark.errors import CheckpointError
from dspark.model.checkpoint import ENDLESS, context_length, load_target
from dspark.model.target import TargetTaps
from tests.unit.model.golden import TARGET

IDS = torch.tensor([[5, 9, 2, 77, 30]])


@torch.inference_mode()
def test_taps_are_the_library_s_hidden_states_the_last_one_before_its_norm() -> None:
    model = load_target(TARGET).model
    with TargetTaps(model, (-1, 0, 2, 4, 5)) as taps:
        states = model(input_ids=IDS, output_hidden_states=True).hidden_states
        *others, last = taps.collect().split(64, dim=-1)
    for layer, tapped in zip((-1, 0, 2, 4), others, strict=True):
        assert torch.equal(tapped, states[layer + 1])
    assert not torch.allclose(last, states[-1])
    assert torch.equal(model.model.norm(last), states[-1])


@torch.inference_mode()
def test_features_are_handed_out_once_and_never_after_detaching() -> None:
    model = load_target(TARGET).model
    taps = TargetTaps(model, (1,)).attach().attach()
    model(input_ids=IDS)
    taps.collect()
    with pytest.raises(RuntimeError, match="tapped layers"):
        taps.collect()
    taps.detach()
    model(input_ids=IDS)
    with pytest.raises(RuntimeError, match="tapped layers"):
        taps.collect()


@pytest.mark.parametrize("ids", [(6,), (-2,), (3, 1), (1, 1)])
def test_taps_that_do_not_fit_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match="target_layer_ids"):
        TargetTaps(load_target(TARGET).model, ids)


def test_what_a_server_needs_to_know() -> None:
    target = load_target(TARGET)
    assert (target.stop_ids, target.context_length, target.vocab_size) == ((1,), 512, 128)
    assert (target.hidden_size, target.num_layers) == (64, 6)
    assert not any(parameter.requires_grad for parameter in target.model.parameters())


def test_a_limit_is_read_by_any_of_its_names() -> None:
    limits: list[tuple[transformers.PreTrainedConfig, int]] = [
        (transformers.LlamaConfig(max_position_embeddings=64), 64),
        (transformers.GPT2Config(n_positions=64), 64),
        (transformers.MptConfig(max_seq_len=64), 64),
        (transformers.MambaConfig(), ENDLESS),
    ]
    assert [context_length(config) for config, _ in limits] == [limit for _, limit in limits]


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        # as its authors say how to serve Qwen3 with long texts
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 32768}, 40960),
        ({"rope_type": "dynamic", "factor": 2.5}, 102400),
        # says both lengths, or only how a length is read
        ({"rope_type": "linear", "factor": 4.0}, 40960),
        ({"rope_type": "default"}, 40960),
    ],
)
def test_a_rotation_that_is_stretched_stretches_the_limit(rope: dict[str, Any], limit: int) -> None:
    config = transformers.Qwen3Config(
        max_position_embeddings=40960, rope_parameters={"rope_theta": 1e6, **rope}
    )
    assert context_length(config) == limit
