"""Senders that are cancelled, at every await: nothing of theirs is left, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from redpoll import Address, Message, Node, Received
from tests.interop.raw import ACK, REQ_ACK, raw_listener
from tests.node.support import Inbox, make, raw_accepting, settle, to, turns, until, within

CANCEL = 0x2C

each_call = pytest.mark.parametrize("call", ["send", "request"])


def begin(node: Node[Any], call: str, message: Message[Any]) -> asyncio.Future[Any]:
    """A send or a request without a timeout."""
    return node.send(message, timeout=None) if call == "send" else node.request(message, timeout=None)


def is_clean(node: Node[Any]) -> bool:
    """Whether nothing is queued, in flight, or waits for an answer."""
    stats = node.stats()
    return not (stats.queued or stats.in_flight) and not any(peer.requests for peer in node._peers.routes)


@pytest.mark.asyncio
@each_call
@pytest.mark.parametrize("how", ["future", "task", "timeout"])
async def test_cancelled_while_queued(call: str, how: str) -> None:
    """A message that waits in the queue when its await is cancelled, in whatever way, is never sent."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=1) as server, make() as client:
        await client.ready(server.address)
        first = client.send(to(server, b"first"), timeout=None)
        sending = begin(client, call, to(server, b"cancelled"))
        last = client.send(to(server, b"last"), timeout=None)
        assert client.stats().queued == 2
        if how == "future":
            assert sending.cancel()
            assert not sending.cancel(), "it is done"
        elif how == "task":
            waiting = asyncio.create_task(asyncio.wait_for(sending, None))
            await turns()
            waiting.cancel()
            await settle(waiting)
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await sending
        assert sending.cancelled()
        assert client.stats().queued == 1
        inbox.gate.set()
        await within(asyncio.gather(first, last))
        assert is_clean(client)
    assert inbox.begun == [b"first", b"last"]


@pytest.mark.asyncio
@each_call
async def test_cancelled_while_connecting(call: str) -> None:
    """A message cancelled while its peer is dialled ends the dialling, and its peer is forgotten."""
    async with make() as gone:
        address = gone.address
    async with make() as client:
        sending = begin(client, call, Message(b"", address))
        await until(lambda: client._peers.routes.at(address) in client._peers.dialler, "the dialling")
        sending.cancel()
        await settle(sending)
        await until(lambda: not client.peers, "the peer to be forgotten")
        assert is_clean(client)


@pytest.mark.asyncio
async def test_cancelled_while_connecting_spares_others() -> None:
    """Of several that wait for one peer the others go out when it is there."""
    inbox = Inbox()
    async with make() as gone:
        address = gone.address
    async with make() as client:
        sends = [client.send(Message(b"%d" % number, address)) for number in range(4)]
        await turns()
        sends[0].cancel()
        sends[2].cancel()
        async with make(inbox, port=address.port):
            await within(asyncio.gather(sends[1], sends[3]))
    assert inbox.begun == [b"1", b"3"]


@pytest.mark.asyncio
@each_call
async def test_cancelled_during_the_handshake(call: str) -> None:
    """A message cancelled after the connection and before the handshake is not sent over it."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = begin(client, call, Message(b"cancelled", address))
        link = await listener.accept()
        try:
            await link.read(18 + 27)
            sending.cancel()
            await settle(sending)
            assert is_clean(client)
        finally:
            link.close()


@pytest.mark.asyncio
@each_call
async def test_cancelled_after_it_was_sent(call: str) -> None:
    """A message that was written is asked back by its serial, and its place is kept until the peer says how it ended."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = begin(client, call, Message(b"x", address))
        async with raw_accepting(listener, window=1) as link:
            frame = await link.read_frame()
            sending.cancel()
            cancel = await link.read_frame()
            assert (cancel.kind, cancel.serial, cancel.data) == (CANCEL, frame.serial, b"")
            behind = client.send(Message(b"behind", address), timeout=None)
            await turns()
            assert (client.stats().in_flight, client.stats().queued) == (1, 1)
            link.write(frame.__class__(frame.identity, frame.serial, ACK).encode())
            second = await link.read_frame()
            assert second.data[-6:] == b"behind"
            link.write(frame.__class__(second.identity, second.serial, ACK).encode())
            await within(behind)
            assert is_clean(client)


