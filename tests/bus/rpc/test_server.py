"""Servers: how they begin and end, and what becomes of calls meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from redpoll.bus import current_context
from redpoll.errors import Closed, NoRoute, SpecConflict, TaskCancelled
from tests.bus.patterns import Server, bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio


async def test_steps_may_be_taken_in_any_order() -> None:
    """Oslo 13: start, stop, wait and reset are done once each, whatever the order, and again in another round."""
    async with bus_in_virtual_time() as (bus, _):
        server = bus.rpc.serve("a", Server())
        await server.stop()
        await server.wait()
        assert "inactive" in repr(server)
        await asyncio.gather(server.start(), server.start(), server.start())
        assert server.active
        assert (await bus.queues.inspect("rpc:a")).consumers == 1
        assert "active" in repr(server)
        waiting = asyncio.ensure_future(server.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.gather(server.stop(), server.stop())
        await waiting
        for _ in range(2):
            await server.reset()
            assert await bus.rpc.call("a", "ping") == "pong"
        await server.close()
        with pytest.raises(NoRoute):
            await bus.rpc.call("a", "ping")


async def test_stopping_lets_calls_end() -> None:
    """A server that is stopped takes no more; what was begun ends and is answered, and only then its wait is over."""
    endpoint = Server()
    async with bus_in_virtual_time() as (bus, _):
        server = bus.rpc.serve("a", endpoint)
        await server.start()
        call = asyncio.ensure_future(bus.rpc.call("a", "wait"))
        await endpoint.begun.wait()
        await server.stop()
        waiting = asyncio.ensure_future(server.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        endpoint.go_on.set()
        await waiting
        assert await call == "went on"


@pytest.mark.parametrize("way", ["close", "bus", "drain"])
async def test_what_does_not_end_is_cancelled(way: str) -> None:
    """A server that is closed cancels what is not done in time, which its callers are told."""
    endpoint = Server()
    async with bus_in_virtual_time() as (bus, _):
        server = bus.rpc.serve("a", endpoint, drain=0.01)
        await server.start()
        call = asyncio.ensure_future(bus.rpc.call("a", "wait"))
        await endpoint.begun.wait()
        if way == "bus":
            await bus.close()
        elif way == "drain":
            await server.__aexit__()
        else:
            await server.close()
        with pytest.raises(TaskCancelled, match="cancelled by its server"):
            await call
        assert endpoint.cancelled


async def test_leaving_waits_for_what_was_begun() -> None:
    """Leaving the context of a server, and closing a bus with a drain, waits for calls to end."""
    endpoint = Server()
    async with bus_in_virtual_time() as (bus, _):
        async with bus.rpc.serve("a", endpoint):
            call = asyncio.ensure_future(bus.rpc.call("a", "wait"))
            await endpoint.begun.wait()
            asyncio.get_running_loop().call_soon(endpoint.go_on.set)
        assert await call == "went on"
        endpoint.go_on.clear()
        endpoint.begun.clear()
        await bus.rpc.serve("a", endpoint).start()
        call = asyncio.ensure_future(bus.rpc.call("a", "wait"))
        await endpoint.begun.wait()
        asyncio.get_running_loop().call_soon(endpoint.go_on.set)
        await bus.close(drain=None)
        assert await call == "went on"


async def test_so_many_calls_are_done_at_a_time() -> None:
    """A server has no more calls at a time than it was told; the others wait in its queue, where another may take them."""
    endpoint, second = Server("1"), Server("2")
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", endpoint, concurrency=2):
        calls = [asyncio.ensure_future(bus.rpc.call("a", "wait")) for _ in range(5)]
        await until(endpoint.begun.is_set)
        info = await bus.queues.inspect("rpc:a")
        assert (info.taken, info.ready) == (2, 3)
        second.go_on.set()
        async with bus.rpc.serve("a", second):
            done, _ = await asyncio.wait(calls, timeout=5, return_when="FIRST_COMPLETED")
            assert done
            endpoint.go_on.set()
            assert await asyncio.gather(*calls) == ["went on"] * 5


async def test_a_server_that_cannot_begin_has_taken_nothing() -> None:
    """A start that fails leaves no consumer behind, and can be tried again."""
    async with bus_in_virtual_time() as (bus, _):
        async with bus.rpc.serve("a", Server(), exclusive=True):
            server = bus.rpc.serve("a", Server(), server="s")
            with pytest.raises(SpecConflict):
                await server.start()
            assert not server.active
        await server.start()
        assert await bus.rpc.call("a", "ping", server="s") == "pong"


@pytest.mark.parametrize("how", ["closed", "cancelled", "ended"])
async def test_a_call_that_is_stopped_before_it_begins(how: str) -> None:
    """A call that was handed out and not begun goes back when its server is closed, or ends with its caller."""
    server = Server()
    async with bus_in_virtual_time() as (bus, clock):
        serving = bus.rpc.serve("a", server)
        await serving.start()
        handed: list[Any] = []
        begin = serving._begin

        def stop(work: Any, item: Any) -> Any:
            task = begin(work, item)
            handed.append(item)
            assert task is not None
            if how == "cancelled":
                call.cancel()
            elif how == "ended":  # as the end of a loop does
                task.cancel()
            closing.append(asyncio.ensure_future(serving.close(0) if how != "cancelled" else serving.stop()))
            return task

        closing: list[asyncio.Future[None]] = []
        serving._begin = stop  # type: ignore[method-assign]
        call = asyncio.ensure_future(bus.rpc.call("a", "wait"))
        await until(lambda: closing)
        await asyncio.gather(*closing)
        await serving.wait()
        if how == "cancelled":
            with pytest.raises(asyncio.CancelledError):
                await call
            await clock.advance(0)
            assert (await bus.queues.inspect("rpc:a")).ready == 0
        elif server.begun.is_set():  # with eager tasks it is, at once
            with pytest.raises(TaskCancelled):
                await call
        else:
            async with bus.rpc.serve("a", server):
                await until(server.begun.is_set)
                server.go_on.set()
                assert await call == "went on"


async def test_signs_of_life_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is handed messages gives signs of life where they are wanted, and is no stream."""
    beats: list[Any] = []
    monkeypatch.setattr("redpoll.bus.rpc.server._Beats._beat", lambda _: beats.append(1))

    async def function(message: str) -> str:
        return message

    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", function):
        assert await bus.rpc.call("a", None, "x") == "x"
        assert not beats
        assert await bus.rpc.call("a", None, "x", monitor=2) == "x"
        assert beats
        with pytest.raises(TypeError, match=r"use call\(\)"):
            await anext(bus.rpc.stream("a", None, "x"))


