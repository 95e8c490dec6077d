"""The bus of a program: one engine, and the patterns on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from redpoll.bus.awaitables import close_all
from redpoll.bus.broadcast import Broadcasts
from redpoll.bus.engine import Engine
from redpoll.bus.envelope import Payloads
from redpoll.bus.failures import AllowedExceptions
from redpoll.bus.notifications.notifications import Notifications
from redpoll.bus.notifications.notifier import Notifier
from redpoll.bus.notifications.records import QUEUES, NotificationOptions
from redpoll.bus.records import Capabilities, QueueInfo, QueueSpec, TaskInfo
from redpoll.bus.rpc.rpc import Rpc, RpcOptions
from redpoll.bus.state import EngineState, Status
from redpoll.bus.tasks import Tasks
from redpoll.bus.urls import EngineURL, find_engine
from redpoll.checks import flag, require, seconds
from redpoll.errors import BadPayload, ConfigError, EncodeError, RedpollError, ResultTooLarge, Unsupported, UsageError
from redpoll.platforms import forks
from redpoll.serializers.base import Serializer

if TYPE_CHECKING:
    from redpoll.bus.engines.amqp.foreign.foreign import Foreign

__all__ = ["Bus", "Queues", "connect"]

#: The errors of the library for results that cannot be sent, and payloads that cannot be decoded.
_OWN: Final = (BadPayload, EncodeError, ResultTooLarge)
#: Seconds that an engine has to answer a look at its health.
_ANSWER: Final = 5.0


class Queues:
    """The queues of a bus, to look at and to repair: ``bus.queues``.

    Those of notifications (``notifications:…``) are at the engine of notifications, where that is another one.

    Args:
        engine: Their engine.
        others: That of notifications; None is the same.
    """

    def __init__(self, engine: Engine, others: Engine | None = None) -> None:
        self._engine = engine
        self._others = engine if others is None else others

    def _of(self, queue: str) -> Engine:
        """Return the engine of a queue."""
        return self._others if str(queue).startswith(QUEUES) else self._engine

    async def declare(self, spec: QueueSpec | str, *, update: bool = False) -> None:
        """Make sure that a queue is there. See `Engine.declare`; a name stands for the defaults."""
        found = spec if isinstance(spec, QueueSpec) else QueueSpec(spec)
        await self._of(found.name).declare(found, update=update)

    async def delete(self, queue: str, *, if_unused: bool = False) -> None:
        """Delete a queue with all that is in it, and its schedules. See `Engine.delete`."""
        await self._of(queue).delete(queue, if_unused=if_unused)

    async def names(self) -> list[str]:
        """The names of all queues."""
        engines = [self._engine] if self._others is self._engine else [self._engine, self._others]
        return [name for engine in engines for name in await engine.queues() if self._of(name) is engine]

    async def inspect(self, queue: str) -> QueueInfo:
        """Return the contents and counters of a queue. See `Engine.inspect`."""
        return await self._of(queue).inspect(queue)

    async def browse(
        self, queue: str, state: Literal["ready", "delayed", "taken", "dead"] = "ready", limit: int = 100
    ) -> list[TaskInfo]:
        """Look at tasks. See `Engine.browse`."""
        return await self._of(queue).browse(queue, state, limit)

    async def purge(self, queue: str, state: Literal["ready", "dead"] = "ready") -> int:
        """Remove the tasks that wait, or the dead letters. See `Engine.purge`."""
        return await self._of(queue).purge(queue, state)

    async def move(self, source: str, target: str, limit: int | None = None) -> int:
        """Move ready tasks to another queue. See `Engine.move`."""
        return await self._of(source).move(source, target, limit)

    async def pause(self, queue: str) -> None:
        """Hand nothing out."""
        await self._of(queue).pause(queue)

    async def resume(self, queue: str) -> None:
        """Hand out again."""
        await self._of(queue).pause(queue, False)

    async def redrive(self, queue: str, tasks: Iterable[str] | None = None) -> list[str]:
        """Put dead letters back into their queue. See `Engine.redrive`."""
        return await self._of(queue).redrive(queue, tasks)


class Bus:
    """Tasks, calls, broadcasts and notifications on one engine. Made by `connect`.

    It lives on the event loop that runs where it is entered, and is used there.

    Args:
        engine: The engine.
        payloads: The serializers.
        exceptions: The exceptions of tasks that are rebuilt with their own types.
        rpc: The options of calls.
        notifications: The options of notifications.
        others: The engine of notifications, where that is another one.

    Attributes:
        engine: The engine, for operations that no pattern covers.
        engines: That engine, and the one of notifications, if that is another one.
        payloads: The serializers.
        queues: To look at queues and to repair them.
        rpc: To call and to serve.
        broadcast: To send broadcasts and to receive them.
        tasks: Work that is done once.
        notifications: To listen to notifications; and `notifier`, to send them.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        *,
        exceptions: Iterable[type[Exception] | str] = (),
        rpc: RpcOptions | None = None,
        notifications: NotificationOptions | None = None,
        others: Engine | None = None,
    ) -> None:
        self.engine = engine
        self.engines: tuple[Engine, ...] = (engine,) if others is None else (engine, others)
        self.payloads = payloads
        self.queues = Queues(engine, others)
        self.rpc = Rpc(engine, payloads, RpcOptions() if rpc is None else rpc)
        self.broadcast = Broadcasts(engine, payloads)
        if isinstance(exceptions, str | type):
            raise ConfigError("exceptions", exceptions, "must be a list of classes and names of modules")
        self.tasks = Tasks(engine, payloads, AllowedExceptions((*_OWN, *exceptions), builtins=False))
        options = NotificationOptions() if notifications is None else notifications
        self.notifications = Notifications(self.engines[-1], payloads, options)
        self._entered = False
        self._fork = forks.number
        self._closed: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Bus {self.engine!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the engine."""
        return self.engine.capabilities

    @property
    def state(self) -> EngineState:
        """The state of the engine."""
        return self.engine.status.state

    @property
    def status(self) -> Status:
        """The state of the engine and its reason; it can be watched and awaited."""
        return self.engine.status

    @property
    def foreign(self) -> Foreign:
        """Exchanges and queues that are not redpoll's, of an engine that has such: ``amqp://``.

        Raises:
            Unsupported: The engine has none.
        """
        found: Foreign | None = getattr(self.engine, "foreign", None)
        if found is None:
            raise Unsupported(self.capabilities.engine, "exchanges and queues of others", "connect to amqp://")
        return found

    async def healthy(self) -> bool:
        """Return True if all workers, servers and subscriptions are active, and the engine answers within 5 s."""
        try:
            async with asyncio.timeout(_ANSWER):
                for engine in self.engines:
                    if engine.status.state is not EngineState.READY:
                        return False
                    await engine.queues()
        except (RedpollError, TimeoutError):
            return False
        return all(each.in_place for each in (self.tasks, self.rpc, self.broadcast, self.notifications))

    def notifier(
        self, publisher: str, *, topics: Sequence[str] | None = None, retry: int | EllipsisType | None = ...
    ) -> Notifier:
        """Return a notifier of a publisher. See `Notifications.notifier`."""
        return self.notifications.notifier(publisher, topics=topics, retry=retry)

    async def close(self, drain: float | None = 0.0) -> None:
        """Stop: take no more work, wait for running handlers, give the rest back, disconnect.

        Args:
            drain: Seconds to wait for running handlers, and for a hub that is away, of `redpoll://` or of ``results=``, to
                take what they returned; None is no limit, and 5 s for the hub.

        A second call waits for the first. Cancelled, it closes without waiting for running handlers. In a forked child it
        does nothing.
        """
        if self._fork != forks.number:
            return
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        problem: BaseException | None = None
        end = loop.time() + (drain or 0.0)
        try:
            # Patterns first: they record outcomes on the engine.
            interrupted: list[Tasks | Rpc | Broadcasts | Notifications] = []
            for pattern in (self.tasks, self.rpc, self.broadcast, self.notifications):
                try:
                    await pattern.close(drain)
                except asyncio.CancelledError as error:
                    drain, problem = 0.0, error
                    interrupted.append(pattern)
                except BaseException as error:  # noqa: BLE001  # the others are closed all the same
                    problem = problem or error
                # One time for all of them.
                drain = drain and max(0.0, end - loop.time())
            try:
                await close_all(engine.close(drain) for engine in self.engines)
            finally:
                # Their consumers are closed by now. Others may wait for the end of a server.
                for pattern in interrupted:
                    await pattern.close()
            if problem is not None:
                raise problem
        finally:
            self._closed.set_result(None)

    async def __aenter__(self) -> Self:
        """Connect, on the running loop.

        Raises:
            DialFailed: The engine was not reached in time.
            UsageError: It was entered before.
        """
        if self._entered:
            raise UsageError("this bus was entered before", "connect again for another one")
        self._entered = True
        for engine in self.engines:
            try:
                await engine.__aenter__()
            except BaseException:
                await self.engine.close()
                raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close, without waiting for running handlers."""
        await self.close()


def connect(
    url: str,
    *,
    wait: bool | None = None,
    connect_timeout: float | None = None,
    serializer: str | Serializer[Any] = "msgpack",
    also: Iterable[str | Serializer[Any]] = (),
    exceptions: Iterable[type[Exception] | str] = (),
    rpc: RpcOptions | None = None,
    notifications: str | NotificationOptions | None = None,
    **options: Any,
) -> Bus:
    """Make a bus; nothing is connected before it is entered.

    ``async with redpoll.connect("memory://") as bus: ...``

    Args:
        url: The engine and its place: ``memory://`` is private to this bus, ``memory://name`` is shared by all of that
            name in this process. Other packages add engines by the entry point group
            ``redpoll.engines``.
        wait: True to enter the bus without a connection: it is made in the background then, and retried
            (`EngineState.CONNECTING`). Engines take False for None. Operations then wait without a limit while it is away.
        connect_timeout: Seconds after which entering fails with `DialFailed`. Engines take 5 for None.
        serializer: The serializer that encodes payloads.
        also: More serializers that decode payloads, beside msgpack, json, raw and buffer.
        exceptions: Classes that are raised here as themselves when a task's handler raised them, and names of modules for
            all of theirs that are imported already; all others are a `RemoteError`.
        rpc: The options of calls.
        notifications: The options of notifications; or the URL of another engine for them, which the options name too.
        **options: The engine's own; they can stand in the URL as well, and those given here count. They are for the engine of
            notifications too, if that is of the same scheme.

    Raises:
        ConfigError: There is no such engine, serializer or option, or a value cannot be.
    """
    where = EngineURL.parse(url)
    payloads = Payloads(serializer, also)
    for name, value, check in (("wait", wait, flag), ("connect_timeout", connect_timeout, seconds)):
        if value is not None:
            require(name, value, check)
            options[name] = value
    apart = NotificationOptions(url=notifications) if isinstance(notifications, str) else notifications
    others = None
    if apart is not None and apart.url is not None:
        place = EngineURL.parse(apart.url)
        others = find_engine(place.scheme)(place, options if place.scheme == where.scheme else {})
    engine = find_engine(where.scheme)(where, options)
    return Bus(engine, payloads, exceptions=exceptions, rpc=rpc, notifications=apart, others=others)
