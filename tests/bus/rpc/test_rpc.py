"""Calls from end to end: what kiwiPy and oslo.messaging ask for, by their numbers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from typing import Any

import pytest

import redpoll
from redpoll.bus import current_context, use_headers
from redpoll.bus.rpc import RpcOptions, Target, expected_exceptions
from redpoll.errors import (
    BadPayload,
    CallTimeout,
    Closed,
    ConfigError,
    Expired,
    NoAnswer,
    NoRoute,
    RemoteError,
    SpecConflict,
    UsageError,
)
from tests.bus.patterns import Server, bus_in_virtual_time, until

pytestmark = pytest.mark.asyncio


async def test_a_function_is_called_by_its_identifier() -> None:
    """K-03: the function that is served under a name is handed the message, and the caller has what it returns."""
    seen: list[Any] = []

    async def handler(message: Any) -> str:
        seen.append(message)
        return "done"

    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("worker-7", handler):
        assert await bus.rpc.call("worker-7", None, ["a", 1]) == "done"
        assert await bus.rpc.call("worker-7") == "done"
        with pytest.raises(RemoteError, match="NoSuchMethod"):
            await bus.rpc.call("worker-7", "method")
    assert seen == [["a", 1], None]


async def test_a_server_that_stopped_is_not_there() -> None:
    """K-04, K-07: nobody under a name is NoRoute at once, before, between and after; the same name serves again."""
    async with bus_in_virtual_time() as (bus, _):
        server = bus.rpc.serve("a", Server("first"))
        for _ in range(2):
            with pytest.raises(NoRoute, match="'a'"):
                await bus.rpc.call("a", "append", {"text": "x"})
            async with server:
                assert await bus.rpc.call("a", "append", {"text": "x"}) == "first"


async def test_futures_that_a_handler_returns_are_awaited() -> None:
    """K-05, KX-8: the answer is what a future ends with, also if that is another one, or one of a thread pool."""
    inner: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    outer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pooled: concurrent.futures.Future[Any] = concurrent.futures.Future()
    inner.set_result(pooled)
    pooled.set_result("value")

    async def handler(_: Any) -> Any:
        return outer

    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", handler):
        call = asyncio.ensure_future(bus.rpc.call("a"))
        await asyncio.sleep(0)
        outer.set_result(inner)
        assert await call == "value"


async def test_what_a_handler_raises_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    """K-06, O-05: an exception of Python is raised as itself, one's own if it is allowed, others as RemoteError."""

    class Endpoint:
        async def fail(self) -> None:
            """Raise one of Python's."""
            raise ValueError("x")

        @expected_exceptions(LookupError)
        async def miss(self) -> None:
            """Raise what is expected."""
            raise KeyError("k")

    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Endpoint()):
        with pytest.raises(ValueError, match=r"^x$") as caught:
            await bus.rpc.call("a", "fail")
        assert "in fail" in caught.value.__cause__.traceback  # type: ignore[union-attr]
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        caplog.clear()
        with pytest.raises(KeyError) as expected:
            await bus.rpc.call("a", "miss")
        assert expected.value.__cause__.traceback is None  # type: ignore[union-attr]
        with pytest.raises(TypeError, match="unexpected keyword"):
            await bus.rpc.call("a", "fail", {"more": 1})
        with pytest.raises(TypeError):
            await bus.rpc.call("a", "fail", 3)
        assert not caplog.records
    # Not each of them: the second has its line within a second, or at the end, with the number of those since the first.
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("ERROR", "2 calls, the last one of 'a': fail failed")
    ]


async def test_a_call_sent_before_the_bus_closes_is_delivered() -> None:
    """K-22, K-01: what was sent is delivered though the bus closes next; afterwards everything says that it is closed."""
    server = Server()
    clock = redpoll.testing.VirtualTime()
    async with (
        redpoll.connect("memory://k22", clock=clock) as theirs,
        theirs.rpc.serve("a", server),
        redpoll.connect("memory://k22", clock=clock) as bus,
    ):
        await bus.rpc.cast("a", "append", {"text": "x"})
        await bus.close()
        await until(lambda: server.seen == ["x"])
        for verb in (bus.rpc.call, bus.rpc.cast, bus.rpc.fanout):
            with pytest.raises(Closed):
                await verb("a", "append", {"text": "y"})
        with pytest.raises(Closed):
            await bus.rpc.serve("b", Server()).start()


async def test_a_call_that_is_open_when_the_bus_closes_says_so() -> None:
    """A caller that waits while its bus is closed is told; nothing is pending for ever."""
    server = Server()
    async with bus_in_virtual_time() as (bus, _):
        await bus.rpc.serve("a", server).start()
        call = asyncio.ensure_future(bus.rpc.call("a", "wait"))
        await server.begun.wait()
        await bus.close()
        with pytest.raises((Closed, redpoll.errors.TaskCancelled)):
            await call
        assert server.cancelled


