"""send_many: streams of messages in order, slowed by their receivers, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from redpoll import (
    Address,
    BatchError,
    Closed,
    EncodeError,
    Expired,
    HandlerFailed,
    Message,
    MessageTooLarge,
    NotConfirmed,
    Received,
    UsageError,
)
from redpoll.wire.link_timers import tick
from redpoll.wire.states import LinkState
from tests.interop.raw import REQ_ACK, raw_listener
from tests.node.support import Inbox, Proxy, make, raw_accepting, settle, to, turns, until, within

each_mode = pytest.mark.parametrize("acknowledge", [True, False])


def numbered(address: Address | None, count: int, size: int = 0) -> Iterator[Message[bytes]]:
    """So many messages, each with its number at its beginning."""
    for number in range(count):
        yield Message(b"%d " % number + bytes(size), address)


async def slowly(messages: Iterator[Message[bytes]]) -> AsyncIterator[Message[bytes]]:
    """The same, asynchronously."""
    for message in messages:
        await asyncio.sleep(0)
        yield message


def numbers(inbox: Inbox) -> list[int]:
    """The numbers of the messages begun."""
    return [int(data.split(b" ")[0]) for data in inbox.begun]


# In order, and counted


@pytest.mark.asyncio
@each_mode
@pytest.mark.parametrize("kind", ["generator", "list", "tuple", "async generator"])
async def test_any_iterable_is_sent(acknowledge: bool, kind: str) -> None:
    """Messages of a sync or async iterable all arrive in order, and their number is returned."""
    inbox = Inbox()
    async with make(inbox) as server, make() as client:
        messages: Any = numbered(server.address, 300)
        if kind == "list":
            messages = list(messages)
        elif kind == "tuple":
            messages = tuple(messages)
        elif kind == "async generator":
            messages = slowly(messages)
        assert await within(client.send_many(messages, acknowledge=acknowledge)) == 300
        await until(lambda: len(inbox.ended) == 300, "all messages")
    assert numbers(inbox) == list(range(300))


@pytest.mark.asyncio
async def test_a_link_that_carries_a_stream_is_in_use() -> None:
    """A link over which nothing but a stream of unacknowledged messages goes is not left as idle."""
    async with make(Inbox()) as server, make() as client:
        await within(client.ready(server.address))
        (connection,) = client._peers.connections
        link = connection.link

        def messages() -> Iterator[Message[bytes]]:
            yield from numbered(server.address, 5)
            link.liveness.last_used -= client.config.effective_reuse_time
            link.liveness.idle_at -= 1.0
            yield from numbered(server.address, 5)

        await within(client.send_many(messages(), acknowledge=False))
        tick(link, link.liveness.idle_at)
        assert link.state is LinkState.OPEN


@pytest.mark.asyncio
@each_mode
async def test_nothing_is_nothing(acknowledge: bool) -> None:
    """An empty iterable sends nothing and returns 0."""
    async with make() as client:
        assert await client.send_many([], acknowledge=acknowledge) == 0
        assert await client.send_many(slowly(iter(())), acknowledge=acknowledge) == 0


@pytest.mark.asyncio
@each_mode
async def test_messages_of_all_shapes_keep_their_order(acknowledge: bool) -> None:
    """Small and large ones, with headers and without, replies and plain ones arrive in the order of the iterable."""
    inbox = Inbox()
    async with make(inbox) as server, make() as client:

        def shapes() -> Iterator[Message[bytes]]:
            for number, message in enumerate(numbered(server.address, 200)):
                if number % 7 == 3:
                    yield Message(message.data + bytes(100_000), server.address)
                elif number % 7 == 5:
                    yield Message(message.data, server.address, header=b"header")
                elif number % 7 == 6:
                    yield message.reply(message.data)
                else:
                    yield message

        assert await within(client.send_many(shapes(), acknowledge=acknowledge, timeout=None)) == 200
        await until(lambda: len(inbox.ended) == 200, "all messages")
    assert numbers(inbox) == list(range(200))


@pytest.mark.asyncio
@each_mode
async def test_messages_may_go_to_several_nodes(acknowledge: bool) -> None:
    """A stream may change its address from message to message; each node gets its own in order."""
    one_inbox, two_inbox = Inbox(), Inbox()
    async with make(one_inbox) as one, make(two_inbox) as two, make() as client:
        pairs = zip(numbered(one.address, 50), numbered(two.address, 50), strict=True)
        sent = await within(client.send_many((each for pair in pairs for each in pair), acknowledge=acknowledge))
        assert sent == 100
        await until(lambda: len(one_inbox.ended) == len(two_inbox.ended) == 50, "all messages")
    assert numbers(one_inbox) == numbers(two_inbox) == list(range(50))


@pytest.mark.asyncio
async def test_the_mode_is_the_configs_unless_given() -> None:
    """Without `acknowledge` the Config's mode holds."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, make(acknowledge=False) as unacknowledged, make() as acknowledged:
        assert await within(unacknowledged.send_many(numbered(server.address, 3))) == 3
        sending = asyncio.create_task(acknowledged.send_many(numbered(server.address, 3)))
        await inbox.holds(2)
        await turns()
        assert not sending.done()
        inbox.gate.set()
        assert await within(sending) == 3


