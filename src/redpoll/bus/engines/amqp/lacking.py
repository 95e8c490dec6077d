"""Operations that RabbitMQ does not have, and an engine on it refuses."""

# ruff: noqa: ARG002  # the arguments are those of `Engine`

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal, NoReturn

from redpoll.bus.engine import Watcher
from redpoll.bus.engines.amqp.session import Session
from redpoll.bus.records import Capabilities, Publication, Receipt, ScheduleInfo, Step, TaskInfo, Times
from redpoll.errors import Unsupported

__all__ = ["BESIDE", "REMEDIES", "WITH_HUB", "Lacking"]

BESIDE = "a hub keeps this: connect to redpoll://"
"""The remedy for what RabbitMQ lacks."""
WITH_HUB = 'have a hub beside RabbitMQ: connect(…, results="redpoll://host:port")'
"""The same, for what a hub beside it adds."""
REMEDIES: Final = (
    *((name, BESIDE) for name in ("browse", "last", "successors", "waits_in_order")),
    *((name, WITH_HUB) for name in ("results", "dedup", "fencing", "cancel", "schedule")),
)
"""The remedies for `Capabilities`."""


class Lacking:
    """See `redpoll.bus.engine.Engine`: all operations here raise `Unsupported`."""

    session: Session
    _capabilities: Capabilities

    @property
    def capabilities(self) -> Capabilities:
        """Its abilities; what the server takes away is known once it is connected."""
        if self._capabilities.hold is not None and self.session.hold is None:
            self._capabilities = replace(self._capabilities, hold=None)
        return self._capabilities

    def _unsupported(self, what: str) -> NoReturn:
        raise Unsupported("amqp", what, BESIDE)

    async def lookup(self, task: str) -> TaskInfo:
        """Raise `Unsupported`: RabbitMQ stores no outcomes."""
        self._unsupported(f"looking up the task {task}")

    async def watch(self, task: str, watcher: Watcher) -> None:
        """Raise `Unsupported`: RabbitMQ stores no outcomes."""
        self._unsupported(f"watching the task {task} later")

    async def publish_steps(
        self, steps: Sequence[Step], *, watchers: Sequence[Watcher | None] | None = None, timeout: float | None = None
    ) -> list[Receipt]:
        """Raise `Unsupported`: RabbitMQ has no transaction of an outcome and what comes after it."""
        self._unsupported("tasks that come after others")

    async def schedule(self, name: str, publication: Publication, times: Times) -> None:
        """Raise `Unsupported`: RabbitMQ keeps no schedules."""
        self._unsupported("schedules")

    async def unschedule(self, name: str) -> bool:
        """Raise `Unsupported`."""
        self._unsupported("schedules")

    async def schedules(self) -> list[ScheduleInfo]:
        """Raise `Unsupported`."""
        self._unsupported("schedules")

    async def browse(
        self,
        queue: str,
        state: Literal["ready", "delayed", "taken", "dead"] = "ready",
        limit: int = 100,
    ) -> list[TaskInfo]:
        """Raise `Unsupported`: AMQP cannot look at messages without taking them."""
        self._unsupported("browsing")

    async def move(self, source: str, target: str, limit: int | None = None) -> int:
        """Raise `Unsupported`."""
        self._unsupported("moving tasks")

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Raise `Unsupported`."""
        self._unsupported("pausing a queue")

    async def redrive(self, queue: str, tasks: Iterable[str] | None = None) -> list[str]:
        """Raise `Unsupported`: consume the queue of the dead letters, and submit them anew."""
        self._unsupported("redriving dead letters")