async def test_an_identifier_served_twice_is_shared_or_refused() -> None:
    """KX-6: calls of an identifier are shared among its servers, never done twice; an exclusive one has it alone."""
    first, second = Server("1"), Server("2")
    async with bus_in_virtual_time() as (bus, _):
        async with bus.rpc.serve("a", first), bus.rpc.serve("a", second):
            for number in range(10):
                await bus.rpc.call("a", "append", {"text": number})
            assert sorted(first.seen + second.seen) == list(range(10))
            with pytest.raises(SpecConflict, match="exclusive"):
                await bus.rpc.serve("a", Server(), exclusive=True).start()
        async with bus.rpc.serve("a", first, exclusive=True):
            with pytest.raises(SpecConflict):
                await bus.rpc.serve("a", second).start()


async def test_targets_choose_servers() -> None:
    """O-01, O-02, O-03: a server by its name, any of a topic in turn, and neither another topic's nor another exchange's."""
    endpoints = {name: Server(name) for name in ("a1", "a2", "a3", "b1", "x1")}
    async with bus_in_virtual_time() as (bus, _):
        for name, endpoint in endpoints.items():
            exchange = "x" if name == "x1" else None
            topic = "a" if name == "x1" else name[0]
            await bus.rpc.serve(Target(topic, exchange=exchange), endpoint, server=name).start()
        assert await bus.rpc.call("a", "append", {"text": "to 2"}, server="a2") == "a2"
        assert endpoints["a2"].seen == ["to 2"]
        assert not endpoints["a1"].seen
        called = [await bus.rpc.call("a", "append", {"text": number}) for number in range(14)]
        assert {called.count(name) for name in ("a1", "a2", "a3")} <= {4, 5}
        assert await bus.rpc.call(Target("a", exchange="x"), "append", {"text": "x"}) == "x1"
        assert not endpoints["b1"].seen
        with pytest.raises(NoRoute, match=r"a\.@b1"):
            await bus.rpc.call("a", "append", {"text": 1}, server="b1")


async def test_nobody_answers_in_time() -> None:
    """O-04: a call that waits for a server fails at its timeout, with an error that is a TimeoutError and a NoAnswer."""
    async with bus_in_virtual_time() as (bus, clock):
        call = asyncio.ensure_future(bus.rpc.call("a", "x", timeout=5, mandatory=False))
        await clock.advance(4.9)
        assert not call.done()
        await clock.advance(0.2)
        with pytest.raises(CallTimeout, match=r"^no answer from a: x within 5 s"):
            await call
        assert issubclass(CallTimeout, (TimeoutError, NoAnswer))


async def test_a_long_call_does_not_hinder_others() -> None:
    """O-06: while a call waits for its timeout others of the same client are answered; its handler is cancelled then."""
    server = Server("s")
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", server):
        client = bus.rpc.client("a", timeout=5)
        long = asyncio.ensure_future(client.wait())
        await server.begun.wait()
        for number in range(10):
            assert await client.append(text=str(number)) == "s"
        await clock.advance(5)
        with pytest.raises(TimeoutError):
            await long
        assert server.cancelled


async def test_fail_fast_or_wait() -> None:
    """O-07: without a server a mandatory call fails at once though it has a minute; another one waits for its second."""
    async with bus_in_virtual_time() as (bus, clock):
        with pytest.raises(NoRoute):
            await bus.rpc.call("a", "x", timeout=60)
        assert clock.time() == 0
        call = asyncio.ensure_future(bus.rpc.call("a", "x", timeout=1, mandatory=False))
        await clock.advance(1)
        with pytest.raises(TimeoutError):
            await call