async def test_a_thread_is_not_stopped() -> None:
    """A plain function goes on when nobody waits, and can see it; other calls go on meanwhile."""
    started, go_on = threading.Event(), threading.Event()
    seen: list[bool] = []

    class Endpoint:
        def work(self) -> None:
            """Work until the test lets it end."""
            from redpoll.bus import current_context

            started.set()
            go_on.wait(10)
            seen.append(current_context().cancelled)

    async with bus_in_virtual_time() as (bus, clock):
        server = bus.rpc.serve("a", Endpoint())
        await server.start()
        call = asyncio.ensure_future(bus.rpc.call("a", "work", timeout=3))
        await asyncio.to_thread(started.wait, 10)
        await clock.advance(3)
        with pytest.raises(TimeoutError):
            await call
        assert await bus.rpc.call("a", "ping") == "pong"
        go_on.set()
        await server.stop()
        await server.wait()
    assert seen == [True]


async def test_messages_to_all_wait_for_slots() -> None:
    """A server handles no more messages to all servers at a time than calls; they wait, and are done in the end."""
    running: list[int] = []
    most = 0
    seen: list[Any] = []

    class Endpoint:
        async def note(self, number: int) -> None:
            """Note it, after a while."""
            nonlocal most
            running.append(number)
            most = max(most, len(running))
            for _ in range(3):
                await asyncio.sleep(0)
            running.remove(number)
            seen.append(number)

    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Endpoint(), concurrency=2):
        for number in range(20):
            await bus.rpc.fanout("a", "note", {"number": number})
        await until(lambda: len(seen) == 20)
    assert most == 2


