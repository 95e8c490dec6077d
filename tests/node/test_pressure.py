"""What a node does at its memory_limit, and what it counts at each limit, over real links."""

from __future__ import annotations

import asyncio
import struct
from contextlib import AsyncExitStack
from typing import Any

import pytest

from redpoll import TLS, Address, Busy, Message, Node, PeerLost, QueueFull, Received, Refused
from redpoll.errors import REFUSALS
from redpoll.node import pressure
from redpoll.stats import TurnedAway
from redpoll.testing.certificates import Certificates
from redpoll.wire import memory as memory_module
from tests.interop.raw import REQ_ACK, DisconnectedError, Frame, RawLink, raw_listener
from tests.node.support import (
    PATIENCE,
    Inbox,
    elapse,
    make,
    raw_accepting,
    raw_dialling,
    settle,
    to,
    turns,
    until,
    within,
)
from tests.ports import free_port

MIB = 1024 * 1024
CONTINUED, WANTED = 0x80, 0x10


@pytest.fixture(autouse=True)
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come soon."""
    monkeypatch.setattr(pressure, "CHECK_EVERY", 0.01)


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for for seconds."""
    monkeypatch.setattr(memory_module, "STALL_TIMEOUT", 0.1)
    monkeypatch.setattr(memory_module, "PAUSE_TIMEOUT", 0.3)


def away(node: Node[Any]) -> TurnedAway:
    return node.stats().turned_away


def begun(link: RawLink, size: int, total: int = 50 * MIB) -> bytes:
    """The beginning of a message in fragments: so many bytes of it."""
    return link.message(total.to_bytes(8, "big") + bytes(size), kind=REQ_ACK | CONTINUED).encode()


async def write_on(link: RawLink, data: bytes, *, pause: float = 0.0) -> None:
    """Write the same again and again, reading nothing, until the other end closes."""
    async with asyncio.timeout(4 * PATIENCE):
        while True:
            await link.write_all(data)
            await asyncio.sleep(pause)


@pytest.mark.asyncio
async def test_senders_wait_and_go_on() -> None:
    """Many large messages at once to a node with little memory all arrive, and its memory is free again."""
    inbox = Inbox()
    async with make(inbox, memory_limit=2 * MIB, slots=1) as node, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(make(listen=False, timeout=None)) for _ in range(6)]
        sends = [client.send(to(node, bytes(3 * MIB))) for client in clients for _ in range(2)]
        await within(asyncio.gather(*sends))
        assert len(inbox.messages) == 12
        assert away(node).memory_closed == away(node).memory_refused == 0
        await until(lambda: not node.stats().memory_held, "the memory")


@pytest.mark.asyncio
async def test_a_message_above_the_limit_passes() -> None:
    """A single message of a legal size passes a limit that is smaller, to a consumer and to a handler, and back."""
    async with make(Inbox(answer=bytes(2 * MIB)), memory_limit=1) as node, make(listen=False, memory_limit=1) as client:
        answer = await within(client.request(to(node, bytes(2 * MIB))))
        assert len(answer.data) == 2 * MIB
        await until(lambda: not node.stats().memory_held + client.stats().memory_held, "the memory")


