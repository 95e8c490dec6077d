"""Pitfalls 30 to 33 of AMQP clients: calls and their answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import redpoll
from redpoll.bus.engine import Listener
from redpoll.bus.engines.amqp.handles import AmqpDelivery
from redpoll.bus.engines.amqp.submitting import Submit
from redpoll.errors import NoRoute, RedpollError, SpecConflict, TaskCancelled
from tests.bus.engines.amqp.support import Way, elapse, pair, states, until, within
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]


async def test_30_calls_end(rabbitmq: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """A call ends at its timeout though its server goes on; the late answer is dropped; one that comes in time is given."""
    go = asyncio.Event()

    async def serve(value: str) -> str:
        if value == "late":
            await go.wait()
        return value

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with other.rpc.serve("calls", serve):
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                await bus.rpc.call("calls", None, "late", timeout=0.3)
            assert time.monotonic() - began < 3.0
            go.set()
            for _ in range(5):
                assert await bus.rpc.call("calls", None, "good", timeout=10) == "good"
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_30_expired_calls_are_not_begun(rabbitmq: Broker) -> None:
    """A call whose caller has gone before its turn came is not begun."""
    begun: list[str] = []

    async def serve(value: str) -> str:
        begun.append(value)
        await elapse(0.5)
        return value

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with other.rpc.serve("calls", serve, concurrency=1):
            first = asyncio.ensure_future(bus.rpc.call("calls", None, "first", timeout=10))
            await until(lambda: begun, "the first call")
            with pytest.raises(TimeoutError):
                await bus.rpc.call("calls", None, "expired", timeout=0.1)
            await first
            assert await bus.rpc.call("calls", None, "last", timeout=10) == "last"
    assert begun == ["first", "last"]


async def test_30_cancelled_calls_are_not_begun(rabbitmq: Broker) -> None:
    """A call that is cancelled while it waits in its queue is not begun, nor is a stream."""
    begun: list[str] = []
    go = asyncio.Event()

    class Served:
        async def wait(self, name: str) -> None:
            begun.append(name)
            await go.wait()

        async def count(self) -> AsyncIterator[int]:
            begun.append("stream")
            while True:
                yield len(begun)

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with other.rpc.serve("calls", Served(), concurrency=1):
            first = asyncio.ensure_future(bus.rpc.call("calls", "wait", {"name": "first"}, timeout=20))
            await until(lambda: begun, "the first call")
            async with redpoll.connect(rabbitmq.url) as leaving:
                call = asyncio.ensure_future(leaving.rpc.call("calls", "wait", {"name": "cancelled"}, timeout=20))
                part = asyncio.ensure_future(anext(leaving.rpc.stream("calls", "count")))
                await elapse(0.2)
                call.cancel()
                part.cancel()
                await asyncio.wait((call, part))
                del part
            go.set()
            await within(first)
            await within(bus.rpc.call("calls", "wait", {"name": "last"}, timeout=10))
    assert begun == ["first", "last"]


async def test_30_cancelled_in_the_turn_that_it_is_confirmed(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that is cancelled in the turn in which RabbitMQ confirms its call cancels the call all the same."""

    async def serve(_: None) -> None:
        await asyncio.Event().wait()

    end = Submit.end

    def confirmed(submit: Submit, error: RedpollError | None) -> None:
        end(submit, error)
        call.cancel()

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        server = other.rpc.serve("calls", serve)
        async with server:
            monkeypatch.setattr(Submit, "end", confirmed)
            call = asyncio.ensure_future(bus.rpc.call("calls", None, timeout=60))
            await asyncio.wait((call,))
            monkeypatch.undo()
            assert call.cancelled()
            # It has ended, or is not begun.
            await elapse(1.0)
            assert repr(server).endswith(" 0 calls>")


