"""How a call is sent: again, later, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

import pytest

from redpoll.bus import Bus
from redpoll.bus.awaitables import Failed
from redpoll.bus.rpc import caller
from redpoll.errors import DialFailed, Expired, NotAuthorized, NotConfirmed, QueueFull, RedpollError
from tests.bus.patterns import Server, bus_in_virtual_time, until
from tests.node.support import PATIENCE

pytestmark = pytest.mark.asyncio


def fail(bus: Bus, *errors: RedpollError) -> list[dict[str, Any]]:
    """Let the next publishes fail; what each of all was given."""
    publish = bus.engine.publish
    left = iter(errors)
    seen: list[dict[str, Any]] = []

    def failing(envelope: Any, **options: Any) -> Awaitable[Any]:
        seen.append(options)
        error = next(left, None)
        return publish(envelope, **options) if error is None else Failed(error)

    bus.engine.publish = failing  # type: ignore[method-assign]
    return seen


LOST = (DialFailed("host", "refused"), QueueFull(None, 1, "tasks"), NotConfirmed(None, "the link ended"))


@pytest.mark.parametrize(("retry", "tries"), [(4, 4), (3, 4), (2, 3), (1, 2), (0, 1), (None, 4)])
async def test_what_was_not_taken_is_sent_again(retry: int | None, tries: int) -> None:
    """Oslo 13: a message is sent again as often as told, with a key that makes a second one harmless; None is for ever."""
    server = Server()
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", server):
        seen = fail(bus, *LOST)
        call = asyncio.ensure_future(bus.rpc.call("a", "append", {"text": "x"}, retry=retry))
        await clock.advance(5)
        if retry is None or retry >= len(LOST):
            assert await call == ""
        else:
            with pytest.raises(type(LOST[retry])):
                await call
        assert len(seen) == tries
        assert len({each["dedup"] for each in seen}) == 1
        assert (seen[0]["dedup"] is None) is (retry == 0)
        assert server.seen == ["x"][: len(seen) // 4]


@pytest.mark.parametrize("error", [NotAuthorized("no"), Expired(None, 1.0, "waiting")])
async def test_some_errors_are_final(error: RedpollError) -> None:
    """What would fail again, or has no time left, is not sent again."""
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", Server()):
        seen = fail(bus, error)
        with pytest.raises(type(error)):
            await bus.rpc.call("a", "append", {"text": "x"}, retry=None)
        assert len(seen) == 1


async def test_trying_again_ends_with_the_time() -> None:
    """A message that is never taken fails when its time is over, as one that was not sent; casts as well."""
    async with bus_in_virtual_time() as (bus, clock), bus.rpc.serve("a", Server()):
        fail(bus, *LOST * 1_000)
        for verb in (bus.rpc.call, bus.rpc.cast):
            sending: asyncio.Future[Any] = asyncio.ensure_future(
                verb("a", "append", {"text": "x"}, retry=None, timeout=3)
            )
            await clock.advance(4)
            with pytest.raises(Expired, match="a: append"):
                await sending


async def test_a_call_can_wait_for_a_server() -> None:
    """A call with a wait is answered by a server that appears in time, as when servers are replaced one by one."""
    async with bus_in_virtual_time() as (bus, clock):
        calls: Iterable[asyncio.Future[Any]] = [
            asyncio.ensure_future(bus.rpc.call("a", "append", {"text": 1}, wait=5)),
            asyncio.ensure_future(bus.rpc.cast("a", "append", {"text": 2}, wait=5)),
        ]
        await clock.advance(4)
        assert not any(call.done() for call in calls)
        async with bus.rpc.serve("a", Server("late")):
            await clock.advance(1)
            assert await asyncio.gather(*calls) == ["late", None]
        call = asyncio.ensure_future(bus.rpc.call("a", "append", {"text": 1}, wait=5))
        await clock.advance(6)
        with pytest.raises(Exception, match="no route to 'a'"):
            await call


async def test_a_cancelled_call_is_withdrawn() -> None:
    """A call that is cancelled while it waits for its turn is never begun."""
    server = Server()
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", server, concurrency=1):
        first = asyncio.ensure_future(bus.rpc.call("a", "wait"))
        await server.begun.wait()
        second = asyncio.ensure_future(bus.rpc.call("a", "append", {"text": "never"}))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        server.go_on.set()
        assert await first == "went on"
        await bus.rpc.call("a", "append", {"text": "next"})
        assert server.seen == ["next"]
        await until(lambda: not bus.rpc._caller._sending)


async def test_closing_waits_for_cancellations_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus whose engine does not answer closes, though a call was cancelled."""
    monkeypatch.setattr(caller, "_LEAVING", 0.01)
    server = Server()
    async with bus_in_virtual_time() as (bus, _), bus.rpc.serve("a", server):
        asked = asyncio.Event()

        async def unanswered(_: str) -> Any:
            asked.set()
            await asyncio.Event().wait()

        bus.engine.cancel = unanswered  # type: ignore[assignment, method-assign]
        call = asyncio.ensure_future(bus.rpc.call("a", "wait"))
        await server.begun.wait()
        call.cancel()
        await asked.wait()
        await asyncio.wait_for(bus.close(), PATIENCE)


async def test_ways_are_bounded() -> None:
    """What is remembered of methods that were called does not grow for ever."""
    async with bus_in_virtual_time() as (bus, _):
        for number in range(10_010):
            bus.rpc.fanout("a", str(number)).close()
        assert len(bus.rpc.stats) == 10_000
