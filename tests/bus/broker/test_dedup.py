"""Dedup keys are remembered for a time, and within a number."""

from __future__ import annotations

from redpoll.bus.broker.dedup import Dedup


def test_a_key_counts_for_its_time() -> None:
    """A key is found until its time is over, which a second use begins anew."""
    keys = Dedup(10.0, 100)
    keys.add("a", 1, 0.0)
    assert keys.find("a", 9.9) == 1
    assert keys.find("a", 10.0) == 0
    keys.add("a", 2, 10.0)
    assert keys.find("a", 19.0) == 2


def test_the_oldest_key_leaves_first() -> None:
    """There are no more keys than the limit, and none whose time was over when one was added."""
    keys = Dedup(10.0, 2)
    for number, key in enumerate("abc"):
        keys.add(key, number + 1, float(number))
    assert [keys.find(key, 3.0) for key in "abc"] == [0, 2, 3]
    keys.add("d", 4, 100.0)
    assert len(keys) == 1
