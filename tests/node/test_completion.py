"""How messages end, and their answers: once each, whatever became of link and node."""

from __future__ import annotations

import asyncio

import pytest

from redpoll import (
    EncodeError,
    Message,
    MessageTooLarge,
    PeerLost,
    Received,
    SendError,
    UsageError,
)
from tests.node.support import Inbox, Proxy, make, settle, to, until, within


@pytest.mark.asyncio
async def test_each_end_gives_its_slot_back_once() -> None:
    """Ending a message again, in any order and way, frees no second slot and sends no second word."""
    async with make(slots=2) as server, make() as client:
        sends = [client.send(to(server)) for _ in range(4)]
        first, second = await within(server.receive()), await within(server.receive())
        for _ in range(3):
            first.refuse("once")
            first.release()
            second.release()
            second.refuse("never")
        assert server.stats().slots_used == 0
        third, fourth = await within(server.receive()), await within(server.receive())
        assert server.stats().slots_used == 2
        third.release()
        fourth.release()
        results = await within(asyncio.gather(*sends, return_exceptions=True))
        assert [type(result).__name__ for result in results] == ["Refused", "NoneType", "NoneType", "NoneType"]
        assert client.stats().late == 0


@pytest.mark.asyncio
async def test_an_end_after_the_link_was_lost_is_quiet() -> None:
    """A message whose sender is gone may be ended; its slot is free again and nothing is raised."""
    async with make(slots=2) as server:
        async with make() as client:
            sends = [client.send(to(server)) for _ in range(2)]
            first, second = await within(server.receive()), await within(server.receive())
            await client.stop(drain=0)
            await settle(*sends)
        await until(lambda: not server.stats().connections, "the end of the link")
        assert server.stats().slots_used == 2
        first.release()
        second.refuse("to nobody")
        assert server.stats().slots_used == 0


@pytest.mark.asyncio
async def test_an_end_after_the_stop_is_quiet() -> None:
    """A message may be ended after its node was stopped."""
    async with make() as client:
        async with make() as server:
            sending = client.send(to(server))
            received = await within(server.receive())
            await within(server.stop(drain=0))
        received.release()
        received.refuse()
        assert received.ended
        with pytest.raises(SendError):
            await within(sending)


@pytest.mark.asyncio
async def test_a_request_may_be_answered_after_its_release() -> None:
    """Released first, a request can still be answered: work that is done and the answer are two things."""
    async with make() as server, make() as client:
        asking = client.request(to(server))
        received = await within(server.receive())
        received.release()
        await until(lambda: client.stats().in_flight == 0, "the acknowledgement")
        assert not asking.done()
        await within(received.respond(b"later"))
        assert (await within(asking)).data == b"later"


@pytest.mark.asyncio
async def test_only_the_first_answer_counts() -> None:
    """A second answer to one request is counted as late, and changes nothing."""

    async def handler(message: Received[bytes]) -> bytes:
        await message.respond(b"first")
        await message.respond(b"second")
        return b"third"

    async with make(handler) as server, make() as client:
        assert (await within(client.request(to(server)))).data == b"first"
        await until(lambda: client.stats().late == 2, "the late answers")
        assert client.stats().in_flight == 0


@pytest.mark.asyncio
async def test_an_answer_may_be_large() -> None:
    """An answer of many fragments arrives whole, with its header."""
    data = bytes(range(256)) * 20_000

    async def handler(message: Received[bytes]) -> None:
        await message.respond(data, header=b"h")

    async with make(handler) as server, make() as client:
        answer = await within(client.request(to(server)))
        assert (answer.data, answer.header) == (data, b"h")


@pytest.mark.asyncio
async def test_a_cancelled_response_harms_nothing() -> None:
    """Cancelling `respond` in the middle of a large answer leaves the answer, and all other messages, as they are."""
    data = bytes(40_000_000)
    inbox = Inbox()
    async with make(fragment_size=65_536) as server, make(inbox) as client:
        asking = client.request(to(server), timeout=None)
        received = await within(server.receive())
        own = [server.send(to(client, b"%d" % number)) for number in range(5)]
        responding = asyncio.create_task(received.respond(data))
        await asyncio.sleep(0)
        responding.cancel()
        await settle(responding)
        assert responding.cancelled()
        received.release()
        assert len((await within(asking)).data) == len(data)
        await within(asyncio.gather(*own))
        await within(server.send(to(client, b"5")))
        assert server.stats().in_flight == 0
    assert inbox.begun == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.asyncio
async def test_what_cannot_be_an_answer_is_refused_at_once() -> None:
    """Data that cannot be carried, is too large, or a bad header raises from `respond`; the message goes on."""
    async with make(max_message_size=100_000) as server, make() as client:
        asking = client.request(to(server))
        received = await within(server.receive())
        with pytest.raises(EncodeError):
            await received.respond("text")
        with pytest.raises(MessageTooLarge):
            await received.respond(bytes(100_001))
        with pytest.raises(UsageError, match="a header must be bytes, not str"):
            await received.respond(b"", header="text")  # type: ignore[arg-type]
        await received.respond(b"fine")
        assert (await within(asking)).data == b"fine"
        received.release()


@pytest.mark.asyncio
async def test_an_answer_to_a_lost_node_is_peer_lost() -> None:
    """With the asking node gone `respond` raises PeerLost; what a handler returns then is dropped quietly."""
    async with make() as server:
        async with make() as client:
            asking = client.request(to(server))
            received = await within(server.receive())
            await client.stop(drain=0)
            await settle(asking)
        await until(lambda: not server.stats().connections, "the end of the link")
        with pytest.raises(PeerLost) as caught:
            await received.respond(b"to nobody")
        assert str(caught.value).endswith(": the link that the message arrived on was lost")
        received.release()


@pytest.mark.asyncio
async def test_an_answer_goes_over_a_newer_link_of_the_same_node() -> None:
    """When the asking node has another link by then, answers and replies go over that."""
    replies = Inbox()
    async with make(slots=4) as server, Proxy(server.address) as proxy, make(replies) as client:
        asking = client.request(Message(b"question", proxy.address), timeout=None)
        received = await within(server.receive())
        await proxy.cut()
        await settle(asking)
        again = client.send(Message(b"again", proxy.address))
        async with server.take(timeout=5) as message:
            assert message.data == b"again"
        await within(again)
        await within(received.respond(b"answer"))
        await until(lambda: client.stats().late == 1, "the answer that nobody waits for any more")
        await within(server.send(received.reply(b"reply")))
        assert replies.begun == [b"reply"]
        received.release()
