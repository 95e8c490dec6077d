"""Figures of one run."""

from __future__ import annotations

import json
import random

import pytest

from redpoll.cli.bench.figures import Latency, Throughput, warm_up


def test_percentiles_are_times_that_were_measured() -> None:
    """Of 1,000 times in any order p50, p90 and p99 are the 500th, 900th and 990th, and max is the longest."""
    taken = list(range(1_000, 1_001_000, 1_000))
    random.Random(1).shuffle(taken)
    found = Latency.of(16, taken)
    assert (found.size, found.count) == (16, 1_000)
    assert [found.p50, found.p90, found.p99, found.max] == pytest.approx([500e-6, 900e-6, 990e-6, 1_000e-6])


def test_one_way_is_half_of_there_and_back() -> None:
    """What is told of one way is half of each figure, in seconds, and both are told."""
    record = Latency(1, 10, 60e-6, 80e-6, 100e-6, 1e-3).record()
    assert record["one_way"] == {"p50": 30e-6, "p90": 40e-6, "p99": 50e-6, "max": 0.5e-3}
    assert record["round_trip"] == {"p50": 60e-6, "p90": 80e-6, "p99": 100e-6, "max": 1e-3}


def test_rates_are_of_the_payload() -> None:
    """A million messages of 16 bytes in two seconds are half a million a second, and 64 megabits of their own bytes."""
    found = Throughput(16, 1_000_000, 2.0)
    assert found.rate == 500_000
    assert found.megabits == pytest.approx(64.0)
    assert Throughput(16, 1, 0.0).rate == 0.0


@pytest.mark.parametrize("figures", [Latency(1, 10, 6e-5, 8e-5, 1e-4, 1e-3), Throughput(256, 1_000, 0.25)])
def test_what_is_written_can_be_read(figures: Latency | Throughput) -> None:
    """Figures pass from one process to the other as JSON, unchanged."""
    assert type(figures).read(json.loads(json.dumps(figures.record()))) == figures


def test_warming_up_is_a_tenth() -> None:
    """Before anything is timed a tenth as many go there and back, 1,000 at most."""
    assert [warm_up(count) for count in (1, 10, 5_000, 1_000_000)] == [0, 1, 500, 1_000]
