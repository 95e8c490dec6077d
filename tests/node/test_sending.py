"""Sending: the two modes, requests, what fails how, and the bounds of the queue."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from redpoll import (
    Address,
    Closed,
    DialFailed,
    EncodeError,
    Message,
    MessageTooLarge,
    Node,
    NotConfirmed,
    NotSent,
    PeerLost,
    QueueFull,
    Received,
    UsageError,
)
from redpoll.node.sending import UNSET, Sending
from tests.interop.raw import ACK, REQ_ACK, RawLink, raw_listener
from tests.node.support import Inbox, Proxy, make, raw_accepting, raw_dialling, settle, to, turns, until, within


async def swallow(link: RawLink) -> None:
    """Read what comes, and drop it."""
    while await link.read_available():
        pass


def has_trouble(node: Node[Any], address: Address) -> bool:
    """Whether an attempt to dial that address has failed."""
    peer = node._peers.routes.get(address)
    return peer is not None and peer.last_error is not None


# The modes


@pytest.mark.asyncio
async def test_an_acknowledged_send_is_done_when_the_work_is_done() -> None:
    """By default the future of a send is done when the receiver has released the message, and its result is None."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make() as client:
        sending = client.send(to(server))
        assert isinstance(sending, asyncio.Future), "send is a plain function that returns a future"
        await inbox.holds(1)
        await turns()
        assert not sending.done()
        assert client.stats().in_flight == 1
        inbox.gate.set()
        await within(sending)
        assert sending.result() is None
        assert client.stats().in_flight == 0


@pytest.mark.asyncio
async def test_an_unacknowledged_send_is_done_when_it_was_written() -> None:
    """With acknowledge=False the future is done though the receiver still works, and nothing is in flight."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make(acknowledge=False) as client:
        await within(client.send(to(server)))
        assert client.stats().in_flight == 0
        await inbox.holds(1)
        inbox.gate.set()


@pytest.mark.asyncio
@pytest.mark.parametrize("default", [True, False])
async def test_a_send_may_choose_its_mode(default: bool) -> None:
    """`acknowledge` on a send goes before the one of the Config, both ways."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make(acknowledge=default) as client:
        await within(client.send(to(server), acknowledge=False))
        acknowledged = client.send(to(server), acknowledge=True)
        await until(lambda: server.stats().received == 2, "both messages")
        await turns()
        assert not acknowledged.done()
        inbox.gate.set()
        await within(acknowledged)


@pytest.mark.asyncio
@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize("two", [True, False])
async def test_both_modes_work_with_each_other(one: bool, two: bool) -> None:
    """Each end chooses for what it sends; either mode talks with either."""

    def answer(message: Received[bytes]) -> bytes:
        return message.data + b"!"

    async with make(answer, acknowledge=one) as first, make(answer, acknowledge=two) as second:
        await within(asyncio.gather(*(first.send(to(second)) for _ in range(40))))
        await within(asyncio.gather(*(second.send(to(first)) for _ in range(40))))
        answers = await within(asyncio.gather(first.request(to(second, b"a")), second.request(to(first, b"b"))))
        assert [each.data for each in answers] == [b"a!", b"b!"]
        await until(lambda: first.stats().received == second.stats().received == 42, "all messages")


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [900_000, 8_000_000])
async def test_an_unacknowledged_send_waits_for_the_transport(size: int) -> None:
    """While the transport is above its high-water mark an unacknowledged send is not done."""
    async with make() as client, raw_listener() as listener:
        to_raw = Message(bytes(size), Address("tcp", "127.0.0.1", listener.port))
        sendings = [client.send(to_raw, acknowledge=False, timeout=None) for _ in range(8)]
        async with raw_accepting(listener, window=1000, window_units=65_535) as link:
            await until(lambda: client.peers[0].connected, "the link")
            await turns(100)
            assert not sendings[-1].done()
            reading = asyncio.create_task(swallow(link))
            await within(asyncio.gather(*sendings))
            reading.cancel()
            await settle(reading)


# Requests


