"""The order in which hosts are tried, and the pauses between: without a network."""

from __future__ import annotations

from redpoll.bus.engines.amqp.dialing import Hosts

A, B, C = (("a", 1), ("b", 1), ("c", 1))


def test_first_retry_is_at_once_on_another_host() -> None:
    """After a failure the next host is tried without a pause, until all of them have failed (pitfall 9)."""
    hosts = Hosts((A, B, C), random=lambda: 1.0)
    assert hosts.current == A
    assert (hosts.failed(0.0), hosts.current) == (0.0, B)
    assert (hosts.failed(0.0), hosts.current) == (0.0, C)
    pause = hosts.failed(0.0)
    assert (pause > 0.1, hosts.current) == (True, A)


def test_a_host_that_failed_just_now_is_left_alone() -> None:
    """A host cools down for a quarter of a second while there are others."""
    hosts = Hosts((A, B), random=lambda: 0.0)
    assert hosts.failed(0.0) == 0.0
    assert hosts.failed(0.1) == 0.15
    hosts.succeeded()
    assert (hosts.failed(5.0), hosts.current) == (0.0, B)


def test_pauses_grow_to_a_limit_and_are_spread() -> None:
    """Pauses double to five seconds, are any part of that at random, and begin anew after a success."""
    longest, shortest = Hosts((A,), random=lambda: 1.0), Hosts((A,), random=lambda: 0.0)
    pauses = [longest.failed(0.0) for _ in range(12)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.2, 5.0)
    assert [shortest.failed(0.0) for _ in range(12)] == [0.0] * 12
    longest.succeeded()
    assert longest.failed(0.0) == 0.2


def test_a_refused_login_is_not_repeated_at_full_speed() -> None:
    """After a refused login there is a pause of a second at least, on another host too."""
    hosts = Hosts((A, B), random=lambda: 0.0)
    assert hosts.failed(0.0, refused=True) == 1.0
