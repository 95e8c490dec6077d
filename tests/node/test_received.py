"""A received message: what it says, and the ways it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from redpoll import (
    Abandoned,
    Cancelled,
    HandlerFailed,
    Message,
    NoAnswer,
    Node,
    Received,
    Refused,
    UsageError,
)
from tests.interop.raw import ACK, REQ_ACK, raw_listener
from tests.node.support import Inbox, Proxy, make, raw_dialling, settle, to, turns, until, within


@pytest.mark.asyncio
async def test_it_says_where_it_came_from() -> None:
    """Address, identities, header, data, node and deadline are those of the sending."""
    async with make() as server, make() as client:
        message = to(server, b"data", header=b"header")
        sending = client.send(message, timeout=5)
        received = await within(server.receive())
        assert (received.data, received.header, received.identity) == (b"data", b"header", message.identity)
        assert (received.remote_identity, received.address) == (client.identity, client.address)
        assert received.node is server
        assert received.deadline is not None
        assert not received.wanted
        assert not received.redelivered
        received.release()
        await within(sending)


@pytest.mark.asyncio
async def test_it_ends_once() -> None:
    """Release and refuse are idempotent: the first one counts, and the data stay."""
    async with make() as server, make() as client:
        sending = client.send(to(server, b"kept"))
        received = await within(server.receive())
        before = received.ended
        received.release()
        received.refuse("too late")
        received.release()
        await within(sending)
        assert (before, received.ended) == (False, True)
        assert received.data == b"kept"
        assert server.stats().refused == 0


@pytest.mark.asyncio
async def test_a_refusal_tells_why() -> None:
    """`refuse` gives its reason to the sender."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        (await within(server.receive())).refuse("not today")
        with pytest.raises(Refused, match="not today") as caught:
            await within(sending)
        assert caught.value.sent


@pytest.mark.asyncio
async def test_with_releases_and_refuses() -> None:
    """As a context manager it releases, or refuses with what the block raised; plain or async."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        with await within(server.receive()):
            pass
        await within(sending)
        sending = client.send(to(server))
        with pytest.raises(KeyError):
            async with await within(server.receive()):
                raise KeyError("x")
        with pytest.raises(HandlerFailed, match="KeyError"):
            await within(sending)


@pytest.mark.asyncio
async def test_a_cancelled_block_refuses_as_cancelled() -> None:
    """A block whose task is cancelled refuses its message as Cancelled."""
    async with make() as server, make() as client:
        sending = client.send(to(server))

        async def work() -> None:
            async with await server.receive():
                await asyncio.Event().wait()

        working = asyncio.ensure_future(work())
        await until(lambda: server.stats().slots_used == 1, "the message in a slot")
        working.cancel()
        await settle(working)
        with pytest.raises(Cancelled):
            await within(sending)


@pytest.mark.asyncio
async def test_it_can_be_answered_while_it_goes_on() -> None:
    """`respond` answers a request before its message ends."""
    async with make() as server, make() as client:
        asking = client.request(to(server, b"?"))
        received = await within(server.receive())
        assert received.wanted
        await within(received.respond(b"!", header=b"h"))
        answer = await within(asking)
        assert (answer.data, answer.header) == (b"!", b"h")
        assert not received.ended
        received.release()


@pytest.mark.asyncio
async def test_released_without_an_answer() -> None:
    """A request whose message was released, and that nobody answers, ends with NoAnswer at its deadline."""
    async with make(lambda message: None) as server, make() as client:
        await client.ready(server.address)
        with pytest.raises(NoAnswer):
            await within(client.request(to(server), timeout=0.4))


@pytest.mark.asyncio
async def test_a_plain_message_is_answered_by_a_message() -> None:
    """Sent back, or replied to, a received message goes to the node that sent it, with its identity."""
    replies: list[Received[bytes]] = []
    async with make() as server, make(replies.append, port=0) as client:
        message = to(server, b"x")
        sending = client.send(message)
        async with server.take(timeout=5) as received:
            await within(server.send(received))
            await within(server.send(received.reply(b"y")))
        await within(sending)
        assert [(reply.data, reply.identity) for reply in replies] == [
            (b"x", message.identity),
            (b"y", message.identity),
        ]


@pytest.mark.asyncio
async def test_it_sees_that_its_sender_gave_up() -> None:
    """`cancelled` is set when the sender's await is cancelled."""
    async with make() as server, make() as client:
        asking = client.request(to(server))
        received = await within(server.receive())
        assert not received.cancelled.is_set()
        asking.cancel()
        await within(received.cancelled.wait())
        received.release()