@pytest.mark.asyncio
async def test_cancelled_before_it_left_with_its_turn() -> None:
    """A message cancelled in the same turn of the loop in which it was sent is not begun, and harms no other."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make() as client:
        await client.ready(server.address)
        first = client.send(to(server, b"first"))
        await inbox.holds(1)
        for _ in range(20):
            client.send(to(server, b"cancelled")).cancel()
            client.request(to(server, b"cancelled")).cancel()
        last = client.send(to(server, b"last"))
        inbox.gate.set()
        await within(asyncio.gather(first, last))
        await until(lambda: is_clean(client), "the withdrawn messages' ends")
    assert inbox.begun == [b"first", b"last"]


@pytest.mark.asyncio
@each_call
async def test_cancelled_while_the_peer_works(call: str) -> None:
    """A message that is being handled goes on; its acknowledgement or answer is for nobody, and nothing is left."""
    inbox = Inbox(hold=True, answer=b"answer")
    async with make(inbox) as server, make() as client:
        sending = begin(client, call, to(server))
        await inbox.holds(1)
        sending.cancel()
        await within(inbox.messages[0].cancelled.wait())
        inbox.gate.set()
        await until(lambda: is_clean(client), "its end")
        assert inbox.cancelled == 0
        assert client.stats().late == (1 if call == "request" else 0)
        assert client.stats().received == 0


@pytest.mark.asyncio
async def test_cancelled_behind_a_slow_handler() -> None:
    """Messages that are given up while they wait there leave their places: the peer reads on, and does what is left."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=4, lookahead=0) as server, make(keepalive=0.05) as client:
        work = [client.send(to(server, b"%d" % number), timeout=None) for number in range(2)]
        await inbox.holds(1)
        for number in range(50):
            sending = client.send(to(server, bytes(60_000)), timeout=None)
            await until(lambda seen=number + 3: server.stats().received >= seen, "the message")  # type: ignore[misc]
            sending.cancel()
            await until(lambda seen=number + 1: server.stats().refused >= seen, "its end")  # type: ignore[misc]
        assert server.stats().turned_away.overruns == 0
        assert server.stats().memory_held < 500_000
        inbox.gate.set()
        await within(asyncio.gather(*work, client.send(to(server, b"2"))))
        assert inbox.begun == [b"0", b"1", b"2"]
        assert (client.stats().errors, client.stats().reconnects) == (0, 0)


@pytest.mark.asyncio
async def test_cancelled_while_it_waits_for_the_answer() -> None:
    """A request whose work is done and whose answer is to come leaves nothing when it is cancelled."""
    async with make() as server, make() as client:
        asking = client.request(to(server), timeout=None)
        message = await within(server.receive())
        message.release()
        await until(lambda: client.stats().in_flight == 0, "the acknowledgement")
        asking.cancel()
        assert is_clean(client)
        await within(message.respond(b"late"))
        await until(lambda: client.stats().late == 1, "the late answer")


@pytest.mark.asyncio
@pytest.mark.parametrize("acknowledge", [True, False])
@pytest.mark.parametrize("reading", [True, False])
async def test_cancelled_in_the_middle_of_a_large_body(acknowledge: bool, reading: bool) -> None:
    """A large message cancelled while it is written is given up half-way; its place comes back, and others go on."""
    inbox = Inbox()
    async with make(inbox, fragment_size=65_536) as server, make(fragment_size=65_536) as client:
        await client.ready(server.address)
        for number in range(5):
            large = client.send(to(server, bytes(30_000_000)), acknowledge=acknowledge, timeout=None)
            small = client.send(to(server, b"%d" % number))
            if reading:
                await until(lambda: server.stats().bytes_received > 100_000, "some of it")
            large.cancel()
            await within(small)
        await until(lambda: is_clean(client), "the end of what was given up")
        (link,) = next(iter(client._peers.routes)).links
        await until(lambda: link.window.used == 0, "all places")
        assert link.window.used_bytes == 0
        assert client.stats().reconnects == 0
    assert inbox.begun == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.asyncio
async def test_an_unacknowledged_message_cancelled_in_the_queue() -> None:
    """An unacknowledged message that waits is never sent once it is cancelled; one that was written is done."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=1) as server, make(acknowledge=False) as client:
        await client.ready(server.address)
        first = client.send(to(server, b"first"))
        await within(first)
        assert not first.cancel()
        second = client.send(to(server, b"second"))
        await turns()
        second.cancel()
        inbox.gate.set()
        await within(client.send(to(server, b"third")))
        await until(lambda: len(inbox.ended) == 2, "the messages")
    assert inbox.begun == [b"first", b"third"]


@pytest.mark.asyncio
async def test_a_cancelled_check_leaves_no_peer() -> None:
    """Cancelling `check` while it dials leaves neither connection nor peer once the connection's time is over."""
    async with make(connect_timeout=0.1) as client, raw_listener() as listener:
        checking = asyncio.create_task(client.check(f"127.0.0.1:{listener.port}", timeout=None))
        link = await listener.accept()
        try:
            await link.read(18 + 27)
            checking.cancel()
            await settle(checking)
            assert checking.cancelled()
            await until(lambda: not client.stats().connections and not client.peers, "nothing to be left")
        finally:
            link.close()