@pytest.mark.asyncio
async def test_the_answer_of_a_request_is_a_message() -> None:
    """An answer has data and header, the request's identity, and where it came from; it has ended already."""

    async def handler(message: Received[bytes]) -> None:
        await message.respond(b"answer", header=b"header")

    async with make(handler) as server, make() as client:
        request = to(server, b"question")
        answer = await within(client.request(request))
        assert isinstance(answer, Received)
        assert (answer.data, answer.header, answer.identity) == (b"answer", b"header", request.identity)
        assert (answer.address, answer.remote_identity) == (server.address, server.identity)
        assert answer.ended
        answer.release()
        answer.refuse("too late to refuse")
        await within(client.request(to(server)))


@pytest.mark.asyncio
async def test_requests_are_answered_in_any_order() -> None:
    """Each request gets its own answer, though later ones are answered first."""
    gates = {b"0": asyncio.Event(), b"1": asyncio.Event(), b"2": asyncio.Event()}

    async def handler(message: Received[bytes]) -> bytes:
        await gates[message.data].wait()
        return b"answer " + message.data

    async with make(handler, slots=3) as server, make() as client:
        requests = {data: client.request(to(server, data)) for data in gates}
        for data in (b"2", b"0", b"1"):
            gates[data].set()
            assert (await within(requests[data])).data == b"answer " + data


# Bad arguments


@pytest.mark.asyncio
async def test_only_a_running_node_sends() -> None:
    """Before its start and after its stop a node raises Closed, at once and from every way of sending."""
    node = make()
    for _ in range(2):
        for call in (node.send, node.request):
            with pytest.raises(Closed) as caught:
                call(Message(b"", "127.0.0.1:1"))
            assert str(caught.value).startswith("the node is not running (")
        for waits in (node.send_many([]), node.ready("127.0.0.1:1"), node.check("127.0.0.1:1"), node.serve_forever()):
            with pytest.raises(Closed):
                await waits
        if not node.listening:
            await node.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("what", "text"),
    [
        (b"bytes", "expected a Message, not bytes (Message(data, address))"),
        (None, "expected a Message, not NoneType (Message(data, address))"),
        (Message(b""), 'the message has no address (Message(data, "host:port"))'),
        (
            Message(b"", "127.0.0.1:0"),
            "127.0.0.1:0 cannot be dialled (to reach a peer that does not listen, reply to its messages)",
        ),
    ],
)
async def test_what_cannot_be_sent_is_refused_at_once(what: Any, text: str) -> None:
    """No Message, no address, or a port that nobody listens at: a UsageError from the call itself."""
    async with make() as node:
        for call in (node.send, node.request):
            with pytest.raises(UsageError) as caught:
                call(what)
            assert str(caught.value) == text
        assert node.peers == ()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": "1"}, "timeout must be a number of seconds or None, not str"),
        ({"timeout": True}, "timeout must be a number of seconds or None, not bool"),
        ({"timeout": -1}, "timeout=-1 is out of range: 0 to 31536000 seconds (None is no limit)"),
        ({"timeout": float("nan")}, "timeout=nan is out of range: 0 to 31536000 seconds (None is no limit)"),
        ({"timeout": float("inf")}, "timeout=inf is out of range: 0 to 31536000 seconds (None is no limit)"),
        ({"retry": -1}, "retry=-1 is negative"),
        ({"retry": 1.5}, "retry must be an int, not float"),
        ({"retry": None}, "retry must be an int, not NoneType"),
        ({"acknowledge": "no"}, "acknowledge must be True, False or None, not str"),
        ({"dial": "never"}, "dial must be 'retry', 'once' or None, not 'never'"),
    ],
)
async def test_bad_options_of_a_send_are_refused(options: dict[str, Any], text: str) -> None:
    """An option that means nothing is a UsageError that names it, for send and send_many alike."""
    async with make() as node:
        message = Message(b"", "127.0.0.1:1")
        with pytest.raises(UsageError) as caught:
            node.send(message, **options)
        assert str(caught.value) == text
        if "dial" not in options:
            with pytest.raises(UsageError) as caught:
                await node.send_many([message], **options)
            assert str(caught.value) == text
        if "timeout" in options:
            for refused in (node.ready, node.check):
                with pytest.raises(UsageError) as caught:
                    await refused("127.0.0.1:1", **options)
                assert str(caught.value) == text


