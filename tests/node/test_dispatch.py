"""Handlers: how they are called, what they answer, and how their messages end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from redpoll import (
    Abandoned,
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
from redpoll.blocking import PoolNode
from redpoll.node.dispatch import MAX_HANDLERS_PER_TURN
from redpoll.serializers import RawSerializer
from tests.interop.raw import ACK, REQ_ACK, raw_listener
from tests.node.support import Inbox, elapse, make, raw_dialling, settle, to, turns, until, within

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


class _TakesTwo:
    def method(self, message: Any, more: Any) -> None:
        """Called with one too few."""


_ALONE = "a handler must accept one argument, the message:"
_HOW = "(def handler(message): ...; bind others with functools.partial)"


async def async_generator(message: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (7, "a handler must be a function, not int (pass options as keywords)"),
        ("text", "a handler must be a function, not str (pass options as keywords)"),
        (generator, "a handler must return its answer: 'generator' is a generator function"),
        (async_generator, "a handler must return its answer: 'async_generator' is a generator function"),
        (lambda: None, f"{_ALONE} '<lambda>' does not: too many positional arguments {_HOW}"),
        (lambda a, b: None, f"{_ALONE} '<lambda>' does not: missing a required argument: 'b' {_HOW}"),
        (lambda a, *, b: None, f"{_ALONE} '<lambda>' does not: missing a required argument: 'b' {_HOW}"),
        (_TakesTwo().method, f"{_ALONE} '_TakesTwo.method' does not: missing a required argument: 'more' {_HOW}"),
        (
            partial(_TakesTwo().method, 1, 2),
            f"{_ALONE} '_TakesTwo.method' does not: too many positional arguments {_HOW}",
        ),
    ],
)
def test_what_is_no_handler_is_refused(handler: Any, text: str) -> None:
    """What cannot be called with a message, or would only make a generator, is a UsageError when the node is made."""
    for node in (make, PoolNode):
        with pytest.raises(UsageError) as caught:
            node(handler)
        assert str(caught.value).replace(" keyword-only", "") == text  # Python 3.13 says it


def test_what_a_handler_returned_is_no_handler() -> None:
    """`Node(handler())` says what was meant, and nothing is left that nobody awaits."""

    async def handler(message: Any = None) -> None:
        """Called by mistake."""

    for node in (make, PoolNode):
        with pytest.raises(UsageError) as caught:
            node(handler())  # type: ignore[arg-type]
        assert str(caught.value) == (
            "a handler must be a function, not the coroutine that one returned"
            " (pass the function itself: Node(handler), not Node(handler(...)))"
        )
    gc.collect()


def test_what_cannot_be_looked_into_may_be_a_handler() -> None:
    """A function that does not say what it takes is taken at its word."""
    with pytest.raises(ValueError, match="no signature found"):
        inspect.signature(dict)
    make(dict)


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
    """A request whose handler returns None is done, and fails with NoAnswer at once, which says what to do."""

    async def later(message: Received[bytes]) -> None:
        await asyncio.sleep(0)

    for handler in (lambda message: None, later):
        async with make(handler) as server, make() as client:
            with pytest.raises(NoAnswer) as caught:
                await within(client.request(to(server), timeout=None))
            assert str(caught.value) == (
                f"request to {server.address} was done, but the handler there returned None"
                " (return a value there, or await message.respond(…), or use send())"
            )
            assert isinstance(caught.value, TimeoutError)
            await within(client.send(to(server)))
            assert (server.stats().refused, client.stats().in_flight) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [6, 3_000_000])
async def test_a_response_that_is_under_way_is_waited_for(size: int) -> None:
    """A handler that returns None after, or while, `respond` sends its answer has answered."""
    data = bytes(size)
    tasks: list[asyncio.Task[None]] = []

    async def awaited(message: Received[bytes]) -> None:
        await message.respond(data)

    async def begun(message: Received[bytes]) -> None:
        tasks.append(asyncio.create_task(message.respond(data)))
        await asyncio.sleep(0)

    for handler in (awaited, begun):
        async with make(handler, fragment_size=65_536) as server, make() as client:
            assert (await within(client.request(to(server), timeout=None))).data == data
            await within(asyncio.gather(*tasks))


@pytest.mark.asyncio
async def test_a_handler_that_leaves_the_end_open_may_answer_later() -> None:
    """With `auto_release=False`, or after `release`, a handler that returns None has not said that there is no answer."""
    inbox: list[Received[bytes]] = []

    def released(message: Received[bytes]) -> None:
        message.release()
        inbox.append(message)

    for handler, options in ((inbox.append, {"auto_release": False}), (released, {})):
        async with make(handler, **options) as server, make() as client:
            asking = client.request(to(server), timeout=None)
            await until(lambda: inbox, "the request")
            await turns()
            assert not asking.done()
            message = inbox.pop()
            await within(message.respond(b"later"))
            assert (await within(asking)).data == b"later"
            message.release()


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
@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ZeroDivisionError("in decode"), ZeroDivisionError),
        (StopIteration(), RuntimeError),
        (asyncio.CancelledError(), RuntimeError),
    ],
)
async def test_a_serializer_that_breaks_on_an_answer_fails_the_request(
    error: BaseException, ends: type[BaseException]
) -> None:
    """Whatever a serializer raises of an answer, the request ends with an error that can be awaited, and the link goes on."""

    class Breaking(Broken):
        def decode(self, data: Any, /) -> bytes:
            if bytes(data) == b"unreadable":
                raise error
            return bytes(data)

    named = RawSerializer("broken")
    async with make(lambda message: message.data, serializer=named) as server, make(serializer=Breaking()) as client:
        with pytest.raises(ends) as caught:
            await within(client.request(to(server, b"unreadable"), timeout=None))
        assert error in (caught.value, caught.value.__cause__)
        assert (await within(client.request(to(server, b"fine")))).data == b"fine"
        assert client.stats().reconnects == 0


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
async def test_a_serializer_that_breaks_frees_the_slot_of_what_is_pulled() -> None:
    """Also if it raises a cancellation, a pulled message is refused, its slot is free, and the next one comes."""

    class Cancelling(Broken):
        def decode(self, data: Any, /) -> bytes:
            if bytes(data) == b"unreadable":
                raise asyncio.CancelledError
            return bytes(data)

    async with make(serializer=Cancelling()) as server, make(serializer=RawSerializer("broken")) as client:
        bad, good = client.send(to(server, b"unreadable")), client.send(to(server, b"fine"))
        async with server.take() as message:
            assert message.data == b"fine"
        with pytest.raises(Undecodable, match="CancelledError"):
            await within(bad)
        await within(good)
        assert server.stats().slots_used == 0


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


class Verdict(BaseException):
    """An exception that is no Exception, as pytest's own are."""