@pytest.mark.asyncio
async def test_a_full_inbox_drains() -> None:
    """Messages that wait for a handler fill the memory; a large one waits until they were begun, and is not refused."""
    inbox = Inbox(hold=True)
    async with make(inbox, memory_limit=MIB) as node, make(listen=False) as first, make(listen=False) as second:
        sends = [first.send(to(node, bytes(MIB // 2))) for _ in range(4)]
        await until(lambda: node.stats().memory_held >= MIB, "a full memory")
        sends.append(second.send(to(node, bytes(MIB))))
        await until(lambda: away(node).memory_waits, "a link that waits")
        assert len(inbox.messages) == 1
        inbox.gate.set()
        await within(asyncio.gather(*sends))
        assert away(node).memory_refused == 0


@pytest.mark.asyncio
async def test_a_handler_gets_its_large_answer() -> None:
    """While what waits for the only slot fills the memory, the handler that has it still gets a large answer."""
    async with make(Inbox(answer=bytes(2 * MIB))) as helper:

        async def asks(message: Message[Any]) -> None:
            await node.request(to(helper), timeout=None)

        async with make(asks, memory_limit=MIB, node_slots=1) as node, make(listen=False) as client:
            await within(asyncio.gather(*[client.send(to(node, bytes(MIB // 2))) for _ in range(5)]))


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_times")
async def test_who_holds_the_memory_and_does_not_move_is_closed() -> None:
    """A stranger that fills the memory with half a message and stops is closed and counted; who waited for it goes on."""
    inbox = Inbox()
    lost = []
    async with make(inbox, memory_limit=MIB) as node, make(listen=False) as client, raw_dialling(node, port=0) as link:
        node.events.peer_lost = lambda _, error: lost.append(error)
        await link.write_all(begun(link, 2 * MIB))
        await until(lambda: node.stats().memory_held >= MIB, "a full memory")
        await within(client.send(to(node, bytes(MIB))))
        assert away(node).memory_closed == 1
        assert isinstance(lost[0], PeerLost)
        assert "memory_limit" in str(lost[0])


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_times")
async def test_who_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large message that finds no memory in time fails as Busy, with the reason; small ones pass meanwhile."""
    monkeypatch.setattr(memory_module, "STALL_TIMEOUT", 3600.0)
    inbox = Inbox()
    async with make(inbox, memory_limit=MIB) as node, make(listen=False) as client, raw_dialling(node, port=0) as link:
        await link.write_all(begun(link, 2 * MIB))
        await until(lambda: node.stats().memory_held >= MIB, "a full memory")
        with pytest.raises(Busy, match="memory_limit") as caught:
            await within(client.send(to(node, bytes(MIB))))
        assert isinstance(caught.value, Refused)
        assert REFUSALS[Busy.code] is Busy
        await within(client.send(to(node, bytes(60_000))))
        assert (away(node).memory_refused, away(node).memory_closed) == (1, 0)
        assert (len(client.peers), len(inbox.messages)) == (1, 1)


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_times")
async def test_libchirp_that_waits_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot be told that the node is busy loses its link, which is counted."""
    monkeypatch.setattr(memory_module, "STALL_TIMEOUT", 3600.0)
    async with make(Inbox(), memory_limit=MIB) as node, raw_dialling(node, port=0) as link:
        await link.write_all(begun(link, 2 * MIB))
        await until(lambda: node.stats().memory_held >= MIB, "a full memory")
        async with raw_dialling(node, port=4001, identity=b"C" * 16, redpoll=False) as plain:
            await plain.write_all(plain.message(bytes(MIB // 8)).encode())
            with pytest.raises(DisconnectedError):
                await plain.read(1)
        assert away(node).memory_closed == 1


@pytest.mark.asyncio
async def test_a_thousand_announcements_cost_nothing() -> None:
    """Strangers that announce as much as they may and send nothing of it leave the memory to others."""
    async with make(Inbox(), memory_limit=MIB) as node, make(listen=False) as client, AsyncExitStack() as stack:
        for number in range(50):
            identity = struct.pack("!16s", b"%d" % number)
            link = await stack.enter_async_context(raw_dialling(node, port=0, identity=identity))
            link.write(begun(link, 1, 100 * MIB - 1024))
        await until(lambda: len(node.peers) == 50, "the strangers")
        await within(client.send(to(node, bytes(2 * MIB))))
        assert away(node).memory_waits == 0


@pytest.mark.asyncio
async def test_sends_past_the_limit_fail() -> None:
    """What waits to be sent keeps within the limit over all peers; past it a send fails at once and names it."""
    async with make(memory_limit=100_000) as node:
        sends = [node.send(Message(bytes(1000), f"127.0.0.1:{free_port()}")) for _ in range(101)]
        with pytest.raises(QueueFull, match="the limit is 100000 bytes of memory_limit"):
            await sends[-1]
        assert not any(each.done() for each in sends[:-1])
        assert (node.stats().memory_held, away(node).queue_full) == (100_000, 1)
        for each in sends:
            each.cancel()
        await turns()
        assert node.stats().memory_held == 0


@pytest.mark.asyncio
async def test_what_is_not_queued_leaves_no_peer() -> None:
    """A send that meets the bound of all queues leaves nothing behind at an address that nobody else is sent to."""
    async with make(memory_limit=100_000, listen=False, connect_timeout=0.05) as node:
        queued = node.send(Message(bytes(100_000), Address("tcp", "127.0.0.1", free_port())), timeout=None)
        for port in range(1000, 1020):
            for sending in (node.send, node.request):
                with pytest.raises(QueueFull):
                    await sending(Message(b"x", Address("tcp", "127.0.0.1", port)))
        assert len(node._peers.routes) == 1
        queued.cancel()


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_times")
async def test_what_is_not_read_is_memory() -> None:
    """Acknowledgements that a peer does not read count; at the limit its link is closed long before its own bound."""
    async with make(lambda message: None, memory_limit=MIB) as node, raw_dialling(node, port=0) as link:
        burst = b"".join(link.message().encode() for _ in range(1000))
        with pytest.raises((DisconnectedError, ConnectionError)):
            await write_on(link, burst)
        await until(lambda: away(node).memory_closed, "the link to be closed")
        await until(lambda: not node.stats().memory_held, "its memory")


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_times")
async def test_answers_that_are_not_read_are_memory() -> None:
    """Large answers that strangers ask for and do not read count; their links are closed, and others are answered."""

    def answer(message: Received[bytes]) -> bytes:
        return bytes(12 * MIB) if message.data == b"much" else b"little"

    async with make(answer, memory_limit=8 * MIB) as node, make() as client, AsyncExitStack() as stack:
        links = [await stack.enter_async_context(raw_dialling(node, port=0)) for _ in range(4)]
        for link in links:
            for _ in range(3):
                await link.write_all(link.message(b"much", kind=REQ_ACK | WANTED).encode())
        await until(lambda: node.stats().memory_held > 8 * MIB, "the answers")
        await until(lambda: away(node).memory_closed, "a link to be closed")
        assert (await within(client.request(to(node, b"small")))).data == b"little"
        await until(lambda: node.stats().memory_held < 8 * MIB, "room")
        for link in links:
            link.close()
        await until(lambda: not node.stats().memory_held, "the rest")


@pytest.mark.asyncio
async def test_who_reads_a_large_answer_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of which something is read lasts as long as it takes, at the limit too."""
    monkeypatch.setattr(memory_module, "STALL_TIMEOUT", 1.0)
    async with make(lambda message: bytes(20 * MIB), memory_limit=MIB) as node, raw_dialling(node, port=0) as link:
        await link.write_all(link.message(b"", kind=REQ_ACK | WANTED).encode())
        await until(lambda: node.stats().memory_held > MIB, "the answer")
        for _ in range(20 * 4):
            await link.read(256 * 1024)
            await elapse(0.02)
        assert not away(node).memory_closed
        await until(lambda: not node.stats().memory_held, "its memory")


# What is counted at the other limits


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "name"),
    [({"max_connections": 1}, "connections"), ({"max_connections_per_host": 1}, "connections_of_host")],
)
async def test_strangers_turned_away_are_counted(options: dict[str, int], name: str) -> None:
    """Each connection that is closed as it is accepted counts, by the limit that was met."""
    async with make(Inbox(), **options) as node, raw_dialling(node, port=0):
        for number in (1, 2):
            link = await RawLink.dial("127.0.0.1", node.address.port)
            assert await link.read_all() == b""
            link.close()
            assert away(node) == TurnedAway(**{name: number})


@pytest.mark.asyncio
async def test_too_large_messages_are_counted() -> None:
    """A message that is announced above the limit counts."""
    async with make(Inbox(), max_message_size=1000) as node, raw_dialling(node, port=0) as link:
        link.write(link.message(bytes(1001)).encode())
        await link.read_all()
        await until(lambda: node.stats().connections == 0, "the end of the link")
        assert away(node) == TurnedAway(protocol_errors=1, too_large=1)


@pytest.mark.asyncio
@pytest.mark.parametrize("redpoll", [True, False])
async def test_slow_senders_are_closed_and_counted(*, redpoll: bool) -> None:
    """A stranger that sends a byte now and then of a large body is closed when the time for that is over."""
    async with (
        make(Inbox(), transfer_timeout=0.1, reuse_time=3600.0) as node,
        raw_dialling(node, port=4000, redpoll=redpoll) as link,
    ):
        link.write(Frame(b"x" * 16, 1, REQ_ACK, b"", b"").encode()[:20] + struct.pack("!IHB", 10**6, 0, REQ_ACK) + b"x")
        with pytest.raises((DisconnectedError, ConnectionError)):
            await write_on(link, b"x", pause=0.01)
        await until(lambda: not node.stats().connections, "the end of the link")
        assert away(node) == TurnedAway(slow_senders=1)


@pytest.mark.asyncio
async def test_overruns_are_counted() -> None:
    """Reading that stops because a peer sent more than may wait counts each time."""
    inbox = Inbox(hold=True)
    async with make(inbox, lookahead=0) as node, raw_dialling(node, port=4000, redpoll=False) as link:
        for _ in range(3):
            link.send(link.message(b"x"))
        await until(lambda: away(node).overruns, "the end of reading")
        inbox.gate.set()
        await inbox.holds(3)
        assert away(node) == TurnedAway(overruns=1)


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", ["send_queue_limit", "send_queue_bytes"])
async def test_full_queues_are_counted(limit: str) -> None:
    """A send that fails because the queue is full counts."""
    options: dict[str, Any] = {limit: 1}
    async with make(**options) as node:
        address = f"127.0.0.1:{free_port()}"
        sends = [node.send(Message(b"x", address)) for _ in range(2)]
        with pytest.raises(QueueFull):
            await sends[1]
        assert away(node) == TurnedAway(queue_full=1)
        sends[0].cancel()
        await settle(*sends)


@pytest.mark.asyncio
async def test_a_slow_reader_that_moves_is_waited_for() -> None:
    """A large message lasts as long as bytes of it move, though none of its fragments is through in its time."""
    async with make(fragment_size=32 * MIB) as node, raw_listener() as listener:
        future = node.send(Message(bytes(32 * MIB), f"127.0.0.1:{listener.port}"), timeout=0.5)
        async with raw_accepting(listener, largest=100_000, window_units=1000) as link:
            head = struct.unpack("!16sIIHB", await link.read(27))
            left = head[2]
            while left:
                left -= len(await link.read(min(left, 2 * MIB)))
                if left > 8 * MIB:
                    # What the system holds already is not seen to move.
                    await elapse(0.1)
            assert not future.done()
            link.send(Frame(head[0], head[1], 0x02))
            await within(future)


@pytest.mark.asyncio
async def test_encrypted_links_are_charged(redpoll_pki: Certificates) -> None:
    """A link with TLS counts 64 KiB at both ends while it is there, that of a stranger too, and nothing behind it."""
    records = [TLS(certificate=redpoll_pki.issue()) for _ in range(2)]
    async with make(Inbox(), encryption=True, tls=records[0]) as node:
        async with make(listen=False, encryption=True, tls=records[1]) as client:
            await within(client.send(to(node)))
            assert node.stats().memory_held == client.stats().memory_held == 64 * 1024
            stranger = await RawLink.dial("127.0.0.1", node.address.port)
            await until(lambda: node.stats().memory_held == 2 * 64 * 1024, "the stranger")
            stranger.close()
        await until(lambda: not node.stats().connections, "the end of both")
        assert node.stats().memory_held == 0


@pytest.mark.asyncio
async def test_what_was_pulled_is_not_held() -> None:
    """What waits for a consumer is held, to the byte, and what it took is not; nor is anything once the peer is gone."""
    async with make(slots=1) as node:
        async with make(listen=False) as client:
            sends = [client.send(to(node, bytes(size))) for size in (1000, 2000)]
            await until(lambda: node.stats().memory_held == 3000, "the messages")
            first = await within(node.receive())
            assert node.stats().memory_held == 2000
            first.release()
            (await within(node.receive())).release()
            await within(asyncio.gather(*sends))
        await until(lambda: not node.peers, "the peer to be forgotten")
        assert node.stats().memory_held == 0
