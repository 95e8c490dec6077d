"""Handlers: how they are called, what they answer, and how their messages end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from redpoll import (
    Cancelled,
    HandlerFailed,
    Message,
    MessageTooLarge,
    NoAnswer,
    Received,
    Refused,
    Undecodable,
    UsageError,
)
from tests.interop.raw import ACK, REQ_ACK, raw_listener
from tests.node.support import Inbox, make, raw_dialling, to, turns, until, within

# How a handler may be written


def plain(message: Received[bytes]) -> bytes:
    return message.data.upper()


async def coroutine(message: Received[bytes]) -> bytes:
    await asyncio.sleep(0)
    return message.data.upper()


async def at_once(message: Received[bytes]) -> bytes:
    return message.data.upper()


def returns_a_future(message: Received[bytes]) -> Awaitable[bytes]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(message.data.upper())
    return future


class PlainCallable:
    def __call__(self, message: Received[bytes]) -> bytes:
        return plain(message)


class AsyncCallable:
    async def __call__(self, message: Received[bytes]) -> bytes:
        return await coroutine(message)

    async def method(self, message: Received[bytes]) -> bytes:
        return await coroutine(message)


def with_option(option: int, message: Received[bytes]) -> bytes:
    assert option == 1
    return plain(message)


async def async_with_option(option: int, message: Received[bytes]) -> bytes:
    assert option == 1
    return await coroutine(message)


HANDLERS: dict[str, Callable[[Any], Any]] = {
    "a plain function": plain,
    "a lambda": lambda message: message.data.upper(),
    "a coroutine function": coroutine,
    "a coroutine function that never waits": at_once,
    "a plain function that returns a future": returns_a_future,
    "a lambda that returns a coroutine": lambda message: async_with_option(1, message),
    "a callable object": PlainCallable(),
    "an object with an async call": AsyncCallable(),
    "an async method": AsyncCallable().method,
    "a partial": partial(with_option, 1),
    "an async partial": partial(async_with_option, 1),
    "a partial of a partial": partial(partial(async_with_option), 1),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
async def test_a_handler_is_anything_callable(handler: Callable[[Any], Any]) -> None:
    """What a handler returns, at once or later, is the answer; its message is released by returning."""
    async with make(handler) as server, make() as client:
        answer = await client.request(to(server, b"ping"))
        assert answer.data == b"PING"
        await client.send(to(server, b"work"))
        stats = server.stats()
        assert (stats.received, stats.slots_used, stats.refused) == (2, 0, 0)


def generator(message: Any) -> Iterator[int]:
    yield 1


async def async_generator(message: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (7, "a handler is a function, not int (options are keywords)"),
        ("text", "a handler is a function, not str (options are keywords)"),
        (generator, "a handler returns its answer: 'generator' is a generator function"),
        (async_generator, "a handler returns its answer: 'async_generator' is a generator function"),
    ],
)
def test_what_is_no_handler_is_refused(handler: Any, text: str) -> None:
    """What cannot be called, or would only make a generator, is a UsageError when the node is made."""
    with pytest.raises(UsageError) as caught:
        make(handler)
    assert str(caught.value) == text


# Answers


@pytest.mark.asyncio
async def test_a_returned_value_goes_back_only_where_it_is_wanted() -> None:
    """To a plain send nothing goes back but the acknowledgement, whatever the handler returns."""
    async with make(lambda message: b"value") as server, make() as client:
        await client.send(to(server))
        await client.send(to(server), acknowledge=False)
        await until(lambda: server.stats().received == 2, "both messages")
        assert server.stats().sent == 0
        assert client.stats().received == 0
        assert client.stats().late == 0


@pytest.mark.asyncio
async def test_a_handler_that_returns_nothing_answers_nothing() -> None:
    """A request whose handler returns None is done, and fails with NoAnswer when its time is over."""
    async with make(lambda message: None) as server, make() as client:
        with pytest.raises(NoAnswer) as caught:
            await client.request(to(server), timeout=0.1)
        assert str(caught.value) == f"request to {server.address} was done, but no answer came in 0.1 s"
        assert isinstance(caught.value, TimeoutError)


@pytest.mark.asyncio
@pytest.mark.parametrize("handler", [lambda message: b"", at_once], ids=["plain", "async"])
async def test_an_empty_answer_is_an_answer(handler: Any) -> None:
    """An answer of no bytes is delivered as such."""
    async with make(handler) as server, make() as client:
        assert (await client.request(to(server, b""))).data == b""


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_answer_that_cannot_be_encoded_refuses(asynchronous: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A returned value that the serializer cannot carry is a failure of the handler, told to both sides."""

    async def later(message: Any) -> Any:
        return "text"

    failures: list[BaseException] = []
    async with make(later if asynchronous else lambda message: "text") as server, make() as client:
        server.events.handler_failed = lambda message, error: failures.append(error)
        with pytest.raises(HandlerFailed, match="EncodeError: raw cannot encode: it carries bytes, not str"):
            await client.request(to(server))
        assert [type(error).__name__ for error in failures] == ["EncodeError"]
        assert server.stats().slots_used == 0


