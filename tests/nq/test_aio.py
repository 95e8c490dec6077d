"""The asyncio twin: its life, what cancelling does at each await, and what it has in common with that for threads."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from redpoll import ConfigError, Undecodable, UsageError, nq
from tests.blocking.support import PATIENCE
from tests.node.support import turns, until, within
from tests.nq.support import options
from tests.ports import free_port

Ends = tuple[nq.aio.Communicator, nq.aio.Communicator]


@pytest.fixture
def location() -> nq.NetworkLocation:
    """Where they meet."""
    return nq.NetworkLocation("127.0.0.1", free_port())


@pytest_asyncio.fixture
async def ends(location: nq.NetworkLocation) -> AsyncIterator[Ends]:
    """A server and a client that have met."""
    async with nq.aio.new("tcp", "server", options(location)) as server:
        async with nq.aio.new("tcp", "client", options(location)) as client:
            await client.ready(PATIENCE)
            yield server, client
            await client.close(0, flush=False)
        await server.close(0, flush=False)


def test_it_is_a_twin() -> None:
    """Both facades have the same methods with the same parameters, but for the start; and no put waits here."""

    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in found if name[0] != "_"}

    mine = methods(nq.aio.Communicator)
    assert mine.pop("start") == ["self"]
    theirs = methods(nq.Communicator)
    theirs["put"].remove("timeout")
    assert mine == theirs


@pytest.mark.asyncio
async def test_a_child_gets_nothing(ends: Ends) -> None:
    """What waits for a program is not got in a forked child too."""
    server, client = ends
    await client.put("waits")
    child = os.fork()
    if not child:
        refused = 0
        try:
            for use in (server.get, server.ready):
                with pytest.raises(UsageError):
                    use().send(None)
                refused += 1
        finally:
            os._exit(refused)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert (await server.get(timeout=PATIENCE)).data == "waits"


def test_making_one_opens_nothing() -> None:
    """No loop is needed before it is started, and no thread is made; what is wrong is told at once."""
    before = threading.active_count()
    end = nq.aio.new()
    assert (end.protocol, end.purpose) == ("tcp", "client")
    assert str(end.id) in repr(end)
    assert threading.active_count() == before
    with pytest.raises(UsageError, match="is no protocol"):
        nq.aio.new("udp")
    with pytest.raises(ConfigError, match="would block the event loop"):
        nq.aio.new("tcp", "client", options(nq.NetworkLocation(), full="wait"))


@pytest.mark.asyncio
async def test_before_the_start() -> None:
    """Nothing can be put or got, and the error says what to do; closing it is enough to be rid of it."""
    end = nq.aio.new()
    with pytest.raises(UsageError, match="async with"):
        end.put("x")
    for call in (end.get(), end.ready()):
        with pytest.raises(UsageError, match="async with"):
            await call
    await end.close()
    await end.close()
    assert isinstance(await asyncio.gather(end.put("x"), return_exceptions=True), list)
    with pytest.raises(ConnectionAbortedError):
        await end.put("x")
    with pytest.raises(ConnectionAbortedError):
        await end.get()
    with pytest.raises(ConnectionAbortedError):
        await end.ready()


@pytest.mark.asyncio
async def test_it_is_started_once(location: nq.NetworkLocation) -> None:
    """Once more is an error, running or closed."""
    end = nq.aio.new("tcp", "server", options(location))
    async with end:
        with pytest.raises(UsageError, match="is running"):
            await end.start()
    with pytest.raises(UsageError, match="is closed"):
        await end.start()


@pytest.mark.asyncio
async def test_a_place_that_is_taken(location: nq.NetworkLocation) -> None:
    """It is the system's error, and it may be started later."""
    second = nq.aio.new("tcp", "server", options(location))
    async with nq.aio.new("tcp", "server", options(location)):
        with pytest.raises(OSError, match=str(location.port)):
            await second.start()
    async with second:
        assert second.netloc == location


