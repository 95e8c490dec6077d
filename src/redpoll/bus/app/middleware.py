"""Middleware: functions around submitting, and around handling, of all functions of an app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from redpoll.bus.tasks.task import Task

__all__ = ["Middleware", "Proceed", "Work", "chain"]


@dataclass(slots=True)
class Work:
    """A task, a call or a broadcast on its way through the middleware.

    Attributes:
        kind: Its kind.
        name: Name of the function: "queue:name" of a task, "target.name" of a call, the pattern of a broadcast.
        arguments: The arguments by name. Where it is handled these are converted; a change reaches the function.
        options: The options of submitting, as of `Tasks.submit`, or of calling. A change has effect where it is submitted.
        task: The task that is handled; None otherwise.
    """

    kind: Literal["task", "call", "broadcast"]
    name: str
    arguments: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    task: Task | None = None


Proceed = Callable[[Work], Awaitable[Any]]
"""Calls the next middleware, and in the end the function or the bus; returns the result of that."""


class Middleware:
    """Something around submitting and handling; a subclass overrides one method or both.

    The first in the list of an app is the outermost. What it raises is raised to the submitter, or is the error of the
    work; it may return without proceeding, and may proceed more than once.
    """

    async def submit(self, work: Work, proceed: Proceed) -> Any:
        """Submit a task (the result is its `Handle`), or call (the result is the answer); not map, chain or stream."""
        return await proceed(work)

    async def handle(self, work: Work, proceed: Proceed) -> Any:
        """Handle a task, a call or a broadcast; the result is its result, and the asynchronous generator of a stream."""
        return await proceed(work)


def chain(middleware: Iterable[Middleware], way: Literal["submit", "handle"], last: Proceed) -> Proceed:
    """Return what goes through all that override a method, and ends in a function."""
    for each in reversed([each for each in middleware if getattr(type(each), way) is not getattr(Middleware, way)]):
        last = partial(_step, getattr(each, way), last)
    return last


async def _step(method: Callable[[Work, Proceed], Awaitable[Any]], proceed: Proceed, work: Work) -> Any:
    return await method(work, proceed)
