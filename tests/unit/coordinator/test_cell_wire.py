"""What travels between a coordinator and a front end comes out as it went in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.answers.answer import CommittedTokens, End, FirstCommit, Reason, Round
from coordinator.cells import cell_wire
from coordinator.cells.cell import CellTerms
from coordinator.requests.validation import Limits
from dspark.errors import (
    ContextExceeded,
    Expired,
    InvalidRequest,
    Overloaded,
    PeerError,
    RequestCancelled,
    Unavailable,
    Unsupported,
)
from dspark.rounds.policy import parse_policy
from dspark.types import Rule, ScoredPrompt, ScoredToken
from dspark.wire.v1 import frontend_pb2

ids = st.integers(0, 2**32 - 1)
rounds = st.none() | st.builds(Round, st.integers(0, 64), st.integers(0, 64), st.integers(0, 64))
lists = st.lists(ids, min_size=1, max_size=5)


def there_and_back(said: list[tuple[int, CommittedTokens]]) -> list[tuple[int, CommittedTokens]]:
    batch = frontend_pb2.CellBatch()
    cell_wire.write_commits(batch, said)
    return list(
        cell_wire.read_commits(frontend_pb2.CellBatch.FromString(batch.SerializeToString()))
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), lists, rounds), max_size=20))
def test_commits_keep_their_order_and_their_rounds(
    drawn: list[tuple[int, int, list[int], Round | None]],
) -> None:
    said = [
        (call, CommittedTokens(tuple(tokens), None, index, (), made))
        for call, index, tokens, made in drawn
    ]
    assert there_and_back(said) == said


def test_an_end_stays_with_its_last_commit_and_a_start_with_its_first() -> None:
    stop = End(Reason.STOP, token_id=0)
    said = [
        (1, CommittedTokens((5,), None, started=FirstCommit(0.25, 32))),
        (2, CommittedTokens((6, 7), None, 1, started=FirstCommit(0.5))),
        (1, CommittedTokens((8,), None, round=Round(7, 3, 0))),
        (2, CommittedTokens((0,), stop, 1, round=Round(7, 3, 0))),
        (1, CommittedTokens((9,), End(Reason.LENGTH), round=Round(0, 0, 0))),
    ]
    assert there_and_back(said) == said


def test_an_end_without_a_commit_comes_last() -> None:
    abort = (3, CommittedTokens((), End(Reason.ABORT), 1))
    commit = (3, CommittedTokens((5,), None))
    assert there_and_back([abort, commit]) == [commit, abort]


def test_log_probabilities_stay_with_their_commit() -> None:
    told = (ScoredToken(-0.5, (1, 2), (-0.5, -1.5)), ScoredToken(-2.0))
    said = [
        (1, CommittedTokens((5,), None)),
        (1, CommittedTokens((6, 7), None, logprobs=told)),
        (2, CommittedTokens((8,), None)),
    ]
    assert there_and_back(said) == said


def test_what_is_told_of_a_prompt_comes_with_its_start_even_without_a_token() -> None:
    scored = ScoredPrompt(
        np.array([-0.5, -2.0], np.float32),
        np.array([1, 70], np.uint32),
        np.array([[4, 9], [2**31, 0]], np.uint32),
        np.array([[-0.5, -1.0], [-0.1, -0.2]], np.float32),
    )
    (said, alone) = there_and_back(
        [
            (1, CommittedTokens((), End(Reason.LENGTH), started=FirstCommit(0.25, 0, scored))),
            (2, CommittedTokens((5,), None, started=FirstCommit(0.5, 0, scored))),
        ]
    )[::-1]
    for call, piece in (said, alone):
        for name in ("logprobs", "ranks", "top_ids", "top_logprobs"):
            assert (getattr(piece.started.prompt_logprobs, name) == getattr(scored, name)).all(), (
                call
            )
    assert (said[1].tokens, said[1].end, alone[1].tokens) == ((), End(Reason.LENGTH), (5,))


@pytest.mark.parametrize(
    "fields",
    [
        {"calls": [1], "lengths": [2], "token_ids": [5], "rounds": [0], "drafted": [0]},
        {"calls": [1, 2], "lengths": [1], "token_ids": [5]},
        {"calls": [1], "lengths": [1], "token_ids": [5, 6], "rounds": [0]},
        {"token_ids": [5]},
        {"ended": [frontend_pb2.Ended(call=1)]},
    ],
)
def test_columns_that_do_not_fit_break_the_protocol(fields: dict[str, list[int]]) -> None:
    with pytest.raises(PeerError):
        list(cell_wire.read_commits(frontend_pb2.CellBatch(**fields)))


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("sampling_params.top_p", "must be in (0, 1], got 7.0"),
        Unsupported("logprobs", "not with this engine"),
        ContextExceeded("text", "the prompt is too long"),
        Overloaded("9 requests wait already", 1.25),
        Unavailable("no verifier is connected"),
        Expired("no answer within 3 s"),
        RequestCancelled("the client went away"),
        PeerError("a commit failed"),
    ],
)
def test_errors_keep_whose_fault_they_are(error: Exception) -> None:
    back = cell_wire.read_failure(cell_wire.write_failure(7, error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_a_drop_as_an_earlier_version_wrote_it_is_not_read_as_a_failure_of_another_kind() -> None:
    # in field 4: of call 7, the client went away
    drop = bytes([4 << 3 | 2, 4, 1 << 3, 7, 2 << 3, 1])
    assert not frontend_pb2.FrontendBatch.FromString(drop).drops


def test_terms_are_kept() -> None:
    limits = Limits(256, 4096, 65536, (0, 2), parse_policy("fixed:3"), Rule.BLOCK)
    terms = CellTerms("target", "drafter", 7, limits, "5eed", ready=False)
    assert cell_wire.read_terms(cell_wire.write_terms(terms)) == terms
    with pytest.raises(PeerError, match="policy"):
        cell_wire.read_terms(frontend_pb2.Terms(policy="??", rule=1))