@pytest.mark.asyncio
async def test_forwarding_keeps_identity_and_header() -> None:
    """A forwarded message has the data, header and identity of the received one."""
    async with make() as last, make() as middle, make() as client:
        message = Message(b"data", middle.address, header=b"header")
        sending = client.send(message)
        async with middle.take(timeout=5) as received:
            onward = middle.send(received.forward(last.address))
            async with last.take(timeout=5) as arrived:
                assert (arrived.data, arrived.header, arrived.identity) == (b"data", b"header", message.identity)
            await within(onward)
        await within(sending)


# Ends


@pytest.mark.asyncio
@pytest.mark.parametrize("reason", [7, None, b"bytes", ValueError("no")])
async def test_a_reason_is_text(reason: Any) -> None:
    """A reason of another type is a UsageError that names it, and the message goes on."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        received = await within(server.receive())
        with pytest.raises(UsageError) as caught:
            received.refuse(reason)
        assert str(caught.value) == f"a reason must be text, not {type(reason).__name__}"
        assert not received.ended
        received.release()
        await within(sending)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("", ""),
        ("out of p\u00e4per", "out of p\u00e4per"),
        ("x" * 5000, "x" * 1024),
        ("lone \ud800", "lone ?"),
    ],
)
async def test_a_reason_travels_as_a_short_text(reason: str, text: str) -> None:
    """A reason arrives as it is, cut to what a refusal has room for; without one the error has none."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        (await within(server.receive())).refuse(reason)
        with pytest.raises(Refused) as caught:
            await within(sending)
        assert caught.value.text == text


@pytest.mark.asyncio
async def test_terminal_codes_in_a_reason_do_no_harm() -> None:
    """What a peer wrote is shown without line breaks and control characters."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        (await within(server.receive())).refuse("\x1b[31mred\nline")
        with pytest.raises(Refused) as caught:
            await within(sending)
        assert str(caught.value).endswith("was refused: \\x1b[31mred\\nline")


class UnspeakableError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.asyncio
async def test_an_exception_without_text_refuses_too(caplog: pytest.LogCaptureFixture) -> None:
    """A handler's exception that cannot be shown refuses its message with its type alone."""

    def handler(message: Received[bytes]) -> None:
        raise UnspeakableError

    async with make(handler) as server, make() as client:
        with pytest.raises(HandlerFailed) as caught:
            await within(client.send(to(server)))
        assert caught.value.text == "UnspeakableError"


@pytest.mark.asyncio
async def test_a_generator_that_is_closed_abandons() -> None:
    """A generator that works on a message and is closed in the middle refuses it as Abandoned."""
    async with make() as server, make() as client:
        sending = client.send(to(server))
        received = await within(server.receive())

        def working() -> Any:
            with received:
                yield

        generator = working()
        next(generator)
        generator.close()
        with pytest.raises(Abandoned):
            await within(sending)


# Answers


@pytest.mark.asyncio
async def test_responding_to_a_plain_message_is_a_message() -> None:
    """`respond` to a message that wants no answer sends one of its own, done when that is released."""
    replies = Inbox(hold=True)
    async with make() as server, make(replies) as client:
        message = to(server)
        sending = client.send(message)
        received = await within(server.receive())
        assert not received.wanted
        responding = asyncio.create_task(received.respond(b"reply", header=b"h"))
        await replies.holds(1)
        await turns()
        assert not responding.done()
        (reply,) = replies.messages
        assert (reply.data, reply.header, reply.identity) == (b"reply", b"h", message.identity)
        replies.gate.set()
        await within(responding)
        received.release()
        await within(sending)


# libchirp


@pytest.mark.asyncio
async def test_a_libchirp_message_says_little() -> None:
    """A message of a libchirp node wants nothing it could say, has no deadline, and is acknowledged by its release."""
    async with make() as server, raw_listener() as listener:
        async with raw_dialling(server, port=listener.port, redpoll=False, identity=b"L" * 16) as link:
            frame = link.message(b"data", header=b"h")
            link.send(frame)
            received = await within(server.receive())
            assert (received.data, received.header, received.identity) == (b"data", b"h", frame.identity)
            assert (received.wanted, received.redelivered, received.deadline) == (False, False, None)
            assert (str(received.address), received.remote_identity) == (f"127.0.0.1:{listener.port}", b"L" * 16)
            assert await link.silent(0.02)
            received.release()
            acknowledgement = await link.read_frame()
            assert (acknowledgement.kind, acknowledgement.identity) == (ACK, frame.identity)


