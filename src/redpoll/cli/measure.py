"""Rates and latencies of a piece of work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count as counter

from redpoll.errors import RedpollError

__all__ = ["Measurement", "measure", "percentile"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a piece of work took.

    Attributes:
        work: What was done.
        messages: How many were done.
        seconds: How long all of them took together.
        latencies: What each took, in seconds, sorted; empty where that was not measured.
        slots: How many messages the receiver works on at a time.
        errors: How many failed.
    """

    work: str
    messages: int
    seconds: float
    latencies: tuple[float, ...]
    slots: int
    errors: int

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    def record(self) -> dict[str, object]:
        """Return it for JSON: latencies as percentiles, in seconds."""
        latency = {f"p{share:g}": round(percentile(self.latencies, share), 9) for share in (50, 90, 99, 99.9)}
        return {
            "work": self.work,
            "messages": self.messages,
            "seconds": round(self.seconds, 6),
            "rate": round(self.rate, 1),
            "latency": latency if self.latencies else None,
            "slots": self.slots,
            "errors": self.errors,
        }


def percentile(values: tuple[float, ...], share: float) -> float:
    """Return the smallest of sorted values that `share` percent of them do not exceed; 0.0 of none."""
    if not values:
        return 0.0
    rank = -(-len(values) * share // 100)
    return values[max(0, min(len(values), int(rank)) - 1)]


async def measure(
    work: str, once: Callable[[int], Awaitable[bool]], *, messages: int, at_once: int, slots: int
) -> Measurement:
    """Do something many times and time each.

    Args:
        work: What it is called.
        once: Does it for one number, from 0, and tells whether it came out right; a `RedpollError` counts as an error.
        messages: How often.
        at_once: How many are open at any time.
        slots: Noted in the result.

    Cancelling it cancels what is open.
    """
    numbers = counter()
    latencies: list[float] = []
    errors = 0

    async def lane() -> None:
        nonlocal errors
        while (number := next(numbers)) < messages:
            began = time.perf_counter()
            try:
                right = await once(number)
            except RedpollError:
                right = False
            if right:
                latencies.append(time.perf_counter() - began)
            else:
                errors += 1

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(lane())
    seconds = time.perf_counter() - started
    return Measurement(work, len(latencies), seconds, tuple(sorted(latencies)), slots, errors)
