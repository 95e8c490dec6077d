"""What stopping owes to those who send."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import Closed, Message, NoAnswer, Node, NotConfirmed, Received, ShuttingDown
from redpoll.testing import Faults
from redpoll.testing.plugin import FaultsFactory, NodeFactory
from tests.interop.raw import REQ_ACK, Frame, raw_listener
from tests.node.support import PATIENCE, Inbox, make, raw_accepting, raw_dialling, settle, to, turns, until, within
from tests.ports import free_port

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


@pytest.mark.parametrize("released", ["before", "after"])
async def test_an_answer_behind_its_release_is_waited_for(released: str) -> None:
    """A request whose work is done before its answer comes has it while its node drains, done before or after the stop."""
    messages: list[Received[bytes]] = []
    gate = asyncio.Event()

    async def handler(message: Received[bytes]) -> None:
        messages.append(message)
        await gate.wait()
        await message.respond(b"answer")

    async with make(handler) as server:
        client = make()
        await client.start()
        request = client.request(to(server))
        await until(lambda: messages, "the handler")
        if released == "before":
            messages[0].release()
            await until(lambda: not client.stats().in_flight, "the release")
        stop = asyncio.ensure_future(client.stop())
        await turns()
        messages[0].release()
        await until(lambda: not client.stats().in_flight, "the release")
        await turns()
        gate.set()
        assert (await within(request)).data == b"answer"
        await within(stop)


async def test_an_answer_that_does_not_come_holds_up_no_stop_beyond_its_drain() -> None:
    """When the drain is over a request whose work is done fails as unanswered, and the node stops."""
    async with make(lambda message: message.release(), auto_release=False) as server:
        client = make()
        await client.start()
        request = client.request(to(server))
        await until(lambda: server.stats().received and not client.stats().in_flight, "the release")
        await within(client.stop(0.05))
        with pytest.raises(NoAnswer):
            await within(request)


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


async def test_what_comes_before_the_goodbye_goes_to_the_next_node() -> None:
    """A node that stops and has still to send to a peer takes no message of that one, which waits for its successor."""
    port = free_port()
    client_inbox, first, second = Inbox(hold=True), Inbox(), Inbox(answer=b"answer")
    async with make(client_inbox, window=1, fragment_size=4096) as client:
        server = make(first, port=port, timeout=None)
        await server.start()
        sends = [server.send(to(client, b"%d" % number)) for number in range(5)]
        await client_inbox.holds(1)
        stop = asyncio.ensure_future(server.stop())
        await turns()
        late: list[asyncio.Future[Any]] = [
            client.send(Message(b"late", f"127.0.0.1:{port}"), timeout=None),
            client.send(Message(bytes(20_000), f"127.0.0.1:{port}"), timeout=None),
            client.request(Message(b"ask", f"127.0.0.1:{port}"), timeout=None),
        ]
        await until(lambda: server.stats().bytes_received > 20_000, "the messages")
        client_inbox.gate.set()
        await within(stop)
        await within(asyncio.gather(*sends))
        async with make(second, port=port):
            await within(asyncio.gather(*late))
        assert (len(client_inbox.ended), first.begun) == (5, [])
        assert sorted(second.begun, key=len) == [b"ask", b"late", bytes(20_000)]


@pytest.mark.parametrize("works", [False, True], ids=["idle", "at work"])
async def test_a_link_whose_opening_is_under_way(
    redpoll_node: NodeFactory, redpoll_faults: FaultsFactory, *, works: bool
) -> None:
    """Who has opened a link that the node, which stops, has not heard of yet loses nothing that it sends over it."""
    port = free_port()
    handler, second = Inbox(hold=True), Inbox()
    server = redpoll_node(handler, port=port)
    await server.start()
    async with redpoll_faults(server) as proxy, redpoll_node() as client, redpoll_node() as other:
        work = [other.send(to(server))] if works else []
        await handler.holds(len(work))
        proxy.set(Faults(delay=0.25), "forward")
        futures = [client.send(Message(bytes([number]), proxy.address), timeout=None) for number in range(5)]
        await until(lambda: client.stats().in_flight == 5, "the messages to be on their way")
        stop = asyncio.ensure_future(server.stop())
        if works:
            await until(lambda: not client.stats().in_flight, "them to come back")
        handler.gate.set()
        await within(asyncio.gather(stop, *work))
        async with redpoll_node(second, port=port):
            await within(asyncio.gather(*futures))
    assert len(handler.begun) == works
    assert second.begun == [bytes([number]) for number in range(5)]


#: Turns of the loop after which a stop begins: before there is a link, in its opening, amid the messages, after the last.
MOMENTS = (*range(20), 25, 30, 40, 60, 100)


class Slow:
    """A handler that takes a few turns, and notes what it ended."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []

    async def __call__(self, message: Received[bytes]) -> bytes:
        number = message.data[0]
        self.begun.append(number)
        await turns(number % 4)
        self.ended.append(number)
        return message.data[:1]