class Broken:
    """A serializer with a defect: it raises what no serializer may."""

    name = "broken"
    wants_buffer = False

    def encode(self, value: Any, /) -> bytes:
        if value == b"unsendable":
            raise ZeroDivisionError("in encode")
        return bytes(value)

    def decode(self, data: Any, /) -> bytes:
        if bytes(data) == b"unreadable":
            raise ZeroDivisionError("in decode")
        return bytes(data)


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_serializer_that_breaks_ends_no_link(asynchronous: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a serializer raises, its message is refused and the link goes on."""

    async def later(message: Any) -> Any:
        return message.data

    handler = later if asynchronous else lambda message: message.data
    async with make(handler, serializer=Broken()) as server, make() as client:
        with pytest.raises(HandlerFailed, match="ZeroDivisionError: in encode"):
            await client.request(to(server, b"unsendable"))
        with pytest.raises(Undecodable, match="ZeroDivisionError: in decode"):
            await client.request(to(server, b"unreadable"))
        assert (await client.request(to(server, b"fine"))).data == b"fine"
        assert client.stats().reconnects == 0


@pytest.mark.asyncio
async def test_an_answer_above_the_askers_limit_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """An answer larger than the asking node accepts is a failure of the handler, and ends no link."""
    async with make(lambda message: bytes(300_000)) as server, make(max_message_size=200_000) as client:
        with pytest.raises(HandlerFailed, match="MessageTooLarge: message of 300000 bytes is over the limit of"):
            await client.request(to(server))
        assert (server.stats().reconnects, len(client.peers)) == (0, 1)
        assert client.peers[0].connected


@pytest.mark.asyncio
async def test_an_answer_above_the_own_limit_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """An answer larger than this node may send is a failure of the handler."""
    failures: list[BaseException] = []
    async with make(lambda message: bytes(5000), max_message_size=4096) as server, make() as client:
        server.events.handler_failed = lambda message, error: failures.append(error)
        with pytest.raises(HandlerFailed, match="message of 5000 bytes is over the limit of 4096"):
            await client.request(to(server))
        assert isinstance(failures[0], MessageTooLarge)


# How a message ends


def raises(message: Any) -> None:
    raise ValueError("no good")


async def raises_at_once(message: Any) -> None:
    raise ValueError("no good")


async def raises_later(message: Any) -> None:
    await asyncio.sleep(0)
    raise ValueError("no good")


def raises_in_a_coroutine(message: Any) -> Any:
    return raises_later(message)


RAISING = [raises, raises_at_once, raises_later, raises_in_a_coroutine]


@pytest.mark.asyncio
@pytest.mark.parametrize("handler", RAISING)
@pytest.mark.parametrize("wanted", [False, True])
async def test_a_handler_that_raises_refuses(handler: Any, wanted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The sender learns at once that the work was not done, and why; the slot is free again."""
    async with make(handler) as server, make() as client:
        message = to(server)
        with pytest.raises(HandlerFailed) as caught:
            await (client.request(message, timeout=None) if wanted else client.send(message, timeout=None))
        error = caught.value
        assert str(error) == f"message to {server.address} was refused: the handler failed: ValueError: no good"
        assert (error.sent, error.message, error.address) == (True, message, server.address)
        assert (error.code, error.text) == (1, "ValueError: no good")
        stats = server.stats()
        assert (stats.slots_used, stats.refused) == (0, 1)
        assert client.stats().refused_by_peer == 1
        assert client.stats().in_flight == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("handler", RAISING)
async def test_a_failure_is_logged_with_the_identity(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged once, with the message's identity and its traceback, and without its data."""
    async with make(handler) as server, make() as client:
        message = to(server, b"the payload")
        with pytest.raises(HandlerFailed):
            await client.send(message)
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.name == "redpoll.node"
    assert record.getMessage().startswith(f"the handler failed on message {message.identity.hex()} from 127.0.0.1:")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert "payload" not in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("handler", RAISING)
async def test_an_unacknowledged_failure_gives_its_place_back(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Messages that nobody waits for and whose handler raises keep neither slot nor window place."""
    async with make(handler, window=4) as server, make() as client:
        for _ in range(50):
            await client.send(to(server), acknowledge=False)
        await until(lambda: server.stats().refused == 50, "50 refusals")
        assert server.stats().slots_used == 0


@pytest.mark.asyncio
async def test_a_handler_with_another_signature_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine function that cannot take the message fails as a handler that raises, and the link goes on."""

    async def takes_nothing() -> None:
        """Never begun."""

    async with make(takes_nothing) as server, make() as client:  # type: ignore[arg-type,unused-ignore]
        for _ in range(2):
            with pytest.raises(HandlerFailed, match=r"TypeError: .*takes 0 positional arguments"):
                await client.send(to(server))
        assert client.stats().reconnects == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_handler_that_cancels_itself_refuses(asynchronous: bool) -> None:
    """A handler that ends with CancelledError refuses its message as Cancelled."""

    async def later(message: Any) -> None:
        raise asyncio.CancelledError

    def now(message: Any) -> None:
        raise asyncio.CancelledError

    async with make(later if asynchronous else now) as server, make() as client:
        with pytest.raises(Cancelled) as caught:
            await client.send(to(server))
        assert caught.value.sent is True
        assert str(caught.value).startswith(f"message to {server.address} was refused: the handler was cancelled")
        assert server.stats().slots_used == 0


@pytest.mark.asyncio
async def test_a_handler_task_that_is_cancelled_refuses() -> None:
    """When somebody cancels a handler's task its message is refused as Cancelled."""
    tasks: list[asyncio.Task[Any]] = []

    async def handler(message: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await asyncio.Event().wait()

    async with make(handler) as server, make() as client:
        sending = client.send(to(server))
        await until(lambda: tasks, "the handler")
        tasks[0].cancel()
        with pytest.raises(Cancelled):
            await within(sending)


@pytest.mark.asyncio
async def test_data_that_cannot_be_decoded_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that the serializer does not read never reach the handler; the sender learns it."""
    inbox = Inbox()
    failures: list[tuple[Any, BaseException]] = []
    async with make(inbox, serializer="json") as server, make() as client:
        server.events.handler_failed = lambda message, error: failures.append((message, error))
        with pytest.raises(Undecodable) as caught:
            await client.send(to(server, b"{not json"))
        assert caught.value.sent is True
        assert caught.value.hint == "both nodes need the same serializer"
        await client.send(to(server, b'{"a": 1}'))
    assert inbox.begun == [{"a": 1}]
    assert [type(error).__name__ for _, error in failures] == ["DecodeError"]


@pytest.mark.asyncio
async def test_a_handler_may_end_its_message_early() -> None:
    """A release inside the handler confirms at once; what the handler does afterwards changes nothing."""
    go_on = asyncio.Event()

    async def handler(message: Received[bytes]) -> None:
        message.release()
        await go_on.wait()
        raise ValueError("after the end")

    failed: list[BaseException] = []
    async with make(handler) as server, make() as client:
        server.events.handler_failed = lambda message, error: failed.append(error)
        await within(client.send(to(server)))
        go_on.set()
        await until(lambda: failed, "the failure to be told")
        assert server.stats().refused == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_handler_may_refuse_and_return(asynchronous: bool) -> None:
    """A refusal inside the handler reaches the sender with its reason; returning does not turn it into a release."""

    async def later(message: Received[bytes]) -> bytes:
        message.refuse("not today")
        return b"ignored"

    def now(message: Received[bytes]) -> bytes:
        message.refuse("not today")
        return b"ignored"

    async with make(later if asynchronous else now) as server, make() as client:
        for ask in (client.send, client.request):
            with pytest.raises(Refused) as caught:
                await ask(to(server))
            assert type(caught.value) is Refused
            assert caught.value.text == "not today"
            assert caught.value.sent is True
            assert str(caught.value) == f"message to {server.address} was refused: not today"


# auto_release


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_without_auto_release_returning_ends_nothing(asynchronous: bool) -> None:
    """With auto_release=False the message goes on after the handler returned, until it is released."""
    held: list[Received[bytes]] = []

    async def later(message: Received[bytes]) -> None:
        held.append(message)

    async with make(later if asynchronous else held.append, auto_release=False) as server, make() as client:
        first, second = client.send(to(server)), client.send(to(server))
        await until(lambda: held, "the handler")
        await turns()
        assert not first.done()
        assert len(held) == 1, "its one slot is taken"
        held[0].release()
        await within(first)
        await until(lambda: len(held) == 2, "the second message")
        held[1].refuse("no")
        with pytest.raises(Refused):
            await within(second)


@pytest.mark.asyncio
async def test_without_auto_release_a_failure_still_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """Work that failed is refused, whoever releases."""
    async with make(raises, auto_release=False) as server, make() as client:
        with pytest.raises(HandlerFailed):
            await client.send(to(server))


@pytest.mark.asyncio
async def test_without_auto_release_an_answer_still_goes_back() -> None:
    """With auto_release=False the returned value is the answer, and the message keeps its slot until it is released."""
    held: list[Received[bytes]] = []

    def handler(message: Received[bytes]) -> bytes:
        held.append(message)
        return b"answer"

    async with make(handler, auto_release=False) as server, make() as client:
        assert (await within(client.request(to(server)))).data == b"answer"
        assert server.stats().slots_used == 1
        held[0].release()
        assert server.stats().slots_used == 0
        await until(lambda: client.stats().in_flight == 0, "the acknowledgement")


@pytest.mark.asyncio
async def test_get_means_nothing_more_to_a_handler() -> None:
    """auto_release="get" concerns pulling: a handler's message is released when it returns."""
    inbox = Inbox(hold=True)
    async with make(inbox, auto_release="get") as server, make() as client:
        sending = client.send(to(server))
        await inbox.holds(1)
        await turns()
        assert not sending.done()
        inbox.gate.set()
        await within(sending)


# libchirp senders


@pytest.mark.asyncio
async def test_a_libchirp_sender_is_always_answered() -> None:
    """A libchirp node cannot say what it wants: what the handler returns is sent to it, with the same identity."""
    async with make(plain) as server, raw_listener() as listener:
        async with raw_dialling(server, port=listener.port, redpoll=False) as link:
            message = link.message(b"ping")
            link.send(message)
            frames = {frame.kind: frame for frame in (await link.read_frame(), await link.read_frame())}
            assert frames[ACK].identity == message.identity
            assert frames[REQ_ACK].identity == message.identity
            assert frames[REQ_ACK].data == b"PING"
            link.acknowledge(frames[REQ_ACK])
            await until(lambda: server.stats().in_flight == 0, "the acknowledgement")


@pytest.mark.asyncio
async def test_answers_to_libchirp_can_be_turned_off() -> None:
    """With answer_libchirp=False a libchirp sender gets its acknowledgement and nothing else."""
    async with make(plain, answer_libchirp=False) as server, raw_listener() as listener:
        async with raw_dialling(server, port=listener.port, redpoll=False) as link:
            for _ in range(2):
                link.send(link.message(b"ping"))
                assert (await link.read_frame()).kind == ACK


@pytest.mark.asyncio
async def test_a_libchirp_sender_is_told_nothing_of_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """Work that failed is not acknowledged to a libchirp sender, which can be told no more; its slot is free again."""
    async with make(raises) as server, raw_listener() as listener:
        async with raw_dialling(server, port=listener.port, redpoll=False) as link:
            link.send(link.message(b"one"))
            link.send(link.message(b"two"))
            await until(lambda: server.stats().refused == 2, "two refusals")
            assert server.stats().slots_used == 0
            assert server.stats().sent == 0
            assert await link.silent(0.02)


# Contexts

VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="unset")


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_context_variables_do_not_leak_between_handlers(asynchronous: bool) -> None:
    """What a handler sets in a context variable is seen by itself alone."""
    seen: list[str] = []

    def now(message: Received[bytes]) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set(message.data.decode())

    async def later(message: Received[bytes]) -> None:
        now(message)
        await asyncio.sleep(0)
        assert VARIABLE.get() == message.data.decode()

    async with make(later if asynchronous else now, slots=4) as server, make() as client:
        await asyncio.gather(*(client.send(to(server, name)) for name in (b"a", b"b", b"c")))
    assert seen == ["unset"] * 3
    assert VARIABLE.get() == "unset"


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_handlers_run_in_the_context_of_the_start(asynchronous: bool) -> None:
    """A handler sees the variables as they were when the node started, not those of a task that happened to dial."""
    seen: list[str] = []

    async def later(message: Received[bytes]) -> None:
        seen.append(VARIABLE.get())

    async with make() as client:
        VARIABLE.set("at the start")
        async with make(later if asynchronous else lambda message: seen.append(VARIABLE.get())) as server:
            VARIABLE.set("of the dialling task")
            await server.check(client.address)
            await client.send(Message(b"over the link that the server dialled", server.address))
            assert client.stats().connections == 1
    assert seen == ["at the start"]