async def test_30_cancelled_in_the_turn_that_it_came(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is cancelled after it was handed out and before it is begun is not put into its queue again."""
    begun: list[str] = []

    async def serve(value: str) -> str:
        begun.append(value)
        return value

    listen = AmqpDelivery.listen

    def cancelled(delivery: AmqpDelivery, listener: Listener) -> None:
        if not begun and not delivery.cancelled and len(came) < 2:
            came.append(delivery.id)
            delivery.cancel("nobody waits for it")
        listen(delivery, listener)

    came: list[str] = []
    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with other.rpc.serve("calls", serve):
            monkeypatch.setattr(AmqpDelivery, "listen", cancelled)
            with pytest.raises(TaskCancelled):
                await bus.rpc.call("calls", None, "cancelled", timeout=10)
            monkeypatch.undo()
            assert await bus.rpc.call("calls", None, "last", timeout=10) == "last"
    assert begun == ["last"]
    assert len(came) == 1


@pytest.mark.parametrize("whose", ["caller", "server"])
async def test_30_lost_while_a_call_runs(rabbitmq: Broker, whose: str) -> None:
    """A call whose caller loses its connection meanwhile is answered over the next one; with that of its server it ends."""
    begun: list[int] = []
    go = asyncio.Event()

    async def serve(value: int) -> int:
        begun.append(value)
        await go.wait()
        return value

    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        caller, server = (bus, other) if whose == "caller" else (other, bus)
        async with server.rpc.serve("calls", serve):
            call = asyncio.ensure_future(caller.rpc.call("calls", None, 1, timeout=10))
            await until(lambda: begun, "the call")
            seen = states(bus)
            way.cut()
            await until(lambda: "ready" in seen, "the engine")
            go.set()
            if whose == "caller":
                assert await within(call) == 1
            else:
                # Its server lives, and may answer over its next connection; it is not begun again in any case.
                with contextlib.suppress(RedpollError, TimeoutError):
                    assert await within(call) == 1
            assert begun == [1]
            assert await caller.rpc.call("calls", None, 2, timeout=10) == 2


async def test_31_answers_to_dead_callers(rabbitmq: Broker) -> None:
    """Answers to a caller that was killed hold up nobody: others are answered at once, and nothing of it stays."""
    held: list[int] = []
    go = asyncio.Event()

    async def serve(value: int) -> int:
        if value >= 0:
            held.append(value)
            await go.wait()
        return value

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with other.rpc.serve("calls", serve, concurrency=100):
            dead = await redpoll.connect(rabbitmq.url).__aenter__()
            calls = [asyncio.ensure_future(dead.rpc.call("calls", None, each, timeout=60)) for each in range(30)]
            await until(lambda: len(held) == 30, "the calls")
            dead.engine.abort()  # type: ignore[attr-defined]
            go.set()
            began = time.monotonic()
            for _ in range(10):
                assert await bus.rpc.call("calls", None, -1, timeout=10) == -1
            assert time.monotonic() - began < 5.0
            for each in calls:
                each.cancel()
            await asyncio.wait(calls)
            await dead.close()


async def test_32_nobody_is_there(rabbitmq: Broker) -> None:
    """A call that nobody serves fails at once, and when it may wait for a server, only after that."""
    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        for target in ("nobody", "served"):
            began = time.monotonic()
            with pytest.raises(NoRoute):
                await bus.rpc.call(target, None, 1, timeout=60)
            assert time.monotonic() - began < 3.0
        waiting = asyncio.ensure_future(bus.rpc.call("served", None, 1, timeout=20, wait=15))
        await elapse(0.1)
        async with other.rpc.serve("served", lambda value: value):
            assert await within(waiting) == 1


async def test_33_the_same_name_twice(rabbitmq: Broker) -> None:
    """Two servers of one name share its calls, each done once; one that is to be alone is refused beside others."""
    done: Counter[str] = Counter()

    def serve(name: str) -> Callable[[int], Awaitable[int]]:
        async def handle(value: int) -> int:
            done[name] += 1
            return value

        return handle

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with bus.rpc.serve("calls", serve("a"), server="one"), other.rpc.serve("calls", serve("b"), server="one"):
            for each in range(20):
                assert await bus.rpc.call("calls", None, each, server="one", timeout=10) == each
            assert sum(done.values()) == 20
            with pytest.raises(SpecConflict):
                await other.rpc.serve("calls", serve("c"), exclusive=True).start()