async def test_signs_of_life_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-08: a handler that takes long is waited for while its server lives; one that stops giving signs is not."""
    server = Server()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", server):
        call = asyncio.ensure_future(bus.rpc.call("a", "wait", timeout=3_600, monitor=2))
        await server.begun.wait()
        await clock.advance(100)
        assert not call.done()
        server.go_on.set()
        assert await call == "went on"

        server.go_on.clear()
        call = asyncio.ensure_future(bus.rpc.call("a", "wait", timeout=3_600, monitor=2))
        await clock.advance(10)
        monkeypatch.setattr("redpoll.bus.rpc.server._Beats._beat", lambda _: None)
        await clock.advance(4)
        with pytest.raises(CallTimeout, match="no sign of life in 2 s"):
            await call
        await until(lambda: server.cancelled)
    with pytest.raises(ConfigError, match="monitor"):
        await bus.rpc.call("a", "x", timeout=2, monitor=2)


async def test_casts_are_not_answered() -> None:
    """O-11, O-12: casts to a server, and to a topic, are each done by one server; the sender waits for none."""
    servers = [Server(str(number)) for number in range(3)]
    async with bus_in_virtual_time() as (bus, _):
        for each in servers:
            await bus.rpc.serve("a", each, server=each.name).start()
        await bus.rpc.cast("a", "append", {"text": "only"}, server="1")
        await until(lambda: servers[1].seen == ["only"])
        for number in range(20):
            await bus.rpc.cast("a", "append", {"text": number})
        await until(lambda: sum(len(each.seen) for each in servers) == 21)
        assert all(1 <= len(each.seen) < 20 for each in servers)
        with pytest.raises(NoRoute):
            await bus.rpc.cast("b", "append", {"text": 1})


async def test_a_cast_that_nobody_began_in_time_is_dropped() -> None:
    """A cast waits for a server no longer than its timeout."""
    server = Server()
    async with bus_in_virtual_time() as (bus, clock):
        await bus.rpc.cast("a", "append", {"text": "late"}, mandatory=False, timeout=10)
        await bus.rpc.cast("a", "append", {"text": "in time"}, mandatory=False, timeout=30)
        await clock.advance(20)
        async with bus.rpc.serve("a", server):
            await until(lambda: server.seen)
    assert server.seen == ["in time"]


async def test_all_servers_are_told() -> None:
    """O-13: each server of the topic in that exchange sees each message to all of them once, in order; nobody else does."""
    servers = [Server(), Server(), Server()]
    other = Server()
    async with bus_in_virtual_time() as (bus, _):
        for each in servers:
            await bus.rpc.serve("a", each).start()
        await bus.rpc.serve(Target("a", exchange="x"), other).start()
        for number in range(5):
            await bus.rpc.fanout("a", "append", {"text": number})
        await bus.rpc.cast(Target("a", fanout=True), "append", {"text": 5})
        await until(lambda: all(len(each.seen) == 6 for each in servers))
        assert [each.seen for each in servers] == [list(range(6))] * 3
        assert not other.seen
        await bus.rpc.fanout("nobody", "append")
        for verb in (bus.rpc.call, bus.rpc.stream):
            with pytest.raises(UsageError, match="all servers"):
                verb(Target("a", fanout=True), "append")


@pytest.mark.parametrize("value", [None, 0, False, [], {}, "", b"", 0.0])
async def test_falsy_values_come_back(value: Any) -> None:
    """Oslo 13: an empty value is an answer like any other."""
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Server()):
        found = await bus.rpc.call("a", "echo", {"value": value})
        assert (type(found), found) == (type(value), value)


async def test_a_time_of_nothing_is_over() -> None:
    """Oslo 13: a timeout of 0 is legal, and over at once."""
    server = Server()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", server):
        calls = [
            asyncio.ensure_future(bus.rpc.call("a", "wait", timeout=0)),
            asyncio.ensure_future(anext(bus.rpc.stream("a", "wait", timeout=0))),
        ]
        await clock.advance(0)
        for call in calls:
            with pytest.raises(CallTimeout, match="before it was sent"):
                await call
        with pytest.raises(Expired):
            await bus.rpc.cast("a", "wait", timeout=0)
        await clock.advance(0)
        assert not server.begun.is_set()


async def test_plain_functions_run_in_threads() -> None:
    """A plain function does not hold up the loop, and sees its context; what it raises fails its call alone."""
    threads: list[Any] = []

    class Endpoint:
        def work(self, value: int) -> int:
            """Work in a thread."""
            threads.append((threading.current_thread(), current_context().headers, current_context().left))
            return value + 1

        def leave(self) -> None:
            """Raise what would end the program."""
            sys.exit(3)

        def stop(self) -> None:
            """Raise what no future can."""
            raise StopIteration

    async with bus_in_virtual_time() as (bus, _):
        async with bus.rpc.serve("a", Endpoint()):
            with use_headers(user="ada"):
                assert await bus.rpc.call("a", "work", {"value": 1}, timeout=7) == 2
            with pytest.raises(RuntimeError, match="StopIteration"):
                await bus.rpc.call("a", "stop")
            with pytest.raises(RuntimeError, match="SystemExit: 3"):
                await bus.rpc.call("a", "leave")
        thread, headers, left = threads[0]
        assert thread is not threading.current_thread()
        assert (headers, left) == ({"user": "ada"}, 7.0)


async def test_headers_and_deadlines_travel_along() -> None:
    """Headers reach the handler and what that calls; neither has more time than the first caller gave; casts have theirs."""
    seen: list[Any] = []

    async with bus_in_virtual_time() as (bus, _):

        class Front:
            async def ask(self) -> Any:
                """Ask the one behind."""
                seen.append((dict(current_context().headers), current_context().left))
                await bus.rpc.fanout("b", "ask")
                return await bus.rpc.call("b", "ask", headers={"more": 1}, timeout=100)

        class Behind:
            async def ask(self) -> None:
                """Note what came along."""
                seen.append((dict(current_context().headers), current_context().left))

        async with bus.rpc.serve("a", Front()), bus.rpc.serve("b", Behind()):
            with use_headers(user="ada"):
                await bus.rpc.call("a", "ask", timeout=5)
            await until(lambda: len(seen) == 3)
            await bus.rpc.call("b", "ask", timeout=None)
    assert seen[0] == ({"user": "ada"}, 5.0)
    assert ({"user": "ada"}, None) in seen[1:3]
    assert ({"user": "ada", "more": 1}, 5.0) in seen[1:3]
    # What one call brought is not there for the next one.
    assert seen[3] == ({}, None)


async def test_leaving_a_call_cancels_its_handler() -> None:
    """A caller that is cancelled has its handler cancelled, and the calls for which that waits."""
    server = Server()
    async with bus_in_virtual_time() as (bus, _):

        async def front(_: Any) -> Any:
            return await bus.rpc.call("b", "wait")

        async with bus.rpc.serve("a", front), bus.rpc.serve("b", server):
            call = asyncio.ensure_future(bus.rpc.call("a"))
            await server.begun.wait()
            call.cancel()
            await asyncio.wait([call])
            await until(lambda: server.cancelled)


async def test_serializers_are_named() -> None:
    """A receiver that lacks the sender's serializer says so, with both names, at either end."""
    clock = redpoll.testing.VirtualTime()
    async with (
        redpoll.connect("memory://names", clock=clock, serializer="pickle") as one,
        redpoll.connect("memory://names", clock=clock) as two,
        one.rpc.serve("one", Server()),
        two.rpc.serve("two", Server()),
    ):
        with pytest.raises(RemoteError, match="'pickle': the receiver has no such serializer, only msgpack"):
            await one.rpc.call("two", "echo", {"value": 1})
        with pytest.raises(BadPayload, match="'pickle': the receiver has no such serializer, only msgpack"):
            await two.rpc.call("one", "echo", {"value": 1})


