"""What the tests of nodes share: nodes on free ports, handlers that hold, waiting with a bound, a proxy that cuts."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeVar

from redpoll import Address, Closed, Message, Node, Received
from redpoll.node.hooks import PeerInfo
from tests.interop.raw import NOOP, Frame, RawLink, RawListener, handshake
from tests.ports import free_port

#: Seconds after which a test gives up; nothing here takes a tenth of it.
PATIENCE = 10.0

T = TypeVar("T")


def make(handler: Callable[[Any], Any] | None = None, **options: Any) -> Node[Any]:
    """A node on a free port of 127.0.0.1."""
    if options.get("listen") is not False:
        options.setdefault("port", free_port())
    return Node(handler, **options)


async def within(awaitable: Awaitable[T]) -> T:
    """The result, or a failure after `PATIENCE` seconds."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what no event tells of; fail with its name if it does not come."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110  # the condition lies in counters
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


async def turns(count: int = 20) -> None:
    """Let the loop go round, for what would happen at once if it happened."""
    for _ in range(count):
        await asyncio.sleep(0)


async def elapse(seconds: float) -> None:
    """Let so much time go by, where nothing is to happen in it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    await until(lambda: loop.time() >= end, "the time to go by")


class Inbox:
    """A handler that keeps what it gets, in the order of beginning, and holds each message until `gate` is set.

    Attributes:
        messages: All that were begun.
        running: How many are held now.
        most: The most that were held at a time.
        cancelled: How many of its tasks were cancelled.
    """

    def __init__(self, *, hold: bool = False, answer: Any = None) -> None:
        self.messages: list[Received[Any]] = []
        self.ended: list[Any] = []
        self.running = 0
        self.most = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self._answer = answer
        if not hold:
            self.gate.set()

    async def __call__(self, message: Received[Any]) -> Any:
        self.messages.append(message)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        self.ended.append(message.data)
        return self._answer

    @property
    def begun(self) -> list[Any]:
        """The data of the messages begun, in order."""
        return [message.data for message in self.messages]

    async def holds(self, count: int) -> None:
        """Wait until so many messages have been begun."""
        await until(lambda: len(self.messages) >= count, f"{count} messages begun, not {len(self.messages)}")


class Watch:
    """What a node's hooks tell of peers that do not answer.

    Attributes:
        told: "suspect" and "lost", in order.
        peers: Who was suspect.
        errors: Why they were lost.
    """

    def __init__(self, node: Node[Any]) -> None:
        self.told: list[str] = []
        self.peers: list[PeerInfo] = []
        self.errors: list[BaseException] = []
        node.events.peer_suspect = self._suspect
        node.events.peer_lost = self._lost

    def _suspect(self, peer: PeerInfo) -> None:
        self.told.append("suspect")
        self.peers.append(peer)

    def _lost(self, peer: PeerInfo, error: BaseException) -> None:
        self.told.append("lost")
        self.errors.append(error)


async def settle(*futures: asyncio.Future[Any]) -> None:
    """Wait for futures to end, however they do."""
    await within(asyncio.gather(*futures, return_exceptions=True))


def announcement(*, slots: int = 1, window: int = 64, window_units: int = 64, largest: int = 102_400) -> Frame:
    """The frame with which a redpoll node announces itself."""
    return Frame(struct.pack("!2sBBHIHI", b"\xf2r", 1, 0, slots, window, window_units, largest), 77, NOOP)


@contextlib.asynccontextmanager
async def raw_dialling(
    node: Node[Any], *, port: int, identity: bytes = b"I" * 16, redpoll: bool = True
) -> AsyncIterator[RawLink]:
    """A connection to a node, opened as another node would that listens at `port` (0: it does not)."""
    link = await RawLink.dial("127.0.0.1", node.address.port)
    try:
        link.write(handshake(port, identity) + (announcement().encode() if redpoll else b""))
        await link.read(18 + 27)
        yield link
    finally:
        link.close()


@contextlib.asynccontextmanager
async def raw_accepting(
    listener: RawListener, *, identity: bytes = b"I" * 16, redpoll: bool = True, **announced: int
) -> AsyncIterator[RawLink]:
    """The next connection that a node dials to `listener`, opened as another node would."""
    link = await listener.accept()
    try:
        link.write(handshake(listener.port, identity) + (announcement(**announced).encode() if redpoll else b""))
        await link.read(18 + 27)
        yield link
    finally:
        link.close()


class Proxy:
    """Passes bytes between those that dial it and a node, until it is told to hold them back or to cut.

    Attributes:
        address: Where to dial.
        answers: Set while what the node writes is passed on.
        questions: Set while what is written to the node is passed on.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server
        self.address: Address
        self.answers = asyncio.Event()
        self.questions = asyncio.Event()
        self.answers.set()
        self.questions.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = Address("tcp", "127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers += [writer, far_writer]
        self._tasks += [
            asyncio.create_task(self._pass(reader, far_writer, self.questions)),
            asyncio.create_task(self._pass(far_reader, writer, self.answers)),
        ]

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        try:
            while data := await reader.read(1 << 16):
                await gate.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def cut(self) -> None:
        """End every connection; what was held back is lost."""
        tasks, self._tasks = self._tasks, []
        writers, self._writers = self._writers, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def to(node: Node[Any], data: Any = b"x", **options: Any) -> Message[Any]:
    """A message to a node."""
    return Message(data, node.address, **options)


async def not_running(node: Node[Any], hint: str | None) -> None:
    """Everything that needs a running node says that it is not, and what to do."""
    import pytest  # not above: programs that tests start import this module

    message = Message(b"x", "127.0.0.1:2998")
    for call in (node.send, node.request):
        with pytest.raises(Closed, match="the node is not running") as caught:
            call(message)
        assert caught.value.hint == hint
    for wait in (
        node.send_many([message]),
        node.ready("127.0.0.1:2998"),
        node.check("127.0.0.1:2998"),
        node.serve_forever(),
    ):
        with pytest.raises(Closed, match="the node is not running") as caught:
            await within(wait)
        assert caught.value.hint == hint
    with pytest.raises(Closed, match="the node is not running"):
        await within(node.receive())