@pytest.mark.asyncio
async def test_data_that_cannot_be_carried_is_refused_at_once() -> None:
    """What the serializer does not carry is an EncodeError from the call; nothing is sent."""
    async with make() as node:
        for call in (node.send, node.request):
            with pytest.raises(EncodeError, match="raw cannot encode: it carries bytes, not str"):
                call(Message("text", "127.0.0.1:1"))
        assert node.stats().queued == 0


@pytest.mark.asyncio
async def test_a_message_above_the_own_limit_is_refused_at_once() -> None:
    """Header and data together above max_message_size are MessageTooLarge from the call."""
    async with make(max_message_size=2000) as node:
        with pytest.raises(MessageTooLarge) as caught:
            node.send(Message(bytes(1000), "127.0.0.1:1", header=bytes(1001)))
        assert str(caught.value) == (
            "message of 2001 bytes is over the limit of 2000 (split it, or raise max_message_size on both nodes)"
        )
        node.send(Message(bytes(1000), "127.0.0.1:1", header=bytes(1000))).cancel()


@pytest.mark.asyncio
async def test_a_message_above_the_peers_limit_fails() -> None:
    """What is larger than the peer announced is MessageTooLarge for that message; others go on over the same link."""
    inbox = Inbox()
    async with make(inbox, max_message_size=102_400) as server, make() as client:
        large = client.send(to(server, bytes(102_401)))
        fits = client.send(to(server, bytes(102_400)))
        with pytest.raises(MessageTooLarge, match="message of 102401 bytes is over the limit of 102400"):
            await within(large)
        await within(fits)
        assert client.stats().reconnects == 0
    assert [len(data) for data in inbox.begun] == [102_400]


# Lost with the link


@pytest.mark.asyncio
async def test_an_unacknowledged_message_may_be_lost_unnoticed() -> None:
    """What was written without acknowledgement is done, and can be lost with its link: nobody is told."""
    inbox = Inbox()
    failed: list[BaseException] = []
    async with make(inbox) as server, Proxy(server.address) as proxy, make(acknowledge=False) as client:
        client.events.send_failed = lambda message, error: failed.append(error)
        await client.ready(proxy.address)
        proxy.questions.clear()
        await within(client.send(Message(b"lost", proxy.address)))
        await proxy.cut()
        await until(lambda: not client.stats().connections, "the end of the link")
        proxy.questions.set()
        await within(client.send(Message(b"next", proxy.address)))
        await until(lambda: inbox.ended, "the next message")
    assert (inbox.begun, failed) == ([b"next"], [])


# Links that cannot be made or are lost


@pytest.mark.asyncio
async def test_a_message_waits_while_nobody_listens() -> None:
    """Dialling goes on until somebody listens; the messages that waited then go out in order."""
    inbox = Inbox()
    async with make() as client:
        async with make() as finder:
            address = finder.address
        sendings = [client.send(Message(str(number).encode(), address)) for number in range(5)]
        await until(lambda: has_trouble(client, address), "an attempt that failed")
        async with make(inbox, port=address.port):
            await within(asyncio.gather(*sendings))
    assert inbox.begun == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.asyncio
@pytest.mark.parametrize("by_config", [True, False])
async def test_dial_once_fails_with_the_first_attempt(by_config: bool) -> None:
    """With dial="once" a message fails as not sent when the first dialling fails; the cause says why."""
    options: dict[str, Any] = {} if by_config else {"dial": "once"}
    async with make(dial="once" if by_config else "retry") as client, make() as gone:
        address = gone.address
        await gone.stop()
        calls: list[Any] = [client.send, client.request]
        for call in calls:
            with pytest.raises(NotSent) as caught:
                await within(call(Message(b"x", address), timeout=None, **options))
            error = caught.value
            assert error.sent is False
            assert (error.address, error.message.data) == (address, b"x")
            assert isinstance(error.__cause__, DialFailed)
            assert str(error) == f"message to {address} was not sent: cannot connect: Connection refused"


