"""Rates and latencies."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.cli.measure import Measurement, measure, percentile
from redpoll.errors import UsageError


def test_percentiles_are_values_that_were_measured() -> None:
    """The nearest rank: the smallest value that so many percent do not exceed."""
    values = tuple(float(number) for number in range(1, 101))
    assert [percentile(values, share) for share in (50, 90, 99, 99.9, 100)] == [50, 90, 99, 100, 100]
    assert percentile((7.0,), 50) == 7.0
    assert percentile((), 50) == 0.0


def test_records_are_for_json() -> None:
    """A measurement without latencies has none in its record, and a rate of zero seconds is zero."""
    record = Measurement("work", 10, 2.0, (), 4, 1).record()
    assert record == {
        "work": "work",
        "messages": 10,
        "seconds": 2.0,
        "rate": 5.0,
        "latency": None,
        "slots": 4,
        "errors": 1,
    }
    assert Measurement("work", 0, 0.0, (), 4, 0).rate == 0.0
    assert Measurement("work", 1, 1.0, (0.5,), 4, 0).record()["latency"] == dict.fromkeys(
        ("p50", "p90", "p99", "p99.9"), 0.5
    )


@pytest.mark.asyncio
async def test_each_number_is_done_once_and_so_many_at_once() -> None:
    """Every number is done once, never more than `at_once` are open, and failures are counted apart."""
    seen: list[int] = []
    open_now = most = 0

    async def once(number: int) -> bool:
        nonlocal open_now, most
        seen.append(number)
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0)
        open_now -= 1
        if number == 3:
            raise UsageError("failed")
        return number != 5

    result = await measure("work", once, messages=10, at_once=4, slots=2)
    assert sorted(seen) == list(range(10))
    assert most == 4
    assert (result.messages, result.errors, len(result.latencies), result.slots) == (8, 2, 8, 2)
    assert list(result.latencies) == sorted(result.latencies)
    assert result.seconds > 0
