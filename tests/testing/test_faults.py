"""Faults as values: checked, and drawn from a seed."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import ConfigError
from redpoll.testing import Chaos, Faults, ProxyStats, Step


def drawn(chaos: Chaos, seed: int, count: int = 200) -> list[Step]:
    return list(islice(chaos.steps(random.Random(seed)), count))


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"jitter": float("inf")},
        {"pause": "1"},
        {"rate": 0},
        {"rate": True},
        {"pieces": 0},
        {"pieces": ()},
        {"pieces": (1, 0)},
        {"pieces": range(3)},
        {"pieces": "1"},
        {"cut_after": -1},
        {"cut": "bang"},
    ],
    ids=str,
)
def test_faults_are_checked(options: dict[str, Any]) -> None:
    """A condition that cannot be is an error that names it."""
    with pytest.raises(ConfigError) as caught:
        Faults(**options)
    assert caught.value.field in options


@pytest.mark.parametrize(
    "options",
    [{"do": "explode"}, {"do": "rst", "direction": "up"}, {"do": "rst", "after": -1}, {"do": "rst", "seconds": 1}],
    ids=str,
)
def test_steps_are_checked(options: dict[str, Any]) -> None:
    """An event that cannot be is an error that names what is wrong."""
    with pytest.raises(ConfigError) as caught:
        Step(**options)
    assert caught.value.field in options


@pytest.mark.parametrize(
    "options",
    [
        {"rst": 1.5},
        {"change": 0.9},
        {"interval": (0.0, 1.0)},
        {"delay": (2.0, 1.0)},
        {"pieces": (0, 1)},
        {"rate": 7},
        {"refuse": float("nan")},
    ],
    ids=str,
)
def test_chaos_is_checked(options: dict[str, Any]) -> None:
    """A chance or range that cannot be is an error that names it."""
    with pytest.raises(ConfigError) as caught:
        Chaos(**options)
    assert caught.value.field in options


@given(st.integers())
def test_same_seed_same_steps(seed: int) -> None:
    """What happens depends on the seed alone."""
    assert drawn(Chaos(), seed, 20) == drawn(Chaos(), seed, 20)


def test_other_seed_other_steps() -> None:
    """Another seed draws other steps."""
    assert drawn(Chaos(), 1) != drawn(Chaos(), 2)


def test_chances_are_kept() -> None:
    """Each event is drawn about as often as its chance says, and one without a chance never."""
    found = Counter(step.do for step in drawn(Chaos(freeze=0.3, change=0.2, hold=0.0), 1, 10_000))
    assert 2800 < found["freeze"] < 3200
    assert 1800 < found["set"] < 2200
    assert found["silence"] == found["hold"] == 0


@given(st.integers())
def test_ranges_are_kept(seed: int) -> None:
    """What is drawn lies in its range."""
    chaos = Chaos(interval=(1.0, 2.0), delay=(3.0, 4.0), rate=(5.0, 6.0), pieces=(7, 8), pause_seconds=(9.0, 10.0))
    for step in drawn(chaos, seed, 20):
        assert 1 <= step.after <= 2
        assert step.seconds is None or 9 <= step.seconds <= 10
        assert step.faults.delay == 0 or 3 <= step.faults.delay <= 4
        assert step.faults.rate is None or 5 <= step.faults.rate <= 6
        assert step.faults.pieces in (None, range(7, 9))


def test_counters_as_text() -> None:
    """The text of the counters names those that are not 0."""
    assert str(ProxyStats(connections=2, rst=1)) == "connections 2, rst 1"
    assert str(ProxyStats()) == "nothing yet"