@pytest.mark.asyncio
async def test_responding_to_libchirp_is_a_message() -> None:
    """`respond` toward libchirp sends a message with the same identity, done when it is acknowledged."""
    async with make() as server, raw_listener() as listener:
        async with raw_dialling(server, port=listener.port, redpoll=False) as link:
            frame = link.message(b"question")
            link.send(frame)
            received = await within(server.receive())
            responding = asyncio.create_task(received.respond(b"answer"))
            answer = await link.read_frame()
            assert (answer.kind, answer.identity, answer.data) == (REQ_ACK, frame.identity, b"answer")
            await turns()
            assert not responding.done()
            link.acknowledge(answer)
            await within(responding)
            received.release()


# Dropped


async def by_take(node: Node[Any]) -> Any:
    async with node.take() as message:
        return message


async def by_loop(node: Node[Any]) -> Any:
    async for message in node:
        return message
    raise AssertionError


async def by_batches(node: Node[Any]) -> Any:
    async for (message,) in node.batches():
        return message
    raise AssertionError


async def by_receive(node: Node[Any]) -> Any:
    return await node.receive()


def at_once(held: list[Any]) -> None:
    held.clear()


def in_a_cycle(held: list[Any]) -> None:
    cycle: list[Any] = [held.pop()]
    cycle.append(cycle)
    del cycle
    gc.collect()


def in_a_thread(held: list[Any]) -> None:
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("take", "auto_release"),
    [(by_receive, True), (by_receive, False), (by_take, False), (by_loop, False), (by_batches, False)],
)
@pytest.mark.parametrize("drop", [at_once, in_a_cycle, in_a_thread])
async def test_dropped_it_is_abandoned(
    take: Callable[[Node[Any]], Any], auto_release: bool, drop: Callable[[list[Any]], None]
) -> None:
    """A message whose end is left to its consumer, which drops it, is refused, with a warning; others have its slot."""
    async with make(auto_release=auto_release) as server, make() as client:
        for acknowledge in (True, False):
            sending = client.send(to(server, b"dropped"), acknowledge=acknowledge)
            held = [await within(take(server))]
            assert server.stats().slots_used == 1
            with pytest.warns(RuntimeWarning, match="7 bytes, address .* was dropped before it ended"):
                drop(held)
            if acknowledge:
                with pytest.raises(Abandoned, match="its consumer dropped it"):
                    await within(sending)
            await until(lambda: server.stats().slots_used == 0, "the slot")
        sending = client.send(to(server, b"next"))
        message = await within(server.receive())
        assert message.data == b"next"
        message.release()
        del message
        await within(sending)


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["release", "refuse", "with", "auto_release"])
async def test_dropped_after_its_end_nothing_is_said(end: str) -> None:
    """A message that was ended, in whatever way, may be dropped."""
    async with make(auto_release="get" if end == "auto_release" else True) as server, make() as client:
        sending = client.send(to(server))
        message = await within(server.receive())
        if end == "with":
            with message:
                pass
        elif end != "auto_release":
            getattr(message, end)()
        del message
        await settle(sending)
        assert server.stats().slots_used == 0


@pytest.mark.asyncio
async def test_what_was_taken_ends_over_a_newer_link() -> None:
    """A message that was pulled, and sent again over another link, ends over that one; its consumer sees who gave it up."""
    async with make() as server, Proxy(server.address) as proxy, make(resume=30.0) as client:
        sending = client.send(Message(b"x", proxy.address), timeout=None)
        message = await within(server.receive())
        before = message.link
        await proxy.cut()
        await until(lambda: message.link is not before, "the message, sent again")
        second = client.send(Message(b"y", proxy.address), timeout=None)
        message.release()
        await within(sending)
        message = await within(server.receive())
        second.cancel()
        await within(message.cancelled.wait())
        message.refuse()


@pytest.mark.asyncio
async def test_dropped_when_its_loop_is_closed() -> None:
    """A message that outlives its loop is dropped without a word: its sender knows."""
    held: list[Any] = []

    async def take() -> None:
        async with make() as server, make() as client:
            sending = client.send(to(server))
            held.append(await server.receive())
            await server.stop(drain=0)
            await settle(sending)

    thread = threading.Thread(target=asyncio.run, args=(take(),))
    thread.start()
    await until(lambda: not thread.is_alive(), "the loop to close")
    held.clear()