def submit(client: Node[Any], address: str) -> list[asyncio.Future[Any]]:
    """Sends and requests, some of them large enough to travel in pieces, more than a window of them."""
    bodies = [bytes([number]) + bytes(20_000 if number % 5 == 4 else 10) for number in range(15)]
    return [(client.request if body[0] % 3 else client.send)(Message(body, address), timeout=None) for body in bodies]


async def test_a_receiver_that_stops_at_any_moment_neither_loses_nor_repeats() -> None:
    """What it began it finishes, and what it did not goes to who listens there next: each once, and no sender sees it."""
    for moment in MOMENTS:
        port = free_port()
        first, second = Slow(), Slow()
        async with make(fragment_size=4096) as client:
            server = make(first, port=port, window=4, slots=2, fragment_size=4096)
            await server.start()
            futures = submit(client, f"127.0.0.1:{port}")
            await turns(moment)
            await within(server.stop())
            assert sorted(first.begun) == sorted(first.ended)
            async with make(second, port=port):
                await within(asyncio.gather(*futures))
        assert sorted(first.ended + second.ended) == list(range(15)), f"stopped after {moment} turns"


async def test_a_sender_that_stops_at_any_moment_neither_loses_nor_repeats() -> None:
    """All that was sent before the stop is done once, and its sends and requests succeed."""
    for moment in MOMENTS:
        handler = Slow()
        async with make(handler, window=4, slots=2, fragment_size=4096) as server:
            client = make(fragment_size=4096)
            await client.start()
            futures = submit(client, str(server.address))
            await turns(moment)
            await within(client.stop())
            assert all(future.done() for future in futures)
            assert [future.exception() for future in futures] == [None] * 15
        assert sorted(handler.ended) == sorted(handler.begun) == list(range(15)), f"stopped after {moment} turns"


@pytest.mark.parametrize("size", [100_000, 30_000_000])
async def test_libchirp_that_reads_nothing_holds_up_no_stop(size: int) -> None:
    """A node without a limit for its drain stops when what libchirp does not read is past its time."""
    node = make(listen=False, timeout=0.3)
    await node.start()
    async with raw_listener() as listener:
        address = f"127.0.0.1:{listener.port}"
        linked = asyncio.ensure_future(node.ready(address, timeout=PATIENCE))
        async with raw_accepting(listener, redpoll=False):
            await linked
            message = Message(bytes(size), address)
            sends = [node.send(message, acknowledge=False) for _ in range(20_000_000 // size or 1)]
            await until(lambda: node.stats().sent, "the first")
            await within(node.stop(drain=None))
            assert node.stats().connections == 0
            results = await asyncio.gather(*sends, return_exceptions=True)
            assert any(isinstance(result, NotConfirmed) for result in results)


async def test_what_was_released_early_is_answered_in_the_drain() -> None:
    """A request whose handler released it before it answers has its answer, as long as the drain lasts."""
    gate = asyncio.Event()

    async def handler(message: Any) -> None:
        message.release()
        await gate.wait()
        await message.respond(b"late")

    server = make(handler)
    await server.start()
    async with make() as client:
        asking = [client.request(to(server, b"%d" % number)) for number in range(3)]
        await until(lambda: client.stats().in_flight == 0 and server.stats().received, "it to be released")
        stopping = asyncio.create_task(server.stop(PATIENCE))
        await turns(100)
        gate.set()
        assert [(await within(answer)).data for answer in asking] == [b"late"] * 3
        await within(stopping)


@pytest.mark.parametrize("identity", [b"a" * 16, b"z" * 16])
async def test_what_was_released_early_is_answered_though_another_link_is_enough(identity: bytes) -> None:
    """A link that is left because there is another stays until what came over it is answered."""
    gate = asyncio.Event()

    async def handler(message: Any) -> None:
        if message.wanted:
            message.release()
            await gate.wait()
            await message.respond(b"late")

    async with make(handler, identity=b"m" * 16) as server, make(lambda _: None, identity=identity) as client:
        asking = client.request(to(server))
        await until(lambda: server.stats().received and not client.stats().in_flight, "it to be released")
        await within(client.send(to(server)))
        connection = next(iter(client._peers.connections))
        connection.link.leave(accept_all=True)
        connection.wake()
        await within(client.send(to(server)))
        gate.set()
        assert (await within(asking)).data == b"late"
