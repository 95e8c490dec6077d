"""Two programs of `redpoll bench` in processes of their own."""

from __future__ import annotations

import pytest

from redpoll.cli.bench.programs import wired_latency, wired_throughput
from redpoll.cli.child import ChildError
from redpoll.wiring.directory import Directory

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("size", [1, 70_000])
async def test_latency_is_measured_between_two_processes(size: int) -> None:
    """So many messages go there and back, and the percentiles rise."""
    async with Directory(port=0) as directory:
        found = await wired_latency(str(directory.address), size, 20)
    assert (found.size, found.count) == (size, 20)
    assert 0 < found.p50 <= found.p90 <= found.p99 <= found.max


@pytest.mark.parametrize(("size", "count"), [(1, 1), (16, 3_000), (70_000, 20)])
async def test_throughput_is_measured_between_two_processes(size: int, count: int) -> None:
    """So many messages go one way; of a single one there is no rate, for time begins with the first."""
    async with Directory(port=0) as directory:
        found = await wired_throughput(str(directory.address), size, count)
    assert (found.size, found.count) == (size, count)
    assert found.seconds > 0


async def test_a_program_that_fails_fails_the_pair() -> None:
    """Where a program cannot do its work the other is not waited for, and both are gone."""
    with pytest.raises(ChildError, match=r"redpoll bench lat .* in a second process"):
        await wired_latency("no such host", 1, 1)