@pytest.mark.asyncio
async def test_dial_once_spares_the_messages_that_wait() -> None:
    """Only what was sent with dial="once" fails with the first attempt; what may wait does."""
    async with make() as client, make() as gone:
        address = gone.address
        await gone.stop()
        waiting = client.send(Message(b"", address), timeout=None)
        once = client.send(Message(b"", address), timeout=None, dial="once")
        with pytest.raises(NotSent):
            await within(once)
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.asyncio
async def test_a_lost_link_leaves_messages_not_confirmed() -> None:
    """What was in flight when the link is lost may have been handled; what waited goes over the next link."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=2) as server, Proxy(server.address) as proxy, make() as client:
        await client.ready(proxy.address)
        sendings = [client.send(Message(str(number).encode(), proxy.address), timeout=None) for number in range(4)]
        await inbox.holds(1)
        await until(lambda: server.stats().received == 2, "a full window")
        await proxy.cut()
        for sending in sendings[:2]:
            with pytest.raises(NotConfirmed) as caught:
                await within(sending)
            error = caught.value
            assert error.sent is True
            assert not isinstance(error, TimeoutError)
            assert isinstance(error.__cause__, PeerLost)
            assert re.match(rf"message to {proxy.address} was sent, but not confirmed: lost the peer", str(error))
            assert error.hint is not None
            assert "retry=N" in error.hint
        inbox.gate.set()
        await within(asyncio.gather(*sendings[2:]))
        assert sorted(inbox.begun) == [b"0", b"1", b"2", b"3"]


# At the bound


@pytest.mark.asyncio
async def test_the_queue_is_bounded_in_messages() -> None:
    """Past send_queue_limit a future fails at once with QueueFull, which is not sent, and names the remedy."""
    async with make(send_queue_limit=3) as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        waiting = [client.send(Message(b"", address)) for _ in range(3)]
        over = client.send(Message(b"", address))
        assert over.done()
        error = over.exception()
        assert isinstance(error, QueueFull)
        assert isinstance(error, NotSent)
        assert (error.sent, error.limit, error.unit, error.address) == (False, 3, "messages", address)
        assert str(error) == (
            f"message to {address} was not sent: the send queue is full: the limit is 3 messages"
            " (await each send, await node.ready(address), or use send_many)"
        )
        waiting.pop().cancel()
        waiting.append(client.send(Message(b"", address)))
        assert not waiting[-1].done(), "a place is free again"
        for sending in waiting:
            sending.cancel()


@pytest.mark.asyncio
async def test_the_queue_is_bounded_in_bytes() -> None:
    """Past send_queue_bytes a future fails at once with QueueFull; smaller ones that fit are still taken."""
    async with make(send_queue_bytes=1000) as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        waiting = [client.send(Message(bytes(400), address, header=bytes(100)))]
        over = client.send(Message(bytes(501), address))
        error = over.exception()
        assert isinstance(error, QueueFull)
        assert (error.limit, error.unit) == (1000, "bytes")
        assert "the send queue is full: the limit is 1000 bytes" in str(error)
        waiting.append(client.send(Message(bytes(500), address)))
        assert not waiting[-1].done()
        for sending in waiting:
            sending.cancel()
        assert client.stats().queued == 0


@pytest.mark.asyncio
async def test_the_queue_takes_one_message_of_any_size() -> None:
    """An empty queue takes a message that alone is above its bound in bytes."""
    async with make(send_queue_bytes=1000) as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        large = client.send(Message(bytes(1_000_000), address))
        assert not large.done()
        assert isinstance(client.send(Message(b"x", address)).exception(), QueueFull)
        large.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize("buffer", [bytearray, lambda data: memoryview(bytearray(data))])
async def test_a_callers_buffer_does_not_count(buffer: Any) -> None:
    """A buffer that the library only refers to does not count against the bound in bytes."""
    async with make(send_queue_bytes=1000, serializer="buffer") as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        waiting = [client.send(Message(buffer(bytes(900)), address)) for _ in range(5)]
        assert not any(sending.done() for sending in waiting)
        waiting += [client.send(Message(bytes(900), address))]
        assert not waiting[-1].done()
        assert isinstance(client.send(Message(bytes(900), address)).exception(), QueueFull)
        for sending in waiting:
            sending.cancel()


@pytest.mark.asyncio
async def test_what_a_serializer_makes_counts() -> None:
    """Bytes that the serializer made are the library's, and count."""
    async with make(send_queue_bytes=1000, serializer="json") as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        waiting = client.send(Message("x" * 900, address))
        assert isinstance(client.send(Message("x" * 900, address)).exception(), QueueFull)
        waiting.cancel()


