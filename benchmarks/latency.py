"""Timing of single round trips, the same way for every contender."""

from __future__ import annotations

from time import perf_counter_ns, process_time
from typing import TYPE_CHECKING

from benchmarks.control import now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: When the first began, when the last ended (seconds), how long each took (nanoseconds), and the processor time of this
#: process for all of them (seconds).
Timed = tuple[float, float, list[int], float]


def time_blocking(once: Callable[[], None], count: int) -> Timed:
    """Call `once` `count` times and time each call."""
    taken = [0] * count
    used = process_time()
    started = now()
    for index in range(count):
        began = perf_counter_ns()
        once()
        taken[index] = perf_counter_ns() - began
    return started, now(), taken, process_time() - used


async def time_each(once: Callable[[], Awaitable[object]], count: int) -> Timed:
    """Await `once()` `count` times and time each."""
    taken = [0] * count
    used = process_time()
    started = now()
    for index in range(count):
        began = perf_counter_ns()
        await once()
        taken[index] = perf_counter_ns() - began
    return started, now(), taken, process_time() - used


def latency_answer(started: float, finished: float, taken: list[int], used: float) -> dict[str, object]:
    """Return what a client end answers with."""
    return {"started": started, "finished": finished, "taken": taken, "used": used}


def percentile(ordered: list[int], percent: float) -> int:
    """Return the smallest of the sorted values that at least `percent` of them do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]
