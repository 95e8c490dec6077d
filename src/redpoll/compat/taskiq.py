"""A broker and a result backend of taskiq, on any engine and on those that keep results.

``broker = RedpollBroker("redpoll://127.0.0.1:5683").with_result_backend(RedpollResultBackend("redpoll://127.0.0.1:5683"))``

A task stays with its worker until taskiq acknowledges it, however long that takes; if the worker dies, another one has it.
The labels `priority` and `delay` (in seconds) of a task are those of `Engine.publish`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Final, TypeVar

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError

from redpoll.bus.bus import Bus, connect
from redpoll.bus.engine import Delivery
from redpoll.bus.envelope import Envelope
from redpoll.bus.lasting import LastingConsumer
from redpoll.bus.records import QueueSpec
from redpoll.checks import integer, require
from redpoll.compat.results import fetch, store
from redpoll.errors import Closed

__all__ = ["RedpollBroker", "RedpollResultBackend"]

ResultT = TypeVar("ResultT")

_DAY: Final = 86_400.0


class RedpollBroker(AsyncBroker):  # type: ignore[misc]  # its types are not looked at
    """A broker: one queue of an engine.

    Args:
        url: The URL of the engine.
        queue: The queue; it is declared with these settings, or with the defaults under this name, without a limit of
            attempts.
        prefetch: Tasks that a worker has at most, those that it has not begun included; at least taskiq's
            ``--max-async-tasks`` for these to be used.
        **options: The options of `redpoll.connect`.

    Raises:
        ConfigError: A value cannot be.
    """

    def __init__(self, url: str, queue: QueueSpec | str = "taskiq", *, prefetch: int = 100, **options: Any) -> None:
        super().__init__()
        require("prefetch", prefetch, integer(1, 2**20))
        self.queue = queue if isinstance(queue, QueueSpec) else QueueSpec(queue, max_attempts=None)
        self._prefetch = prefetch
        self._connect: Callable[[], Bus] = lambda: connect(url, **options)
        self._bus: Bus | None = None

    async def startup(self) -> None:
        """Connect, and declare the queue; a failure leaves it disconnected.

        Raises:
            DialFailed: The engine was not reached in time.
            SpecConflict: The queue is there with other settings.
        """
        bus = self._connect()
        await bus.__aenter__()
        self._bus = bus
        try:
            await bus.engine.declare(self.queue)
            await super().startup()
        except BaseException:
            await self._close()
            raise

    async def shutdown(self) -> None:
        """Disconnect; tasks that were not acknowledged go back to the queue."""
        try:
            await super().shutdown()
        finally:
            await self._close()

    async def _close(self) -> None:
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Submit a task; it is in the queue when this returns, as surely as the engine can confirm that.

        Raises:
            NotSent: It was not taken.
            NotConfirmed: It may have been taken.
        """
        await _entered(self._bus, "broker").engine.publish(
            Envelope("raw", message.message, {"id": message.task_id, "name": message.task_name}),
            queue=self.queue.name,
            priority=int(message.labels.get("priority", 0)),
            delay=float(message.labels.get("delay", 0)),
            keep=False,
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield the tasks of the queue as they come."""
        engine = _entered(self._bus, "broker").engine

        async def begin() -> Any:
            await engine.declare(self.queue)
            return await engine.consume(self.queue.name, credit=self._prefetch)

        consumer = await LastingConsumer(engine.clock, self.queue.name, begin).open(sink=False)
        try:
            async for delivery in consumer:
                yield AckableMessage(data=bytes(delivery.envelope.body), ack=partial(_acknowledge, delivery))
        finally:
            await consumer.close()


def _acknowledge(delivery: Delivery) -> None:
    # Not awaited: it is confirmed in its time, and presented again after a reconnect.
    delivery.ack()


class RedpollResultBackend(AsyncResultBackend[ResultT]):  # type: ignore[misc]  # its types are not looked at
    """A result backend, on an engine that keeps the last events of subjects: a hub.

    Args:
        url: The URL of the engine.
        expires: Seconds for which results and progress are kept, within what the engine keeps; None is no limit.
        **options: The options of `redpoll.connect`.
    """

    def __init__(self, url: str, *, expires: float | None = _DAY, **options: Any) -> None:
        self._expires = expires
        self._connect: Callable[[], Bus] = lambda: connect(url, **options)
        self._bus: Bus | None = None

    async def startup(self) -> None:
        """Connect.

        Raises:
            DialFailed: The engine was not reached in time.
        """
        bus = self._connect()
        await bus.__aenter__()
        self._bus = bus

    async def shutdown(self) -> None:
        """Disconnect."""
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.close()

    async def _store(self, what: str, task_id: str, value: str) -> None:
        engine = _entered(self._bus, "result backend").engine
        await store(engine, f"taskiq.{what}.{task_id}", value.encode(), self._expires)

    async def _fetch(self, what: str, task_id: str) -> bytes | None:
        return (await fetch(_entered(self._bus, "result backend").engine, [f"taskiq.{what}.{task_id}"]))[0]

    async def set_result(self, task_id: str, result: TaskiqResult[ResultT]) -> None:
        """Store a result, as JSON.

        Raises:
            PydanticSerializationError: It has no JSON.
        """
        await self._store("results", task_id, result.model_dump_json())

    async def is_result_ready(self, task_id: str) -> bool:
        """Return True if there is a result."""
        return await self._fetch("results", task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[ResultT]:
        """Return a result.

        Raises:
            ResultGetError: There is none.
        """
        value = await self._fetch("results", task_id)
        if value is None:
            raise ResultGetError
        result: TaskiqResult[ResultT] = TaskiqResult.model_validate_json(value)
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store the progress of a task."""
        await self._store("progress", task_id, progress.model_dump_json())

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the progress of a task, if there is any."""
        value = await self._fetch("progress", task_id)
        return None if value is None else TaskProgress.model_validate_json(value)


def _entered(bus: Bus | None, what: str) -> Bus:
    if bus is None:
        raise Closed(what, "call startup() first")
    return bus