@pytest.mark.asyncio
async def test_one_peers_full_queue_is_its_own() -> None:
    """Queues are each peer's: what waits for one keeps nothing from another."""
    inbox = Inbox()
    async with make(send_queue_limit=1) as client, raw_listener() as listener, make(inbox) as server:
        address = Address("tcp", "127.0.0.1", listener.port)
        waiting = client.send(Message(b"", address))
        assert client.send(Message(b"", address)).exception() is not None
        await within(client.send(to(server)))
        waiting.cancel()


# What comes back that was not asked for


def test_unset_says_what_it_means() -> None:
    """The default of a timeout shows as what it is."""
    assert repr(UNSET) == "UNSET"


@pytest.mark.asyncio
async def test_what_arrived_last_is_what_acknowledges() -> None:
    """An acknowledgement of another message than the one in flight confirms nothing, and is counted as late."""
    async with make() as client, raw_listener() as listener:
        sending = client.send(Message(b"x", f"127.0.0.1:{listener.port}"))
        async with raw_accepting(listener) as link:
            frame = await link.read_frame()
            link.write(frame.__class__(frame.identity, frame.serial + 1, ACK).encode())
            await until(lambda: client.stats().late == 1, "the stray acknowledgement")
            assert not sending.done()
            link.write(frame.__class__(frame.identity, frame.serial, ACK).encode())
            await within(sending)


@pytest.mark.asyncio
async def test_a_message_that_breaks_the_format_ends_the_link() -> None:
    """A peer that sends what the format forbids loses its link, and what was in flight to it fails with that error."""
    async with make() as client, raw_listener() as listener:
        sending = client.send(Message(b"x", f"127.0.0.1:{listener.port}"))
        async with raw_accepting(listener) as link:
            frame = await link.read_frame()
            link.write(frame.__class__(frame.identity, frame.serial, ACK | REQ_ACK, b"h").encode())
            with pytest.raises(NotConfirmed, match="protocol error"):
                await within(sending)


@pytest.mark.asyncio
async def test_raw_dialling_reaches_a_node() -> None:
    """A scripted redpoll node's message is handled and acknowledged by its serial."""
    inbox = Inbox()
    async with make(inbox) as server, raw_dialling(server, port=0) as link:
        frame = link.message(b"raw")
        link.send(frame)
        acknowledgement = await link.read_frame()
        assert (acknowledgement.kind, acknowledgement.serial) == (ACK, frame.serial)
    assert inbox.begun == [b"raw"]


@pytest.mark.asyncio
async def test_a_bad_option_leaves_no_peer() -> None:
    """What is refused for an option knows nobody afterwards, however many addresses it named."""
    async with make() as node:
        for call in (node.send, node.request):
            for options in ({"timeout": -1}, {"timeout": "1"}, {"dial": "never"}):
                with pytest.raises(UsageError):
                    call(Message(b"x", "127.0.0.1:9"), **options)
        with pytest.raises(UsageError):
            await within(node.ready("127.0.0.1:9", timeout=-1))
        with pytest.raises(UsageError):
            await within(node.check("127.0.0.1:9", timeout=-1))
        assert node.peers == ()


@pytest.mark.asyncio
async def test_what_is_done_is_let_go() -> None:
    """A send that is done refers to its message no more: whoever keeps the future keeps no data."""
    out = Sending(loop=asyncio.get_running_loop())
    out.prepare(Message(b"data", header=b"head"), b"data", 0, None, None)
    out.settle(None, None)
    assert await out is None
    assert [repr(out.message), out.header, out.body] == ["None", b"", b""]