async def test_calls_are_counted() -> None:
    """O-22: a call counts once as begun and ended, with its time; one that raises as failed too; casts by themselves."""
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Server()):
        await bus.rpc.call("a", "echo", {"value": 1})
        await bus.rpc.cast("a", "echo", {"value": 1})
        with pytest.raises(RemoteError):
            await bus.rpc.call("a", "nope")
        stats = bus.rpc.stats["a", "echo"]
        assert (stats.calls, stats.ended, stats.failed, stats.casts) == (1, 1, 0, 1)
        assert stats.seconds > 0
        assert bus.rpc.stats["a", "nope"].failed == 1
        assert "calls=1" in repr(stats)


async def test_an_open_call_has_not_failed() -> None:
    """A call that is still open counts as begun alone."""
    inside: list[tuple[int, int, int]] = []
    async with bus_in_virtual_time() as (bus, _):

        async def look(_: None) -> None:
            stats = bus.rpc.stats["a", ""]
            inside.append((stats.calls, stats.ended, stats.failed))

        async with bus.rpc.serve("a", look):
            await bus.rpc.call("a")
    assert inside == [(1, 0, 0)]


async def test_options_are_one_record() -> None:
    """The options of calls are given to connect, checked, and hold where a call says nothing else."""
    options = RpcOptions(timeout=2, allowed_exceptions=("redpoll.errors",), concurrency=1, drain=0)

    async def handler(_: Any) -> None:
        raise NoRoute("far")

    async with bus_in_virtual_time(rpc=options) as (bus, clock):
        async with bus.rpc.serve("a", handler):
            with pytest.raises(NoRoute, match="far"):
                await bus.rpc.call("a")
        call = asyncio.ensure_future(bus.rpc.call("a", mandatory=False))
        await clock.advance(2)
        with pytest.raises(CallTimeout):
            await call
    wrong: list[dict[str, Any]] = [{"timeout": -1}, {"retry": 1.5}, {"concurrency": 0}, {"drain": -1}]
    for options_ in [*wrong, {"allowed_exceptions": (int,)}]:
        with pytest.raises(ConfigError):
            RpcOptions(**options_)
    wrong = [{"timeout": "1"}, {"retry": -1}, {"wait": -1}, {"monitor": -1}]
    for options_ in wrong:
        with pytest.raises(ConfigError):
            await bus.rpc.call("a", "x", **options_)
    with pytest.raises(ConfigError, match="concurrency"):
        bus.rpc.serve("a", Server(), concurrency=0)