@pytest.mark.asyncio
@pytest.mark.parametrize("stage", ["plain", "at once", "later"])
async def test_any_exception_ends_its_message_alone(stage: str) -> None:
    """An exception that is no Exception refuses as any does; slot and link are there for the next message."""

    async def work(message: Any) -> None:
        if stage == "later":
            await asyncio.sleep(0)
        raise Verdict("no good")

    def handler(message: Any) -> Any:
        if message.data != b"bad":
            return None
        if stage == "plain":
            raise Verdict("no good")
        return work(message)

    async def coroutine_handler(message: Any) -> None:
        if message.data == b"bad":
            await work(message)

    for each in (handler, coroutine_handler):
        async with make(each) as server, make() as client:
            for _ in range(2):
                with pytest.raises(HandlerFailed, match="Verdict: no good"):
                    await within(client.send(to(server, b"bad")))
            await within(client.send(to(server, b"good")))
            assert (server.stats().slots_used, len(server.peers), client.stats().reconnects) == (0, 1, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_handler_that_ends_the_program_refuses_first(at_once: bool) -> None:
    """SystemExit of a handler ends the loop, whichever that is, and the sender is told, not left without an answer."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[Any] = loop.create_future()

    async def handler(message: Any) -> None:
        if not at_once:
            await asyncio.sleep(0)
        sys.exit(3)

    async def serve() -> None:
        async with make(handler) as server:
            loop.call_soon_threadsafe(started.set_result, server.address)
            await server.serve_forever()

    def run() -> None:
        with pytest.raises(SystemExit), asyncio.Runner(loop_factory=type(loop)) as runner:
            runner.run(serve())

    async with make() as client:
        ended = loop.run_in_executor(None, run)
        with pytest.raises(HandlerFailed, match="SystemExit: 3"):
            await within(client.send(Message(b"x", await within(started))))
        await within(ended)


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
async def test_failures_are_logged_once_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first failure is logged at once, those of the next second by the last one and their number; a hook gets all."""
    monkeypatch.setattr("redpoll.node.reports._WARN_EVERY", 1_000.0)
    told: list[BaseException] = []
    async with make(RAISING[0]) as server, make() as client:
        server.events.handler_failed = lambda message, error: told.append(error)
        messages = [to(server, b"x") for _ in range(50)]
        for message in messages:
            with pytest.raises(Refused):
                await client.send(message)
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
        assert len(told) == 50
    first, last = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert first.getMessage().startswith(f"the handler failed on message {messages[0].identity.hex()} from")
    text = f"the handler failed on 49 messages, the last one {messages[-1].identity.hex()} from"
    assert last.getMessage().startswith(text)
    for record, error in ((first, told[0]), (last, told[-1])):
        assert record.exc_info is not None
        assert record.exc_info[1] is error


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
    """A handler that only turns out not to take the message fails as one that raises, and the link goes on."""

    async def takes_nothing() -> None:
        """Never begun."""

    class Hides:
        __signature__ = inspect.signature(len)

        def __call__(self, *args: Any) -> Any:
            return takes_nothing(*args)

    async with make(Hides()) as server, make() as client:
        for _ in range(2):
            with pytest.raises(HandlerFailed, match=r"TypeError: .*takes 0 positional arguments"):
                await client.send(to(server))
        assert client.stats().reconnects == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_handler_that_blocks_is_named_once(
    asynchronous: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that blocks the event loop is named in a warning, once; one that only waits is not."""
    monkeypatch.setattr("redpoll.node.dispatch._WATCH_EVERY", 0.02)
    monkeypatch.setattr("redpoll.node.dispatch._BLOCKED", 0.5)

    def work(message: Received[bytes]) -> None:
        end = time.monotonic() + (0.8 if message.data == b"block" else 0)
        while time.monotonic() < end:
            """Compute."""

    async def later(message: Received[bytes]) -> None:
        await elapse(0.6 if message.data == b"wait" else 0)
        await turns()
        work(message)

    async with make(later if asynchronous else work) as server, make() as client:
        await within(client.send(to(server, b"wait")))
        assert not caplog.records
        for _ in range(2):
            await within(client.send(to(server, b"block")))
            await turns()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("redpoll.node", logging.WARNING)
    handler = "test_a_handler_that_blocks_is_named_once.<locals>." + ("later" if asynchronous else "work")
    text = re.sub(r"\d\.\d s", "N s", record.getMessage())
    assert text == (
        f"the event loop was blocked for at least N s while the handler '{handler}' had messages, which stalls"
        " the whole node: await blocking calls, or run them in threads (asyncio.to_thread, redpoll.blocking.PoolNode)"
    )


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
    async with make(inbox, serializer="json") as server, make(serializer=RawSerializer("any")) as client:
        server.events.handler_failed = lambda message, error: failures.append((message, error))
        with pytest.raises(Undecodable) as caught:
            await client.send(to(server, b"{not json"))
        assert caught.value.sent is True
        assert caught.value.hint == "both nodes need the same serializer"
        await client.send(to(server, b'{"a": 1}'))
    assert inbox.begun == [{"a": 1}]
    assert [type(error).__name__ for _, error in failures] == ["DecodeError"]


@pytest.mark.asyncio
@pytest.mark.parametrize("serializer", ["raw", "json"])
async def test_failures_end_the_turn_as_other_handlers_do(
    serializer: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages whose handlers raise, or that cannot be decoded, leave the loop its turn after as many as others do."""
    monkeypatch.setattr("redpoll.node.dispatch.MAX_SECONDS_PER_TURN", 60.0)
    caplog.set_level(logging.CRITICAL, logger="redpoll.node")
    count = 4 * MAX_HANDLERS_PER_TURN

    def handler(message: Received[Any]) -> None:
        raise ValueError("not this one")

    options = {"slots": count, "window": count, "serializer": serializer}
    async with make(handler, **options) as server, make(serializer=RawSerializer("any")) as client:
        refused: list[int] = []
        await within(client.ready(server.address))
        await within(client.send_many((to(server, b"no json") for _ in range(count)), acknowledge=False))
        while not refused or refused[-1] < count:
            await asyncio.sleep(0)
            refused.append(server.stats().refused)
        # A turn of waiting messages, and a read.
        assert max(after - before for before, after in pairwise([0, *refused])) <= 2 * MAX_HANDLERS_PER_TURN


@pytest.mark.asyncio
async def test_a_serializer_may_end_the_message_that_it_answers() -> None:
    """A message that ends while its answer is encoded gives back one slot, and is answered."""
    received: list[Received[Any]] = []

    class Ending(RawSerializer):
        def encode(self, obj: Any, /) -> Any:
            if received:
                received[-1].release()
            return super().encode(obj)

    def handler(message: Received[Any]) -> bytes:
        received.append(message)
        return b"answer"

    async with make(handler, serializer=Ending("ending")) as server, make() as client:
        assert (await within(client.request(to(server)))).data == b"answer"
        await turns()
        assert server.stats().slots_used == 0
        assert [link.unreleased for peer in server._peers.routes for link in peer.links] == [0]


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


class Drops:
    """A handler that drops each message, after it answered or failed as it was told."""

    def __init__(self, result: Any = None) -> None:
        self._result = result

    def __call__(self, _: Received[bytes]) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class DropsLater(Drops):
    """The same, as a coroutine function that goes on once."""

    async def __call__(self, message: Received[bytes]) -> Any:
        await asyncio.sleep(0)
        return super().__call__(message)


@pytest.mark.asyncio
@pytest.mark.parametrize("drops", [Drops, DropsLater])
async def test_without_auto_release_a_dropped_message_is_abandoned(
    drops: type[Drops], recwarn: pytest.WarningsRecorder
) -> None:
    """With auto_release=False a message that its handler drops is refused, with a warning; others have its slot."""
    async with make(drops(), auto_release=False) as server, make() as client:
        for received, acknowledge in enumerate((True, False, True)):
            sending = client.send(to(server), acknowledge=acknowledge)
            await settle(sending)
            await until(lambda: server.stats().received > received, "the message")  # noqa: B023
            await until(lambda: not server.stats().slots_used, "the slot")
            assert isinstance(sending.exception(), Abandoned) is acknowledge
    said = [str(each.message) for each in recwarn if each.category is RuntimeWarning]
    assert len(said) == 3
    assert "of 1 bytes, address" in said[0]
    assert "was dropped before it ended" in said[0]


@pytest.mark.asyncio
@pytest.mark.parametrize("drops", [Drops, DropsLater])
@pytest.mark.filterwarnings("ignore:.* was dropped before it ended:RuntimeWarning")
async def test_without_auto_release_what_is_dropped_was_answered(drops: type[Drops]) -> None:
    """With auto_release=False the answer of a handler that drops its message goes before the refusal."""
    async with make(drops(b"answer"), auto_release=False) as server, make() as client:
        for _ in range(2):
            assert (await within(client.request(to(server)))).data == b"answer"
            await until(lambda: not server.stats().slots_used, "the slot")
        await until(lambda: not client.stats().in_flight, "the refusal")


@pytest.mark.asyncio
@pytest.mark.parametrize("drops", [Drops, DropsLater])
async def test_without_auto_release_what_failed_is_not_abandoned(
    drops: type[Drops], recwarn: pytest.WarningsRecorder
) -> None:
    """With auto_release=False the failure of a handler that drops its message is what its sender is told."""
    async with make(drops(ValueError("no")), auto_release=False) as server, make() as client:
        for _ in range(2):
            with pytest.raises(HandlerFailed, match="no"):
                await within(client.send(to(server)))
        assert not server.stats().slots_used
    assert not [each for each in recwarn if each.category is RuntimeWarning]


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