@pytest.mark.asyncio
async def test_a_stream_toward_libchirp_is_sent_one_by_one() -> None:
    """Toward libchirp each acknowledged message waits for the acknowledgement of the one before."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = asyncio.create_task(client.send_many(numbered(address, 5)))
        async with raw_accepting(listener, redpoll=False) as link:
            for number in range(5):
                frame = await link.read_frame()
                assert (frame.data, frame.kind) == (b"%d " % number, REQ_ACK)
                await turns()
                assert not sending.done()
                link.acknowledge(frame)
            assert await within(sending) == 5


@pytest.mark.asyncio
async def test_an_unacknowledged_stream_toward_libchirp_flows() -> None:
    """Toward libchirp unacknowledged messages follow each other without waiting."""
    async with make() as client, raw_listener() as listener:
        address = Address("tcp", "127.0.0.1", listener.port)
        sending = asyncio.create_task(client.send_many(numbered(address, 200), acknowledge=False))
        async with raw_accepting(listener, redpoll=False) as link:
            assert await within(sending) == 200
            assert [(await link.read_frame()).data for _ in range(200)] == [b"%d " % number for number in range(200)]


# Slowed by the receiver


@pytest.mark.asyncio
@each_mode
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_no_more_than_a_window_is_open(acknowledge: bool, asynchronous: bool) -> None:
    """The iterable is asked for a message only when that can go: a receiver that holds on slows it down."""
    inbox = Inbox(hold=True)
    asked = 0

    def counting() -> Iterator[Message[bytes]]:
        nonlocal asked
        for message in numbered(server.address, 100):
            asked += 1
            yield message

    async with make(inbox, window=8) as server, make() as client:
        await client.ready(server.address)
        messages: Any = slowly(counting()) if asynchronous else counting()
        sending = asyncio.create_task(client.send_many(messages, acknowledge=acknowledge, timeout=None))
        await until(lambda: server.stats().received == 8, "a window of messages")
        await turns(100)
        assert server.stats().received == 8
        assert asked <= (16 if asynchronous and not acknowledge else 9), "those written, and a window that waits"
        inbox.gate.set()
        assert await within(sending) == 100
        await until(lambda: len(inbox.ended) == 100, "all messages")
    assert numbers(inbox) == list(range(100))


@pytest.mark.asyncio
async def test_an_endless_stream_shares_the_loop() -> None:
    """A stream that never ends lets other tasks of its loop have their turn."""
    received = 0

    def handler(message: Received[bytes]) -> None:
        nonlocal received
        received += 1

    async with make(handler, window=50_000) as server, make() as client:

        def endless() -> Iterator[Message[bytes]]:
            while True:
                yield to(server)

        sending = asyncio.create_task(client.send_many(endless(), acknowledge=False))
        await until(lambda: received > 20_000, "many messages")
        sending.cancel()
        await settle(sending)
        assert sending.cancelled()


# When one fails


@pytest.mark.asyncio
async def test_the_first_failure_is_told_with_its_index(caplog: pytest.LogCaptureFixture) -> None:
    """BatchError names the first item that failed and counts those that succeeded, before and after it."""

    def handler(message: Received[bytes]) -> None:
        if int(message.data) in {20, 25}:
            raise ValueError("no good")

    async with make(handler, window=10) as server, make() as client:
        await client.ready(server.address)
        asked = 0

        def counting() -> Iterator[Message[bytes]]:
            nonlocal asked
            for message in numbered(server.address, 100):
                asked += 1
                yield message

        with pytest.raises(BatchError) as caught:
            await within(client.send_many(counting()))
        error = caught.value
        assert error.index == 20
        assert isinstance(error.error, HandlerFailed)
        assert error.__cause__ is error.error
        assert (error.sent, error.address) == (True, server.address)
        assert error.message.data == b"20 "
        assert asked < 60, "nothing behind those open was sent"
        assert error.completed == server.stats().received - server.stats().refused
        assert client.stats().in_flight == 0, "those that were open have ended"
        assert str(error) == f"item 20 failed, {error.completed} succeeded: {error.error}"


@pytest.mark.asyncio
@each_mode
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        ("no message", UsageError, "expected a Message, not str"),
        (None, UsageError, "expected a Message, not NoneType"),
        (Message(b"x"), UsageError, "the message has no address"),
        ("text data", EncodeError, "raw cannot encode: it carries bytes, not str"),
        ("too large", MessageTooLarge, "message of 50000 bytes is over the limit of 40000"),
        ("too large with a header", MessageTooLarge, "message of 40001 bytes is over the limit of 40000"),
    ],
)
async def test_a_bad_item_is_a_failure_like_another(
    acknowledge: bool, asynchronous: bool, bad: Any, kind: type[Exception], text: str
) -> None:
    """What cannot be sent at all fails with its index, was not sent, and what came before it was."""
    inbox = Inbox()
    async with make(inbox) as server, make(max_message_size=40_000) as client:
        if bad == "text data":
            bad = Message("text", server.address)
        elif bad == "too large":
            bad = to(server, bytes(50_000))
        elif bad == "too large with a header":
            bad = to(server, bytes(40_000), header=b"h")
        items: Any = [*numbered(server.address, 5), bad, *numbered(server.address, 5)]
        if asynchronous:
            items = slowly(iter(items))
        with pytest.raises(BatchError) as caught:
            await within(client.send_many(items, acknowledge=acknowledge))
        error = caught.value
        assert (error.index, error.completed, error.sent) == (5, 5, False)
        assert isinstance(error.error, kind)
        assert text in str(error.error)
        await until(lambda: len(inbox.ended) == 5, "those before it")
    assert numbers(inbox) == [0, 1, 2, 3, 4]


@pytest.mark.asyncio
async def test_an_earlier_failure_goes_before_a_bad_item(caplog: pytest.LogCaptureFixture) -> None:
    """When an item that is open fails after a bad one was met, the open one is the first that failed."""

    def handler(message: Received[bytes]) -> None:
        if message.data == b"2 ":
            raise ValueError

    async with make(handler) as server, make() as client:
        items: Any = [*numbered(server.address, 5), "bad"]
        with pytest.raises(BatchError) as caught:
            await within(client.send_many(items))
        assert (caught.value.index, caught.value.completed) == (2, 4)
        assert isinstance(caught.value.error, HandlerFailed)


@pytest.mark.asyncio
@each_mode
async def test_what_an_iterable_raises_comes_out(acknowledge: bool) -> None:
    """An exception of the iterable itself is raised as it is, and what is open is withdrawn."""
    inbox = Inbox()

    def breaking() -> Iterator[Message[bytes]]:
        yield from numbered(server.address, 3)
        raise ZeroDivisionError("of the iterable")

    async with make(inbox) as server, make() as client:
        with pytest.raises(ZeroDivisionError, match="of the iterable"):
            await within(client.send_many(breaking(), acknowledge=acknowledge))
        await until(lambda: client.stats().in_flight == 0, "the end of those open")
        assert (await within(client.send_many(numbered(server.address, 3), acknowledge=acknowledge))) == 3


@pytest.mark.asyncio
async def test_what_was_made_before_an_iterable_raises_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an iterable gave before it raised is written at once, unacknowledged as it is."""
    monkeypatch.setattr("redpoll.node.batch._RUN", 4)
    async with raw_listener() as listener, make(acknowledge=False, timeout=None, keepalive=None) as client:
        address = Address("tcp", "127.0.0.1", listener.port)

        def breaking() -> Iterator[Message[bytes]]:
            yield from numbered(address, 11)
            raise ZeroDivisionError

        sending = asyncio.ensure_future(client.send_many(breaking()))
        async with raw_accepting(listener) as link:
            with pytest.raises(ZeroDivisionError):
                await within(sending)
            assert [int((await link.read_frame()).data) for _ in range(11)] == list(range(11))


