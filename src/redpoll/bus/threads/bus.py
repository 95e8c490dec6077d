"""The bus for code without asyncio: ``redpoll.blocking.connect``.

Each verb of the bus waits until it is done, in any thread, and its ``future`` begins it instead. Everything is done on the
loop thread that all of `redpoll.blocking` shares; functions of the caller are called in threads, unless they are coroutine
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from redpoll.blocking.verbs import Attribute, Face, call, verb, wait
from redpoll.bus.bus import Bus, Queues, connect
from redpoll.bus.engine import Engine, Observer
from redpoll.bus.records import Capabilities
from redpoll.bus.state import EngineState, Status
from redpoll.bus.threads.messages import BlockingBroadcasts, BlockingNotifications, BlockingNotifier, BlockingRpc
from redpoll.bus.threads.resident import BusResident
from redpoll.bus.threads.tasks import BlockingTasks
from redpoll.errors import Closed

if TYPE_CHECKING:
    from redpoll.bus.threads.foreign import BlockingForeign

__all__ = ["BlockingBus", "BlockingEngine", "BlockingQueues", "BlockingStatus"]


class BlockingQueues(Face[Queues]):
    """The queues of a bus, to look at and to repair: see `redpoll.bus.Queues`."""

    declare = verb(Queues.declare)
    delete = verb(Queues.delete)
    names = verb(Queues.names)
    inspect = verb(Queues.inspect)
    browse = verb(Queues.browse)
    purge = verb(Queues.purge)
    move = verb(Queues.move)
    pause = verb(Queues.pause)
    resume = verb(Queues.resume)
    redrive = verb(Queues.redrive)


class BlockingEngine(Face[Engine]):
    """The engine, for operations that no pattern covers: see `redpoll.bus.Engine`, whose other methods are for its loop."""

    _home: BusResident

    lookup = verb(Engine.lookup)
    schedules = verb(Engine.schedules)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call a plain function with what happens in its queues, in a thread of the bus. See `Engine.observe`.

        Callbacks of a bus wait for each other: behind one that does not keep up, some are left out, with a warning.

        Returns:
            A function that ends this.
        """
        end = call(self._home, self._target.observe, self._home.soon(observer, "an observer of the engine"))
        return partial(call, self._home, end)


class BlockingStatus(Face[Status]):
    """The state of the engine and its reason: see `redpoll.bus.Status`."""

    _home: BusResident

    state = Attribute[EngineState]()
    """The state of the engine."""

    reason = Attribute[str]()
    """The reason, or ""."""

    wait_for = verb(Status.wait_for)

    def watch(self, callback: Callable[[EngineState, str], object]) -> Callable[[], None]:
        """Call a plain function with (state, reason) at each change, in a thread of the bus.

        Returns:
            A function that ends this.
        """
        return self._target.watch(self._home.soon(callback, "a watch of the engine's state"))


class BlockingBus:
    """Tasks, calls, broadcasts and notifications on one engine, for threads. Made by `redpoll.blocking.connect`.

    Every verb of `redpoll.bus.Bus` is here, by the same name and with the same arguments; it waits until it is done, and may
    be used in any thread. Its ``future`` begins it instead: ``bus.tasks.run.future(job)`` is a `concurrent.futures.Future`.
    Plain functions (handlers, endpoints, callbacks) are called in threads, and may call the bus; coroutine functions run on
    the event loop, where waiting raises `UsageError`.

    Ctrl-C ends all waiting at once: a task that was being taken goes back to its queue. A child of the process
    (`os.fork`) makes a bus of its own.

    Args:
        bus: The bus on the loop.

    Attributes:
        engine: The engine, for operations that no pattern covers.
        queues: To look at queues and to repair them.
        rpc: To call and to serve.
        broadcast: To send broadcasts and to receive them.
        tasks: Work that is done once.
        notifications: To listen to notifications.
        status: The state of the engine and its reason.
    """

    def __init__(self, bus: Bus) -> None:
        self._home = home = BusResident(bus)
        self.engine = BlockingEngine(home, bus.engine)
        self.queues = BlockingQueues(home, bus.queues)
        self.rpc = BlockingRpc(home, bus.rpc)
        self.broadcast = BlockingBroadcasts(home, bus.broadcast)
        self.tasks = BlockingTasks(home, bus.tasks)
        self.notifications = BlockingNotifications(home, bus.notifications)
        self.status = BlockingStatus(home, bus.status)

    @classmethod
    def connect(cls, url: str, **options: Any) -> Self:
        """See `redpoll.blocking.connect`."""
        return cls(connect(url, **options))

    def __repr__(self) -> str:
        return repr(self._home)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the engine."""
        return self._home.bus.capabilities

    @property
    def state(self) -> EngineState:
        """The state of the engine."""
        return self._home.bus.state

    @property
    def foreign(self) -> BlockingForeign:
        """Exchanges and queues that are not redpoll's, of an engine that has such: ``amqp://``.

        Raises:
            Unsupported: The engine has none.
        """
        # Imported where it is used: other engines do without.
        from redpoll.bus.threads.foreign import BlockingForeign

        return BlockingForeign(self._home, self._home.bus.foreign)

    def healthy(self) -> bool:
        """Return True if all workers, servers and subscriptions are active, and the engine answers."""
        try:
            return wait(self._home, self._home.bus.healthy)
        except Closed:
            return False

    def notifier(self, publisher: str, **options: Any) -> BlockingNotifier:
        """Return a notifier of a publisher. See `redpoll.bus.notifications.Notifications.notifier`."""
        return self.notifications.notifier(publisher, **options)

    def close(self, drain: float | None = 0.0) -> None:
        """Stop: take no more work, wait for running handlers, give the rest back, disconnect.

        Args:
            drain: Seconds to wait for running handlers; None is no limit.

        A handler in a thread cannot be stopped: it continues, and its outcome is lost. Waiting calls in other threads
        raise `Closed`. Closing twice does nothing. Ctrl-C ends the draining, and comes out when the bus is closed; a
        second one at once, and it is closed all the same. A signal handler may call it, as `QueueNode.stop`.

        Raises:
            ConfigError: `drain` is no time.
            UsageError: This is the thread of the event loop.
        """
        self._home.close(drain)

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            DialFailed: The engine was not reached in time.
            UsageError: It was entered before; or this is the thread of the event loop.
        """
        self._home.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, without waiting for running handlers."""
        self._home.close(0.0)
