"""What stopping owes to those who send."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Closed, Message, Node, Received, ShuttingDown
from tests.interop.raw import REQ_ACK, Frame
from tests.node.support import Inbox, make, raw_dialling, settle, to, turns, until, within

pytestmark = pytest.mark.asyncio


async def test_what_nobody_pulls_does_not_hold_up_the_stop() -> None:
    """A node that nobody pulls from refuses what waits as it stops, as not begun, instead of draining for ever."""
    server: Node[bytes] = Node(unclaimed_timeout=3600)
    client: Node[bytes] = Node(listen=False, timeout=None)
    async with client, server:
        sends = [client.send(Message(b"x", server.address)) for _ in range(3)]
        await client.ready(server.address)
        async with server.take() as first:
            assert first.data == b"x"
        await sends[0]
        await server.stop(drain=None)
        for send in sends[1:]:
            with pytest.raises(ShuttingDown) as refused:
                await send
            assert refused.value.sent is False


class Held:
    """A handler that, once it may go on, does what it is given to do with its message."""

    def __init__(self, work: Any) -> None:
        self.begun: list[Received[Any]] = []
        self.gate = asyncio.Event()
        self._work = work

    async def __call__(self, message: Received[Any]) -> Any:
        self.begun.append(message)
        await self.gate.wait()
        return await self._work(message)

    async def stop(self, node: Node[Any], count: int = 1) -> None:
        """Stop the node while its handler works, which goes on when the stop has begun."""
        await until(lambda: len(self.begun) >= count, "the handler to begin")
        stop = asyncio.ensure_future(node.stop())
        await turns()
        self.gate.set()
        await within(stop)


async def test_libchirp_gets_its_answer_while_the_node_drains() -> None:
    """What a handler that was begun before the stop returns is sent to a libchirp node, over the link it has."""

    async def work(_: Received[bytes]) -> bytes:
        return b"pong"

    handler = Held(work)
    server = make(handler)
    await server.start()
    async with raw_dialling(server, port=4444, redpoll=False) as link:
        link.send(Frame(b"i" * 16, 1, REQ_ACK, b"", b"ping"))
        await until(lambda: handler.begun, "the handler to begin")
        stop = asyncio.ensure_future(server.stop())
        await turns()
        handler.gate.set()
        frames = [await link.read_frame(), await link.read_frame()]
        (answer,) = [frame for frame in frames if frame.data]
        assert answer.data == b"pong"
        link.acknowledge(answer)
        await within(stop)


async def test_a_handler_forwards_while_the_node_drains() -> None:
    """A handler that was begun before the stop may ask a node that this one has no link to."""
    async with make(Inbox(answer=b"done")) as worker, make() as client:

        async def work(message: Received[bytes]) -> bytes:
            answer: bytes = (await message.node.request(message.forward(worker.address))).data
            return answer

        handler = Held(work)
        server = make(handler)
        await server.start()
        answer = client.request(to(server))
        await handler.stop(server)
        assert (await within(answer)).data == b"done"


@pytest.mark.parametrize("listens", [True, False])
async def test_a_handler_sends_to_whom_it_serves_while_the_node_drains(listens: bool) -> None:
    """A handler that was begun before the stop may send its peer messages, also to one that cannot be dialled."""

    async def work(message: Received[bytes]) -> None:
        for number in range(3):
            await message.node.send(message.reply(b"%d" % number))

    handler, back = Held(work), Inbox()
    async with make(back, **({} if listens else {"listen": False})) as client:
        server = make(handler)
        await server.start()
        sending = client.send(to(server))
        await handler.stop(server)
        await within(sending)
    assert back.begun == [b"0", b"1", b"2"]


async def test_what_anybody_sends_while_the_node_drains_is_waited_for() -> None:
    """A send during the drain is sent, and holds the stop up; after the drain it is Closed."""

    async def work(_: Received[bytes]) -> None:
        sends.append(server.send(to(other, b"last words")))

    sends: list[asyncio.Future[None]] = []
    slow = Inbox(hold=True)
    handler = Held(work)
    async with make(slow) as other, make() as client:
        server = make(handler)
        await server.start()
        first = client.send(to(server))
        await until(lambda: handler.begun, "the handler to begin")
        stop = asyncio.ensure_future(server.stop())
        await turns()
        handler.gate.set()
        await slow.holds(1)
        assert not stop.done()
        slow.gate.set()
        await within(stop)
        await settle(first, *sends)
        assert [first.exception(), sends[0].exception()] == [None, None]
        with pytest.raises(Closed):
            server.send(to(other))


async def test_a_worker_loop_is_drained() -> None:
    """A consumer at work between two takes gets what waits, as a handler would."""
    server, done = make(), []  # type: Node[bytes], list[bytes]
    await server.start()
    gate = asyncio.Event()

    async def worker() -> None:
        while True:
            async with server.take(timeout=None) as message:
                await gate.wait()
                done.append(message.data)

    async with make() as client:
        working = asyncio.ensure_future(worker())
        sends = [client.send(to(server, b"%d" % number)) for number in range(3)]
        await until(lambda: server.stats().received == 3, "all messages")
        stop = asyncio.ensure_future(server.stop())
        await turns()
        gate.set()
        await within(stop)
        await settle(*sends, working)
        assert done == [b"0", b"1", b"2"]
        assert [send.exception() for send in sends] == [None, None, None]
        assert isinstance(working.exception(), Closed)
