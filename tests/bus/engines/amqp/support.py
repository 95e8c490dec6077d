"""A client of RabbitMQ behind a faulty network, and consumers of every kind, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Self

import redpoll
from redpoll.bus import Broadcast, Bus, Task
from redpoll.errors import NotConfirmed, RedpollError
from redpoll.testing import FaultProxy, Faults
from redpoll.testing.faults import Direction
from tests.rabbitmq import Broker

#: Seconds in which what should happen happens on a busy machine.
PATIENCE: Final = 15.0
#: Seconds of silence after which both ends of a connection take the other for dead; 1 is the least that AMQP can say.
HEARTBEAT: Final = 1
BRIEF: Final[dict[str, Any]] = {"heartbeat": HEARTBEAT}


async def until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Wait for what no event tells of; fail with its name if it does not come."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while not condition():
        assert loop.time() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


async def elapse(seconds: float) -> None:
    """Let so much time go by, where nothing is to happen in it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:  # noqa: ASYNC110
        await asyncio.sleep(end - loop.time())


async def within(awaitable: Awaitable[Any], seconds: float = PATIENCE) -> Any:
    """The result, or a failure after some seconds."""
    async with asyncio.timeout(seconds):
        return await awaitable


class Way(FaultProxy):
    """A faulty network in front of a server.

    Attributes:
        direct: What a client connects to that does not go this way.
    """

    def __init__(self, broker: Broker, **options: Any) -> None:
        super().__init__(f"127.0.0.1:{broker.server.port}", **options)
        self._broker = broker
        self.direct = broker.url

    @property
    def url(self) -> str:
        """What a client connects to that goes this way."""
        return self.direct.replace(f"127.0.0.1:{self._broker.server.port}", str(self.address))

    def cut_future(self, after: int, direction: Direction = "back") -> None:
        """Reset each new connection when so many bytes passed."""
        self.set(Faults(cut_after=after), direction, to="future")


def states(bus: Bus) -> list[str]:
    """Return a list that the states of a bus are added to."""
    seen: list[str] = []
    bus.status.watch(lambda state, _: seen.append(state.value))
    return seen


class Calls:
    """What a server answers with."""

    def __init__(self, got: list[Any]) -> None:
        self._got = got

    async def note(self, value: Any) -> Any:
        """Note a value and return it."""
        self._got.append(value)
        return value


class Consumers:
    """A worker, a loop that takes, an iteration, a server and a subscription, all of one bus, and what each got.

    Args:
        bus: Theirs.
    """

    KINDS = ("worker", "taker", "iterator", "server", "subscription")

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.got: dict[str, list[Any]] = {kind: [] for kind in self.KINDS}
        self._stack = contextlib.AsyncExitStack()
        self._numbers = 0
        self._loops: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        bus, got = self._bus, self.got

        async def work(task: Task) -> None:
            got["worker"].append(task.data)

        def hear(broadcast: Broadcast) -> None:
            got["subscription"].append(broadcast.body)

        for name in ("taker", "iterator"):
            await bus.queues.declare(name)
        await self._stack.enter_async_context(bus.tasks.worker(work, queue="worker"))
        await self._stack.enter_async_context(bus.rpc.serve("server", Calls(got["server"])))
        await self._stack.enter_async_context(bus.broadcast.subscribe(hear, subject="news.*"))
        consumer = await bus.engine.consume("iterator")
        self._stack.push_async_callback(consumer.close)
        self._loops = [asyncio.ensure_future(self._take()), asyncio.ensure_future(self._iterate(consumer))]
        for loop in self._loops:
            self._stack.push_async_callback(_ended, loop)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _take(self) -> None:
        while True:
            async with self._bus.tasks.next("taker") as task:
                self.got["taker"].append(task.data)
                task.set_result(None)

    async def _iterate(self, consumer: Any) -> None:
        async for delivery in consumer:
            self.got["iterator"].append(self._bus.payloads.unpack(delivery.envelope))
            await delivery.ack()

    async def reached(self, sender: Bus, patience: float = PATIENCE) -> None:
        """Send to each of them until it got something, and fail if one gets nothing.

        What was given to a connection of which nobody knows yet that it is dead comes again, or is lost where it is at most
        once.
        """
        self._numbers += 1
        number, loop = self._numbers, asyncio.get_running_loop()
        end = loop.time() + patience
        for queue in ("worker", "taker", "iterator"):
            sent = False
            while not sent:
                # The sender may have lost its connection too.
                with contextlib.suppress(NotConfirmed):
                    await within(sender.tasks.submit(number, queue=queue, no_reply=True, timeout=patience))
                    sent = True
        while missing := [kind for kind, got in self.got.items() if number not in got]:
            assert not any(each.done() for each in self._loops), f"a loop ended: {self._loops}"
            assert loop.time() < end, f"{missing} got nothing"
            await sender.broadcast.send(number, subject=f"news.{number}")
            if "server" in missing:
                with contextlib.suppress(RedpollError, TimeoutError):
                    await sender.rpc.call("server", "note", {"value": number}, timeout=0.5)
            await asyncio.sleep(0.02)


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@contextlib.asynccontextmanager
async def pair(way: Way, **options: Any) -> AsyncIterator[tuple[Bus, Bus]]:
    """Open a bus behind a faulty network, and one beside it."""
    async with redpoll.connect(way.url, **{**BRIEF, **options}) as bus, redpoll.connect(way.direct) as other:
        yield bus, other