@pytest.mark.asyncio
async def test_what_is_sent_beside_a_stream_is_not_counted_in_it() -> None:
    """The count is of the messages of the stream, though making them sends others to the same peer."""
    inbox = Inbox()
    async with make(inbox) as server, make(acknowledge=False) as client:
        beside: list[asyncio.Future[None]] = []

        def sending() -> Iterator[Message[bytes]]:
            for message in numbered(server.address, 20):
                beside.append(client.send(to(server, b"0 beside")))
                yield message

        await within(client.ready(server.address))
        assert await within(client.send_many(sending())) == 20
        await settle(*beside)
        await inbox.holds(40)


@pytest.mark.asyncio
async def test_what_is_sent_beside_a_stream_is_in_order_and_within_the_window() -> None:
    """Messages that a stream's own generator sends to the same peer are handled in order, a window at a time."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=64) as server, make(timeout=None) as client:
        beside: list[asyncio.Future[None]] = []
        numbers = iter(range(2_000))

        def sending() -> Iterator[Message[bytes]]:
            for count in range(40):
                beside.extend(client.send(to(server, b"%d" % next(numbers))) for _ in range(count))
                yield Message(b"%d" % next(numbers), server.address)

        await within(client.ready(server.address))
        stream = asyncio.ensure_future(client.send_many(sending(), acknowledge=False))
        await inbox.holds(1)
        assert server.stats().received <= 64
        inbox.gate.set()
        assert await within(stream) == 40
        await settle(*beside)
        await inbox.holds(820)
        assert [int(data) for data in inbox.begun] == list(range(820))


@pytest.mark.asyncio
@pytest.mark.parametrize("what", [7, None, Message(b"", "127.0.0.1:1")])
async def test_what_is_no_iterable_is_refused(what: Any) -> None:
    """Something that is no iterable is a UsageError that names its type."""
    async with make() as client:
        with pytest.raises(UsageError) as caught:
            await client.send_many(what)
        assert str(caught.value) == f"expected an iterable of messages, not {type(what).__name__}"


@pytest.mark.asyncio
@each_mode
async def test_nobody_there_expires(acknowledge: bool) -> None:
    """Each message has its timeout: where nobody listens the first expires, not sent."""
    async with make() as gone:
        address = gone.address
    async with make() as client:
        with pytest.raises(BatchError) as caught:
            await within(client.send_many(numbered(address, 10), timeout=0.05, acknowledge=acknowledge))
        assert (caught.value.index, caught.value.completed, caught.value.sent) == (0, 0, False)
        assert isinstance(caught.value.error, Expired)
        assert client.stats().queued == 0


@pytest.mark.asyncio
async def test_a_receiver_that_does_not_go_on_expires() -> None:
    """An unacknowledged stream whose receiver takes no more ends with its timeout, and says what was not sent."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=4) as server, make() as client:
        await client.ready(server.address)
        with pytest.raises(BatchError) as caught:
            await within(client.send_many(numbered(server.address, 10), timeout=0.05, acknowledge=False))
        assert (caught.value.index, caught.value.completed, caught.value.sent) == (4, 4, False)
        assert isinstance(caught.value.error, Expired)
        inbox.gate.set()
        await until(lambda: len(inbox.ended) == 4, "those that were sent")