@pytest.mark.asyncio
async def test_a_cancelled_serve_forever_stops_nothing() -> None:
    """Cancelling `serve_forever` leaves the node running; stopping the node ends it."""
    async with make(lambda message: None) as server, make() as client:
        serving, other = asyncio.create_task(server.serve_forever()), asyncio.create_task(server.serve_forever())
        await turns()
        serving.cancel()
        await settle(serving)
        await within(client.send(to(server)))
        assert not other.done()
        await within(server.stop())
        await within(other)


Step = Callable[[Node[Any], Node[Any]], Coroutine[Any, Any, Any]]


async def one_send(client: Node[Any], server: Node[Any]) -> None:
    await client.send(to(server, b"send"))


async def one_request(client: Node[Any], server: Node[Any]) -> None:
    await client.request(to(server, b"request"))


async def large_send(client: Node[Any], server: Node[Any]) -> None:
    await client.send(to(server, bytes(3_000_000)))


async def get_ready(client: Node[Any], server: Node[Any]) -> None:
    await client.ready(server.address)


async def many(client: Node[Any], server: Node[Any]) -> None:
    await client.send_many([to(server, b"many") for _ in range(100)])


async def many_unacknowledged(client: Node[Any], server: Node[Any]) -> None:
    await client.send_many([to(server, b"many") for _ in range(100)], acknowledge=False)


async def many_slowly(client: Node[Any], server: Node[Any]) -> None:
    async def messages() -> AsyncIterator[Message[bytes]]:
        for _ in range(30):
            await asyncio.sleep(0)
            yield to(server, b"many")

    await client.send_many(messages())


@pytest.mark.asyncio
@pytest.mark.parametrize("step", [one_send, one_request, large_send, get_ready, many, many_unacknowledged, many_slowly])
@pytest.mark.parametrize("linked", [True, False])
async def test_cancelled_at_any_turn(step: Step, linked: bool) -> None:
    """Cancelled after any number of turns of the loop, a call leaves nothing behind, and the nodes go on."""

    async def handler(message: Received[bytes]) -> bytes:
        await asyncio.sleep(0)
        return message.data[:10]

    async with make(handler, slots=4, window=8, fragment_size=65_536) as server:
        number = 0
        ended = 0
        while ended < 3:
            async with make(fragment_size=65_536) as client:
                if linked:
                    await within(client.ready(server.address))
                task = asyncio.create_task(step(client, server))
                await turns(number)
                task.cancel()
                await settle(task)
                ended += not task.cancelled()
                await until(lambda node=client: is_clean(node), "nothing to be left")  # type: ignore[misc]
                answer = await within(client.request(to(server, b"still there")))
                assert answer.data == b"still ther"
                assert client.stats().errors == 0
            number += 1 if number < 20 else 1 + number // 4
        await until(lambda: server.stats().slots_used == 0, "all slots")


@pytest.mark.asyncio
async def test_a_future_done_is_not_cancelled() -> None:
    """Cancelling after the end does nothing and tells nobody."""
    inbox = Inbox(answer=b"x")
    async with make(inbox) as server, make() as client:
        sending, asking = client.send(to(server)), client.request(to(server))
        await within(asyncio.gather(sending, asking))
        assert not sending.cancel()
        assert not asking.cancel()
        await turns()
        assert not any(message.cancelled.is_set() for message in inbox.messages)


@pytest.mark.asyncio
async def test_toward_libchirp_a_cancelled_request_takes_no_message() -> None:
    """The late answer to a cancelled request to libchirp is acknowledged, counted, and no message for the handler."""
    inbox = Inbox()
    async with make(inbox) as client, raw_listener() as listener:
        asking = client.request(Message(b"x", f"127.0.0.1:{listener.port}"), timeout=30)
        async with raw_accepting(listener, redpoll=False) as link:
            frame = await link.read_frame()
            asking.cancel()
            await turns()
            link.acknowledge(frame)
            link.send(frame.__class__(frame.identity, 7, REQ_ACK, b"", b"late answer"))
            acknowledgement = await link.read_frame()
            assert (acknowledgement.kind, acknowledgement.identity) == (ACK, frame.identity)
            assert client.stats().late == 1
            assert inbox.messages == []
