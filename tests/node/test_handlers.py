"""Handlers that hang, stop their node, or talk to their own node and to others."""

from __future__ import annotations

import asyncio

import pytest

from redpoll import (
    Cancelled,
    Message,
    Received,
)
from redpoll.transport import write_backpressure
from redpoll.transport.write_backpressure import BACKED_UP
from redpoll.wire.capabilities import Announcement
from redpoll.wire.frames import PREAMBLE, REQ_ACK, WANTED
from redpoll.wire.handshake import Handshake
from tests.node.support import Inbox, elapse, make, raw_dialling, settle, to, turns, until, within


@pytest.mark.asyncio
async def test_a_handler_may_stop_its_node() -> None:
    """stop() inside a handler does not wait for that handler; the node is stopped when it returns."""
    stopped = asyncio.Event()

    async def handler(message: Received[bytes]) -> None:
        await message.node.stop(drain=None)
        stopped.set()

    async with make(handler) as server, make() as client:
        sending = client.send(to(server), timeout=None)
        await within(stopped.wait())
        await settle(sending)
        with pytest.raises(Exception, match="the node is not running"):
            server.send(to(client))


@pytest.mark.asyncio
async def test_a_handler_that_stops_its_node_lets_others_end() -> None:
    """stop() inside a handler drains the other handlers first."""
    inbox = Inbox(hold=True)

    async def handler(message: Received[bytes]) -> None:
        if message.data == b"stop":
            await message.node.stop(drain=None)
        else:
            await inbox(message)

    async with make(handler, slots=2) as server, make() as client:
        working = client.send(to(server, b"work"), timeout=None)
        await inbox.holds(1)
        stopping = client.send(to(server, b"stop"), timeout=None)
        await until(lambda: "stopping" in repr(server), "the node to be stopping")
        inbox.gate.set()
        await within(working)
        await settle(stopping)


@pytest.mark.asyncio
async def test_a_handler_that_hangs_is_cancelled_by_stop() -> None:
    """stop() cancels what has not ended when the draining is over; its sender learns that the work had begun."""
    inbox = Inbox(hold=True)
    async with make() as client:
        async with make(inbox) as server:
            sending = client.send(to(server), timeout=None)
            await inbox.holds(1)
            await within(server.stop(drain=0))
        with pytest.raises(Cancelled, match="the node stopped while it was handled") as caught:
            await within(sending)
        assert caught.value.sent
    assert inbox.cancelled == 1


@pytest.mark.asyncio
async def test_a_handler_that_hangs_keeps_its_slot_alone() -> None:
    """Behind a handler that never returns other slots and other peers go on."""
    inbox = Inbox(hold=True)

    async def handler(message: Received[bytes]) -> bytes | None:
        if message.data == b"hang":
            await inbox(message)
            return None
        return b"fine"

    async with make(handler, slots=2) as server, make() as one, make() as two:
        hanging = one.send(to(server, b"hang"), timeout=None)
        await inbox.holds(1)
        for node in (one, two):
            assert (await within(node.request(to(server)))).data == b"fine"
        inbox.gate.set()
        await within(hanging)


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["127.0.0.1", "inproc:self"])
async def test_a_node_may_send_to_itself(host: str) -> None:
    """A node that dials its own address talks to its own handler, as to another node."""

    async def handler(message: Received[bytes]) -> bytes:
        if message.data == b"again":
            answer: Received[bytes] = await message.node.request(Message(b"inner", message.node.address))
            return answer.data + b"!"
        return message.data

    async with make(handler, slots=2, host=host) as node:
        await within(node.send(to(node, b"hello")))
        assert (await within(node.request(to(node, b"ping")))).data == b"ping"
        assert (await within(node.request(to(node, b"again")))).data == b"inner!"
        assert (await within(node.request(to(node, bytes(3_000_000))))).data == bytes(3_000_000)


@pytest.mark.asyncio
async def test_a_handler_with_one_slot_may_ask_its_own_node_only_after_releasing() -> None:
    """With one slot a handler that asks itself waits for its own slot, unless it releases first."""

    async def handler(message: Received[bytes]) -> bytes | None:
        if message.data == b"inner":
            return b"inner answer"
        message.release()
        answer = await message.node.request(Message(b"inner", message.node.address))
        await message.respond(answer.data)
        return None

    async with make(handler, slots=1) as node:
        assert (await within(node.request(to(node, b"outer")))).data == b"inner answer"