@pytest.mark.asyncio
async def test_a_lost_link_fails_the_first_unconfirmed() -> None:
    """When the link is lost the first item that was in flight is the failure: it may have been handled."""
    inbox = Inbox(hold=True)
    async with make(inbox) as server, Proxy(server.address) as proxy, make() as client:
        sending = asyncio.create_task(client.send_many(numbered(proxy.address, 10), timeout=None))
        await inbox.holds(1)
        await until(lambda: server.stats().received == 10, "all of them")
        await proxy.cut()
        with pytest.raises(BatchError) as caught:
            await within(sending)
        assert (caught.value.index, caught.value.completed, caught.value.sent) == (0, 0, True)
        assert isinstance(caught.value.error, NotConfirmed)
        inbox.gate.set()


@pytest.mark.asyncio
async def test_a_stream_may_be_sent_again() -> None:
    """With retry a stream whose link is lost goes on, and each of its messages is handled once."""
    inbox = Inbox()
    async with make(inbox) as server, Proxy(server.address) as proxy, make() as client:

        async def cutting() -> AsyncIterator[Message[bytes]]:
            for number, message in enumerate(numbered(proxy.address, 60)):
                yield message
                if number in {20, 40}:
                    await proxy.cut()

        assert await within(client.send_many(cutting(), retry=5)) == 60
    assert numbers(inbox) == list(range(60))