async def test_the_oldest_messages_to_all_are_dropped() -> None:
    """A server that is busy keeps the newest 1,000 messages to all servers, and drops those before."""
    go_on = asyncio.Event()
    seen: list[int] = []

    class Endpoint:
        async def note(self, number: int) -> None:
            """Note it, once the test lets it."""
            await go_on.wait()
            seen.append(number)

    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", Endpoint(), concurrency=1):
        for number in range(1_101):
            await bus.rpc.fanout("a", "note", {"number": number})
        await clock.advance(0)
        go_on.set()
        await until(lambda: len(seen) == 1_001)
    assert seen == [0, *range(101, 1_101)]


async def test_a_result_that_is_too_large_is_an_error() -> None:
    """A result over the limit of the engine reaches the caller as what it is."""
    async with bus_in_virtual_time(max_body=2_000) as (bus, _):

        async def handler(_: Any) -> bytes:
            return bytes(10_000)

        async with bus.rpc.serve("a", handler):
            with pytest.raises(Exception, match="over the limit of 2000"):
                await bus.rpc.call("a")


async def test_what_nobody_can_carry_is_an_error() -> None:
    """A result that the serializer has not fails its call, not the server."""
    async with bus_in_virtual_time() as (bus, _):

        async def handler(_: Any) -> object:
            return object()

        async with bus.rpc.serve("a", handler):
            with pytest.raises(Exception, match="msgpack cannot encode"):
                await bus.rpc.call("a")
            assert await bus.rpc.call("a", "ping") == "pong"


async def test_a_server_of_a_closed_bus_is_over() -> None:
    """Closing the bus ends its servers; each step afterwards ends as well."""
    async with bus_in_virtual_time() as (bus, _):
        server = bus.rpc.serve("a", Server())
        await server.start()
        await bus.close()
        await server.stop()
        await server.wait()
        assert not server.active
        with pytest.raises(Closed):
            await server.start()


async def test_a_call_leaves_nothing_to_the_garbage_collector() -> None:
    """What a handler worked on is gone when it has ended, though its context has it: no references go in a circle."""
    async with bus_in_virtual_time() as (bus, _):
        seen: list[weakref.ref[Any]] = []

        async def handler(wait: bool) -> None:
            if wait:
                await asyncio.sleep(0)
            seen.append(weakref.ref(current_context().delivery))

        async with bus.rpc.serve("a", handler):
            gc.collect()
            gc.disable()
            try:
                for wait in (False, True):
                    await bus.rpc.call("a", None, wait)
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                assert [each() for each in seen] == [None, None]
            finally:
                gc.enable()


async def test_keywords_that_are_no_mapping(caplog: pytest.LogCaptureFixture) -> None:
    """A call whose keywords are a list is told so by the name of the method, at the caller as in the server's log."""

    class Adder:
        async def add(self, a: int, b: int = 1) -> int:
            return a + b

        def double(self, a: int) -> int:
            return 2 * a

    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Adder()) as server:
        for method in ("add", "double"):
            text = f"{method}() takes keywords: expected a mapping of them, not list"
            with pytest.raises(TypeError) as caught:
                await bus.rpc.call("a", method, [1, 2])
            assert text in str(caught.value)
            server._failures.close()  # the line would come within a second
            assert text in caplog.text
            assert await bus.rpc.call("a", method, {"a": 1}) == 2
