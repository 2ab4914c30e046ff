"""A worker that is lost too often is held off, longer each time, and forgiven once it has held."""

from coordinator.workers.breaker import CircuitBreaker


def test_every_further_loss_costs_more_up_to_a_bound() -> None:
    breaker = CircuitBreaker(3)
    pauses = []
    for now in range(8):
        if breaker.lost(float(now)):
            pauses.append(breaker.left_s(float(now)))
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_who_has_held_is_trusted_anew() -> None:
    breaker = CircuitBreaker(3)
    for now in (0.0, 1.0, 2.0, 3.0):
        breaker.lost(now)
    assert not breaker.lost(100.0)
    assert not breaker.lost(101.0)
    assert breaker.lost(102.0)
    assert breaker.left_s(102.0) == 5.0


def test_losses_far_apart_open_nothing_and_neither_does_a_limit_of_none() -> None:
    breaker, never = CircuitBreaker(3), CircuitBreaker(0)
    for now in range(0, 4000, 40):
        assert not breaker.lost(float(now))
        assert not never.lost(float(now) / 100)