# Cancelled, stopped


@pytest.mark.asyncio
@each_mode
async def test_cancelling_withdraws_what_is_open(acknowledge: bool) -> None:
    """A cancelled stream sends nothing more, and what was not begun never is."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=4) as server, make() as client:
        await client.ready(server.address)
        sending = asyncio.create_task(
            client.send_many(numbered(server.address, 100), timeout=None, acknowledge=acknowledge)
        )
        await until(lambda: server.stats().received == 4, "a window")
        await turns()
        sending.cancel()
        await settle(sending)
        assert sending.cancelled()
        if acknowledge:
            await until(lambda: client.stats().in_flight == 1, "all but the one that was begun to be withdrawn")
        inbox.gate.set()
        await within(client.send(to(server, b"999 ")))
        assert client.stats().queued == 0
    assert numbers(inbox) == ([0, 999] if acknowledge else [0, 1, 2, 3, 999])


@pytest.mark.asyncio
@each_mode
async def test_a_stream_ends_with_its_node(acknowledge: bool) -> None:
    """Stopping the node ends a stream with an error that counts what succeeded."""
    inbox = Inbox(hold=True)
    async with make(inbox, window=4) as server, make() as client:
        await client.ready(server.address)
        sending = asyncio.create_task(
            client.send_many(numbered(server.address, 100), timeout=None, acknowledge=acknowledge)
        )
        await until(lambda: server.stats().received == 4, "a window")
        await turns()
        await within(client.stop(drain=0))
        with pytest.raises(BatchError) as caught:
            await within(sending)
        assert caught.value.index == caught.value.completed == (0 if acknowledge else 4)
        assert acknowledge or isinstance(caught.value.error, Closed)
        inbox.gate.set()