@pytest.mark.asyncio
async def test_a_handler_may_talk_to_a_third_node() -> None:
    """A handler that forwards as it works holds nothing up: a chain of nodes with one slot each comes to an end."""
    async with make(lambda message: message.data + b"3") as third:

        async def second(message: Received[bytes]) -> bytes:
            answer: Received[bytes] = await message.node.request(Message(message.data + b"2", third.address))
            return answer.data

        async with make(second) as middle, make() as client:
            answers = await within(asyncio.gather(*(client.request(to(middle, b"1")) for _ in range(10))))
    assert {answer.data for answer in answers} == {b"123"}


@pytest.mark.asyncio
@pytest.mark.parametrize(("count", "size"), [(400, 100_000), (40, 1_000_000), (40, 1_100_000)])
@pytest.mark.parametrize("kind", ["plain", "at once", "later"])
async def test_who_does_not_read_the_answers_is_not_answered_further(kind: str, count: int, size: int) -> None:
    """Output for one peer is bounded: past it no more of its requests begin, until it reads again; then all do."""
    begun = 0

    def answer(message: Received[bytes]) -> bytes:
        nonlocal begun
        begun += 1
        return bytes(size)

    async def answer_later(message: Received[bytes]) -> bytes:
        if kind == "later":
            await asyncio.sleep(0)
        return answer(message)

    async with make(answer if kind == "plain" else answer_later, window=count, fragment_size=1 << 20) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.address.port)
        introduction = Announcement(slots=1, window=64, window_bytes=1 << 22, max_message_size=1 << 30, epoch=1)
        writer.write(Handshake(1, b"x" * 16).encode() + introduction.encode())
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(1, count + 1):
            writer.write(PREAMBLE.pack(number.to_bytes(16, "big"), number, 0, 0, REQ_ACK | WANTED))
        await until(lambda: node.stats().received == count, "all requests")
        await elapse(0.1)
        # What the system holds for a connection is some megabytes too.
        assert 0 < begun * size < BACKED_UP + 12_000_000
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        while begun < count:
            assert await within(reader.read(1 << 20))
        writer.transport.abort()
        await until(lambda: not node.stats().connections, "the end of the link")


@pytest.mark.asyncio
async def test_acknowledgements_behind_a_large_message_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a large message that libchirp does not read, which nothing may interrupt, acknowledgements do not add up."""
    monkeypatch.setattr(write_backpressure, "BACKED_UP", 512 * 1024)
    begun = 0

    def handler(message: Received[bytes]) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            message.node.send(message.reply(bytes(50_000_000)), timeout=None, acknowledge=False)

    async with make(handler, fragment_size=4096) as node, raw_dialling(node, port=0, redpoll=False) as link:
        link.send(link.message())
        await until(lambda: any(each.link.transfers for each in node._peers.connections), "the large message")
        writing = asyncio.create_task(link.write_all(link.message().encode() * 100_000))
        await until(lambda: begun > 5_000, "the messages")
        await elapse(0.5)
        assert begun < 50_000
        writing.cancel()
        await asyncio.wait([writing])


@pytest.mark.asyncio
async def test_what_waited_for_a_reader_that_left_is_handled() -> None:
    """Requests that were held back until their sender reads are begun when its link is lost; a stop drains them."""
    begun = 0

    def handler(message: Received[bytes]) -> bytes:
        nonlocal begun
        begun += 1
        return bytes(1_000_000)

    node = make(handler, window=200)
    await node.start()
    _, writer = await asyncio.open_connection("127.0.0.1", node.address.port)
    introduction = Announcement(slots=1, window=64, window_bytes=1 << 22, max_message_size=1 << 30, epoch=1)
    writer.write(Handshake(1, b"x" * 16).encode() + introduction.encode())
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(1, 101):
        writer.write(PREAMBLE.pack(number.to_bytes(16, "big"), number, 0, 0, REQ_ACK | WANTED))
    await until(lambda: node.stats().received == 100, "all requests")
    await turns()
    assert 0 < begun < 50
    writer.transport.abort()
    await until(lambda: not node.stats().connections, "the end of the link")
    await within(node.stop(drain=None))
    assert begun == 100
