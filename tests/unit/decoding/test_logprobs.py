"""Log-probabilities where a forward of the target does not tell them: of equals, and of no numbers.
What else is told `test_prompt_scoring` and `test_sampling_fields` hold against one."""

import math

import pytest
import torch

from dspark.decoding.logprobs import prompt_logprobs, token_logprobs


def test_equals_go_to_the_lower_id_and_a_row_that_is_not_numbers_is_an_error() -> None:
    flat = torch.zeros(1, 4)
    assert token_logprobs(flat, [3], 20)[0].top_ids == (0, 1, 2, 3), "as many as there are"
    assert prompt_logprobs(flat, [3], 4).ranks.tolist() == [1]
    with pytest.raises(FloatingPointError):
        prompt_logprobs(torch.full((1, 4), math.nan), [0], 1)
