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
    """A task, a call, a stream or a broadcast on its way through the middleware.

    Attributes:
        kind: Its kind.
        name: Name of the function: "queue:name" of a task, "target.name" of a call or a stream, the pattern of a broadcast.
        arguments: The arguments by name. Where it is handled these are converted; a change reaches the function.
        options: The options of submitting, as of `Tasks.submit`, or of calling. A change has effect where it is submitted.
        task: The task that is handled; None otherwise.
    """

    kind: Literal["task", "call", "stream", "broadcast"]
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

    To see the values of a stream, a method returns an asynchronous generator of its own, around the one that it was given::

        async def handle(self, work, proceed):
            result = await proceed(work)
            return self.counted(result) if work.kind == "stream" else result


        async def counted(self, values):
            async with aclosing(values):
                async for each in values:
                    self.count += 1
                    yield each
    """

    async def submit(self, work: Work, proceed: Proceed) -> Any:
        """Submit a task, call, or begin a stream; chains and groups do not come here.

        Returns:
            The `Handle` of a task, the answer of a call, None of a cast; an asynchronous generator of a stream's values, none
            of which was asked for yet.
        """
        return await proceed(work)

    async def handle(self, work: Work, proceed: Proceed) -> Any:
        """Handle a task, a call, a stream or a broadcast.

        Returns:
            Its result; an asynchronous generator of a stream's values, of which none was made yet.
        """
        return await proceed(work)


def chain(middleware: Iterable[Middleware], way: Literal["submit", "handle"], last: Proceed) -> Proceed:
    """Return what goes through all that override a method, and ends in a function."""
    for each in reversed([each for each in middleware if getattr(type(each), way) is not getattr(Middleware, way)]):
        last = partial(_step, getattr(each, way), last)
    return last


async def _step(method: Callable[[Work, Proceed], Awaitable[Any]], proceed: Proceed, work: Work) -> Any:
    return await method(work, proceed)