@pytest.mark.asyncio
async def test_one_that_is_forgotten(location: nq.NetworkLocation) -> None:
    """It warns."""
    end = nq.aio.new("tcp", "server", options(location))
    await end.start()
    with pytest.warns(ResourceWarning, match="was dropped without being closed"):
        end.__del__()
    await end.close()
    gc.collect()


@pytest.mark.asyncio
async def test_leaving_with_an_error(location: nq.NetworkLocation) -> None:
    """An exception drops what was not sent, and comes out."""
    puts: list[Any] = []

    async def work() -> None:
        async with nq.aio.new("tcp", "client", options(location)) as client:
            puts.append(client.put("x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await within(work())
    with pytest.raises(ConnectionAbortedError):
        await puts[0]


# Cancelling, at each await


@pytest.mark.asyncio
async def test_a_get_that_is_cancelled(ends: Ends) -> None:
    """Whenever that is, no message is lost, none comes twice, and order holds."""
    server, client = ends
    got: list[int] = []
    for number in range(302):
        client.put(number)
    while len(got) < 300:
        getting = [asyncio.create_task(server.get()) for _ in range(3)]
        await turns(len(got) % 4)
        getting[len(got) % 3].cancel()
        kept = [each for each in getting if each is not getting[len(got) % 3]]
        ended = await within(asyncio.gather(*getting, return_exceptions=True))
        got += [each.data for each in ended if isinstance(each, nq.Message)]
        assert all(each.done() and not each.cancelled() for each in kept)
    assert got == list(range(len(got)))


@pytest.mark.asyncio
async def test_a_start_that_is_cancelled(location: nq.NetworkLocation) -> None:
    """Nothing is left open."""
    server = nq.aio.new("tcp", "server", options(location))
    starting = asyncio.create_task(server.start())
    starting.cancel()
    await asyncio.wait((starting,))
    if not starting.cancelled():
        # An eager task had done it before.
        await server.close()
    async with nq.aio.new("tcp", "server", options(location)):
        pass
    await server.close()


@pytest.mark.asyncio
async def test_a_ready_that_is_cancelled(location: nq.NetworkLocation) -> None:
    """The client goes on dialling."""
    async with nq.aio.new("tcp", "client", options(location)) as client:
        waiting = asyncio.create_task(client.ready())
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with nq.aio.new("tcp", "server", options(location)):
            await client.ready(PATIENCE)
            await client.close()


@pytest.mark.asyncio
async def test_a_close_that_is_cancelled(ends: Ends) -> None:
    """It is closed when the cancellation comes out, whoever waits beside it goes on, and later ones do nothing."""
    server, client = ends
    closing = [asyncio.create_task(server.close()) for _ in range(3)]
    await turns()
    closing[1].cancel()
    ended = await within(asyncio.gather(*closing, return_exceptions=True))
    assert [type(each) for each in ended] == [type(None), asyncio.CancelledError, type(None)]
    assert not server._endpoint.node.listening
    await server.close()
    with pytest.raises(ConnectionAbortedError):
        await server.put("x", client.id)


@pytest.mark.asyncio
async def test_a_close_that_is_cancelled_late(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its links end too, each that is cancelled, also twice, and each beside it, waits until the node has stopped."""
    server, _ = ends
    node = server._endpoint.node
    wait_ended, reached, may_end = node._carrier.wait_ended, asyncio.Event(), asyncio.Event()

    async def wait_long() -> None:
        reached.set()
        await may_end.wait()
        await wait_ended()

    monkeypatch.setattr(node._carrier, "wait_ended", wait_long)
    closing = [asyncio.create_task(server.close(0)) for _ in range(4)]
    await within(reached.wait())
    for each in [*closing[:3], closing[0]]:
        each.cancel()
        await turns()
    early = [each for each in closing if each.done()]
    may_end.set()
    ended = await within(asyncio.gather(*closing, return_exceptions=True))
    assert not early
    assert [type(each) for each in ended] == [*[asyncio.CancelledError] * 3, type(None)]
    assert "stopped" in repr(node)


@pytest.mark.asyncio
async def test_many_puts_that_are_cancelled(ends: Ends) -> None:
    """Of thousands of which every other is cancelled at once the rest arrives, in order."""
    server, client = ends
    puts = [client.put(number) for number in range(3000)]
    kept = []
    for number, put in enumerate(puts):
        if number % 2:
            put.cancel()
        else:
            kept.append(number)
    got: list[int] = []
    while not got or got[-1] != 2998:
        got.append((await server.get(timeout=PATIENCE)).data)
    assert [number for number in got if not number % 2] == kept
    assert got == sorted(got)
    await asyncio.gather(*(put for put in puts if not put.cancelled()))


# Reading


@pytest.mark.asyncio
async def test_what_cannot_be_read(location: nq.NetworkLocation) -> None:
    """It raises, is gone, and its sender is told where it confirms what was got."""
    numbers = nq.SerializationOptions(lambda stream: int(stream.tobytes()), nq.BytesSerializer().dump)
    async with nq.aio.new("tcp", "server", options(location, serialization=numbers, confirm="get")) as server:
        async with nq.aio.new("tcp", "client", options(location, serialization=numbers)) as client:
            bad, good = client.put(b"seven"), client.put(b"7")
            with pytest.raises(ValueError, match="seven"):
                await server.get(timeout=PATIENCE)
            assert await server.get(timeout=PATIENCE) == nq.Message(client.id, 7)
            with pytest.raises(Undecodable, match="seven"):
                await bad
            await good


@pytest.mark.asyncio
async def test_events_are_called_on_the_loop(location: nq.NetworkLocation) -> None:
    """So they may put."""
    server: Any = None
    told: list[uuid.UUID] = []

    def came(peer: uuid.UUID) -> None:
        told.append(peer)
        server.put("welcome", peer)

    server = nq.aio.new("tcp", "server", options(location, events=nq.EventOptions(ini=came)))
    async with server, nq.aio.new("tcp", "client", options(location)) as client:
        assert (await client.get(timeout=PATIENCE)).data == "welcome"
        await until(lambda: told == [client.id], "the event")
        await client.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
async def test_events_that_raise(
    location: nq.NetworkLocation, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """What an event raises, a cancellation too, is logged, and keeps nobody out."""

    def raising(peer: uuid.UUID) -> None:
        raise error

    events = nq.EventOptions(ini=raising, fin=raising)
    async with nq.aio.new("tcp", "server", options(location, events=events)) as server:
        async with nq.aio.new("tcp", "client", options(location)) as client:
            await within(client.put(1))
            assert (await server.get(timeout=PATIENCE)).data == 1
        await until(lambda: caplog.messages.count("an event of a communicator raised") == 2, "the events")
        assert len(caplog.records) == 2


@pytest.mark.asyncio
async def test_many_events_that_raise(location: nq.NetworkLocation, caplog: pytest.LogCaptureFixture) -> None:
    """Peers can cause any number of them: the first is logged at once, the others as one line, at the close at the latest."""

    def raising(peer: uuid.UUID) -> None:
        raise KeyError(peer)

    async with nq.aio.new("tcp", "server", options(location)) as server:
        for _ in range(100):
            server._tell(raising, server.id)
        assert caplog.messages == ["an event of a communicator raised"]
    assert caplog.messages[1:] == ["99 events of a communicator raised, the last one"]


@pytest.mark.asyncio
async def test_closed_while_it_starts() -> None:
    """The start says so, and nothing is left open."""
    end = nq.aio.new("tcp", "server", options(nq.NetworkLocation("localhost", 0)))
    starting = asyncio.ensure_future(end.start())
    await turns(1)
    assert not starting.done()
    with pytest.raises(UsageError, match="starting"):
        await end.start()
    await within(end.close())
    with pytest.raises(ConnectionAbortedError):
        await within(starting)
    assert not end._endpoint.node.listening
    with pytest.raises(UsageError, match="closed"):
        await end.start()
