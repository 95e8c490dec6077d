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
    """The times of a piece of work.

    Attributes:
        work: Name of the work.
        messages: Number of messages.
        seconds: Total time.
        latencies: Time of each message, in seconds, sorted; empty if not measured.
        slots: Number of messages that the receiver handles at a time.
        errors: Number of failed messages.
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
        """Return a JSON object: latencies as percentiles, in seconds."""
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
    """Run a function many times and time each call.

    Args:
        work: Name of the work.
        once: Called with a number, from 0; returns whether it succeeded. A `RedpollError` counts as an error.
        messages: Number of calls.
        at_once: Number of open calls at a time.
        slots: Noted in the result.

    Cancelling it cancels open calls.
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
