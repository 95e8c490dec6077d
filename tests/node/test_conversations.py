"""Messages that share an identity: sent twice, answered, forwarded; none is taken for a duplicate."""

from __future__ import annotations

import asyncio

import pytest

from redpoll import (
    Message,
    PeerLost,
    Received,
    SendError,
)
from tests.interop.raw import REQ_ACK, raw_listener
from tests.node.support import Inbox, make, raw_accepting, settle, to, until, within


@pytest.mark.asyncio
async def test_one_message_may_be_sent_many_times_at_once() -> None:
    """Several sends of the same Message are each handled and each confirmed."""
    inbox = Inbox(answer=b"answer")
    async with make(inbox, slots=4) as server, make() as client:
        message = to(server)
        sends = [client.send(message) for _ in range(20)]
        requests = [client.request(message) for _ in range(20)]
        unacknowledged = [client.send(message, acknowledge=False) for _ in range(20)]
        await within(asyncio.gather(*sends, *requests, *unacknowledged))
        await until(lambda: len(inbox.ended) == 60, "60 messages")
    assert {message.identity for message in inbox.messages} == {message.identity}


@pytest.mark.asyncio
async def test_one_message_may_be_sent_to_libchirp_twice_at_once() -> None:
    """Toward libchirp two sends of one Message go one after the other, each with its own acknowledgement."""
    async with make() as client, raw_listener() as listener:
        message = Message(b"x", f"127.0.0.1:{listener.port}")
        sends = [client.send(message) for _ in range(3)]
        async with raw_accepting(listener, redpoll=False) as link:
            serials = []
            for sending in sends:
                frame = await link.read_frame()
                assert (frame.identity, frame.kind) == (message.identity, REQ_ACK)
                assert not sending.done()
                serials.append(frame.serial)
                link.acknowledge(frame)
                await within(sending)
            assert len(set(serials)) == 3


@pytest.mark.asyncio
async def test_one_message_may_go_to_several_nodes() -> None:
    """A forwarded message keeps its identity at each of its receivers."""
    one_inbox, two_inbox = Inbox(), Inbox()
    async with make(one_inbox) as one, make(two_inbox) as two, make() as client:
        message = to(one, b"data", header=b"h")
        await within(asyncio.gather(client.send(message), client.send(message.forward(two.address))))
    (first,), (second,) = one_inbox.messages, two_inbox.messages
    assert first.identity == second.identity == message.identity
    assert (second.data, second.header) == (b"data", b"h")


@pytest.mark.asyncio
async def test_a_conversation_may_keep_one_identity() -> None:
    """Replies to replies, all with one identity, are each handled: nothing is taken for a duplicate."""
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handler(message: Received[bytes]) -> None:
        seen.append(message.identity)
        turn = int(message.data)
        if turn < 10:
            await message.node.send(message.reply(str(turn + 1).encode()))
        else:
            done.set()

    async with make(handler, slots=16) as one, make(handler, slots=16) as two:
        first = to(two, b"0")
        await within(one.send(first))
        await within(done.wait())
    assert seen == [first.identity] * 11


@pytest.mark.asyncio
async def test_a_conversation_of_requests_may_keep_one_identity() -> None:
    """Requests that answer requests with the same identity, one inside the other, each find their own answer."""

    async def handler(message: Received[bytes]) -> bytes:
        turn = int(message.data)
        if turn == 6:
            return b"end"
        answer = await message.node.request(message.reply(str(turn + 1).encode()))
        return bytes(answer.data) + b" %d" % turn

    async with make(handler, slots=16) as one, make(handler, slots=16) as two:
        answer = await within(one.request(to(two, b"0")))
        assert answer.data == b"end 5 4 3 2 1 0"


@pytest.mark.asyncio
async def test_a_message_forwarded_twice_is_handled_twice() -> None:
    """A received message that is forwarded to one node twice, at once, is handled there twice."""
    inbox = Inbox()
    async with make(inbox) as last:

        async def forward(message: Received[bytes]) -> None:
            onward = message.forward(last.address)
            await asyncio.gather(message.node.send(onward), message.node.send(message.forward(last.address)))
            await message.node.send(onward)

        async with make(forward) as middle, make() as client:
            message = to(middle, b"data", header=b"h")
            await within(client.send(message))
    assert [(each.identity, each.data, each.header) for each in inbox.messages] == [
        (message.identity, b"data", b"h")
    ] * 3


@pytest.mark.asyncio
async def test_a_received_message_is_sent_back_as_a_reply() -> None:
    """Sending a received message returns it to the node that it came from, with its identity, data and header."""
    inbox = Inbox()

    async def echo(message: Received[bytes]) -> None:
        await message.node.send(message)

    async with make(echo) as server, make(inbox) as client:
        message = to(server, b"data", header=b"h")
        await within(client.send(message))
    (back,) = inbox.messages
    assert (back.identity, back.data, back.header) == (message.identity, b"data", b"h")
    assert not back.wanted


@pytest.mark.asyncio
async def test_a_node_that_does_not_listen_is_answered_over_its_link() -> None:
    """A reply reaches a node without a port over the link that it made; its messages have no address to dial."""
    replies = Inbox()

    async def handler(message: Received[bytes]) -> bytes:
        assert message.address is None or message.address.port == 0
        await message.node.send(message.reply(b"reply"))
        return b"answer"

    async with make(handler) as server, make(replies, listen=False) as client:
        answer = await within(client.request(to(server)))
        assert answer.data == b"answer"
        assert replies.begun == [b"reply"]


@pytest.mark.asyncio
async def test_a_reply_goes_to_no_other_node_at_that_address() -> None:
    """When the node that asked is gone, a reply fails, though another node listens at its address by then."""
    inbox, other = Inbox(hold=True), Inbox()
    async with make(inbox) as server:
        async with make() as client:
            address = client.address
            sending = client.send(to(server), timeout=None)
            await inbox.holds(1)
            await client.stop(drain=0)
            await settle(sending)
        (message,) = inbox.messages
        async with make(other, port=address.port) as newer:
            await within(newer.send(to(server), acknowledge=False))
            await until(lambda: server.stats().received == 2, "the newer node's message")
            with pytest.raises((SendError, PeerLost)) as caught:
                await within(server.send(message.reply(b"for the first"), timeout=1.0))
            assert getattr(caught.value, "sent", False) is False
            await within(server.send(Message(b"for whoever is there", address)))
            inbox.gate.set()
    assert other.begun == [b"for whoever is there"]


@pytest.mark.asyncio
async def test_a_message_received_by_another_node_goes_by_its_address() -> None:
    """What one node received another may send back: to the address it came from, over a link of its own."""
    inbox, replies = Inbox(), Inbox()
    async with make(inbox) as first, make() as second, make(replies) as client:
        await within(client.send(to(first)))
        await within(second.send(inbox.messages[0].reply(b"from the second")))
        assert replies.messages[0].remote_identity == second.identity
