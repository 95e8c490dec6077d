"""Bindings are made, kept, made again and ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redpoll import GLOBAL, Wiring
from redpoll.errors import Closed, PeerLost, ProtocolError, RedpollError, UnknownName, WiringError
from redpoll.testing import FaultProxy
from redpoll.wiring import Binding, Limits, Style, bindings
from redpoll.wiring.connection import Connection
from redpoll.wiring.directory import Directory
from redpoll.wiring.network import NetConnection, greet
from redpoll.wiring.protocol import refusal
from tests.ports import free_port
from tests.wiring.support import PATIENCE, directory, get, until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("apart")]


async def cut(one: Wiring, other: Wiring) -> None:
    """Cut the link between two wirings."""
    for connection in list(one._net.connections.values()):
        if connection.identity == other.identity:
            for link in list(connection.peer.links):
                link.connection.transport.abort()
            await until(lambda connection=connection: not connection.up)  # type: ignore[misc]


@pytest.mark.parametrize("by", ["exchange", "queue"])
async def test_cut(by: str) -> None:
    """A link that is cut is made again by who bound; what is sent meanwhile waits and arrives, in order, with no gap."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL, gaps=True)
        wiring = a if by == "exchange" else b
        lost: list[tuple[Binding, RedpollError]] = []
        ups: list[Binding] = []
        wiring.events.pipe_lost = lambda binding, error: lost.append((binding, error))
        wiring.events.pipe_up = ups.append
        binding = await wiring.bind("E", "Q")
        for round_ in range(3):
            for number in range(100):
                await exchange.send(b"%d" % (100 * round_ + number))
            await until(lambda: queue.stats.waiting + queue.stats.received == 100 * (round_ + 1))  # noqa: B023  # at once
            await cut(a, b)
            await until(lambda: binding.state == "up" and exchange.pipes[0].up)
        assert await get(queue, 300) == [b"%d" % number for number in range(300)]
        assert [each for each, _ in lost] == [binding] * 3
        assert ups == [binding] * 4


@pytest.mark.parametrize("again", [False, True])
async def test_a_deleted_exchange_leaves_nothing(again: bool) -> None:
    """What another wiring had bound of an exchange that is deleted counts no more; one made anew is bound again."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q")
        binding = await b.bind("E", "Q")
        (connection,) = a._net.connections.values()
        assert connection.subscriptions
        await exchange.delete()
        await until(lambda: binding.state == "lost")
        assert not connection.subscriptions
        if again:
            exchange = await a.create_exchange("E", scope=GLOBAL)
            await until(lambda: binding.state == "up")
            await exchange.send(b"x")
            assert await queue.receive(PATIENCE) == b"x"
        await b.unbind("E", "Q")
        await until(lambda: not connection.subscriptions)


async def test_closing_waits_for_nobody_who_does_not_answer() -> None:
    """What is asked of others when a wiring is closed is not waited for."""
    wiring = Wiring()
    await wiring.start()

    async def ask() -> None:
        await asyncio.Event().wait()

    silent = asyncio.create_task(ask())
    wiring._board.tasks.add(silent)
    async with asyncio.timeout(PATIENCE):
        await wiring.close(0)
    assert silent.cancelled()


async def test_lost_on_the_way() -> None:
    """What was on the way over a link that was cut is a gap of exactly that many, without anything that comes behind."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E")
        queue = await b.create_queue("Q", scope=GLOBAL, gaps=True)
        await a.bind("E", "Q")
        (pipe,) = exchange.pipes
        # What is given to the link from here on is lost with it.
        pipe.connection.send_data = lambda *_: None  # type: ignore[method-assign, union-attr]
        await exchange.send_many([b"lost"] * 7)
        await exchange.flush()
        await cut(a, b)
        gap = await queue.receive(PATIENCE)
        assert (gap.exchange, gap.count, gap.restarted) == ("E", 7, False)


async def test_resume() -> None:
    """With `resume` a short outage loses nothing that was on the way, and nobody hears of it."""
    async with directory() as names, Wiring(names.address, resume=30.0) as a, Wiring(names.address, resume=30.0) as b:
        exchange = await a.create_exchange("E")
        queue = await b.create_queue("Q", scope=GLOBAL, gaps=True)
        binding = await a.bind("E", "Q")
        heard: list[object] = []
        for wiring in (a, b):
            wiring.events.pipe_lost = lambda *arguments: heard.append(arguments)
            wiring.events.unconfirmed = lambda *arguments: heard.append(arguments)
        for number in range(2000):
            await exchange.send(b"%d" % number)
            if number % 500 == 250:
                for connection in a._net.connections.values():
                    for link in list(connection.peer.links):
                        link.connection.transport.abort()
                await asyncio.sleep(0)
        assert await get(queue, 2000) == [b"%d" % number for number in range(2000)]
        assert binding.state == "up"
        assert (queue.stats.gaps, heard) == (0, [])


@pytest.mark.parametrize("by", ["queue", "third"])
async def test_binder_stays_away(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """A binding that another process asked for ends when that is gone for long, or says that it will not be back."""
    monkeypatch.setattr(bindings, "KEPT", 0.05)
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        for ending in ("close", "break"):
            other = Wiring(names.address)
            await other.start()
            if by == "queue":
                await other.create_queue("R")
            await other.bind("E", "R" if by == "queue" else "Q")
            assert len(exchange.pipes) == 1
            if ending == "break":
                await other._bindings.close()
                await cut(other, a)
            else:
                await other.close()
            await until(lambda: not exchange.pipes)
            await other.close()
        assert queue.stats.pipes == 0


async def test_held_twice() -> None:
    """A binding that two want lasts until both have unbound it."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b, Wiring(names.address) as c:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        own, far = await a.bind("E", "Q"), await c.bind("E", "Q")
        await own.unbind()
        await exchange.send(b"still")
        assert await queue.receive(PATIENCE) == b"still"
        await far.unbind()
        await until(lambda: not exchange.pipes)
        await far.unbind()


async def test_moved_for_a_third() -> None:
    """The owner of an exchange follows a queue that a third wiring bound, to its new owner, as that one asks for it."""
    async with (
        directory() as names,
        Wiring(names.address) as a,
        Wiring(names.address) as b,
        Wiring(names.address) as c,
        Wiring(names.address) as third,
    ):
        exchange = await a.create_exchange("E", scope=GLOBAL)
        first = await b.create_queue("Q", scope=GLOBAL)
        binding = await third.bind("E", "Q")
        await exchange.send(b"first")
        assert await first.receive(PATIENCE) == b"first"
        assert b._directory is not None
        await b._directory.unregister("queue", "Q")
        second = await c.create_queue("Q", scope=GLOBAL)
        await until(lambda: second.stats.pipes and binding.state == "up")
        await exchange.send(b"second")
        assert await second.receive(PATIENCE) == b"second"
        assert exchange.stats.pipes == 1


async def test_gone_for_a_third() -> None:
    """A third wiring is told that the queue it bound was deleted, or its owner lost, and binds it again when it is back."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as third:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        binding: Binding | None = None
        for how in ("delete", "close", "break"):
            b = Wiring(names.address)
            await b.start()
            queue = await b.create_queue("Q", scope=GLOBAL)
            binding = binding or await third.bind("E", "Q")
            await until(lambda binding=binding: binding.state == "up")  # type: ignore[misc]
            await exchange.send(b"x")
            assert await queue.receive(PATIENCE) == b"x"
            if how == "delete":
                await queue.delete()
            elif how == "break":
                await cut(a, b)
            else:
                await b.close()
            if how != "break":
                await until(lambda binding=binding: binding.state == "lost")  # type: ignore[misc]
            else:
                await until(lambda binding=binding: binding.state == "up")  # type: ignore[misc]
                await exchange.send(b"again")
                assert await queue.receive(PATIENCE) == b"again"
            await b.close()


async def test_unbound_by_a_third_while_the_owner_is_lost() -> None:
    """A third wiring that unbinds a queue whose owner is lost leaves nothing of it at the exchange."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as third:
        exchange = await a.create_exchange("E", scope=GLOBAL, limits=Limits(messages=1))
        async with Wiring(names.address) as b:
            await b.create_queue("Q", scope=GLOBAL)
            binding = await third.bind("E", "Q")
        await until(lambda: binding.state == "lost")
        assert exchange.pipes
        await binding.unbind()
        await until(lambda: not exchange.pipes)
        (connection,) = a._net.connections.values()
        assert not connection.subscriptions
        # Nothing is bound, and nothing waits for room.
        async with asyncio.timeout(PATIENCE):
            await exchange.send_many([b"x"] * 3)


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("dials", ["exchange", "queue"])
async def test_unbound_while_the_link_is_lost(style: Style, dials: str) -> None:
    """A queue that is unbound while its owner cannot be reached loses its pipe with the next link, not a minute later."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL, style=style)
        queue = await b.create_queue("Q", scope=GLOBAL)
        binding = await a.bind("E", "Q")
        await exchange.send(b"x")
        assert await queue.receive(PATIENCE) == b"x"
        for connection in [*a._net.connections.values(), *b._net.connections.values()]:
            connection.give_up(PeerLost(None, "as a test wants it"))
        await binding.unbind()
        assert queue.stats.pipes == 1
        assert not exchange.pipes
        await a.create_exchange("F", scope=GLOBAL)
        await b.create_queue("R", scope=GLOBAL)
        await (a if dials == "exchange" else b).bind("F", "R")
        await until(lambda: not queue.stats.pipes)
        assert not a._board.ended


async def test_unbound_while_the_other_end_is_not_greeted_yet() -> None:
    """A queue loses its pipe also where the end of that was told over a connection that its wiring did not have yet."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        binding = await a.bind("E", "Q")
        for connection in [*a._net.connections.values(), *b._net.connections.values()]:
            connection.give_up(PeerLost(None, "as a test wants it"))
        # The answer to its hello is on its way.
        await greet(b._net.node, a.address, b._board.run, None, PATIENCE)
        await binding.unbind()
        assert a._net.connections
        await a.create_exchange("F", scope=GLOBAL)
        await b.create_queue("R", scope=GLOBAL)
        await b.bind("F", "R")
        await until(lambda: not queue.stats.pipes)
        assert not a._board.ended


async def test_cancelled_by_a_third() -> None:
    """A third wiring that gives up a binding while its queue is looked for has left nothing when that is found."""
    async with (
        Directory(port=0, lease=60.0) as names,
        Wiring(names.address) as a,
        Wiring(names.address) as b,
        Wiring(names.address) as third,
    ):
        exchange = await a.create_exchange("E", scope=GLOBAL)
        asking = asyncio.ensure_future(third.bind("E", "Q", wait=None))
        await until(lambda: ("queue", "Q") in a._resolver._asked)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (connection,) = a._net.connections.values()
        await until(lambda: not connection.subscriptions)
        queue = await b.create_queue("Q", scope=GLOBAL)
        await until(lambda: ("queue", "Q") not in a._resolver._asked)
        await until(lambda: not exchange.pipes and not queue.stats.pipes)
        assert (await third.bind("E", "Q")).state == "up"
        assert exchange.stats.pipes == 1


async def test_queue_taken_away() -> None:
    """A queue that is deleted unbinds itself; made again, it is bound again."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E")
        queue = await b.create_queue("Q", scope=GLOBAL)
        binding = await a.bind("E", "Q")
        await queue.delete()
        await until(lambda: binding.state == "lost")
        assert not exchange.pipes
        queue = await b.create_queue("Q", scope=GLOBAL)
        await until(lambda: binding.state == "up")
        await exchange.send(b"again")
        assert await queue.receive(PATIENCE) == b"again"


async def test_exchange_taken_away() -> None:
    """So it is with an exchange, at the end that bound it."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q")
        binding = await b.bind("E", "Q")
        await exchange.send(b"last")
        await exchange.delete()
        await until(lambda: binding.state == "lost")
        exchange = await a.create_exchange("E", scope=GLOBAL, style=Style.BALANCE)
        await until(lambda: binding.state == "up")
        await exchange.send(b"again")
        assert await get(queue, 2) == [b"last", b"again"]


async def test_moved() -> None:
    """A queue that another process has now, though the former is still there, is followed."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b, Wiring(names.address) as c:
        exchange = await a.create_exchange("E")
        first = await b.create_queue("Q", scope=GLOBAL)
        binding = await a.bind("E", "Q")
        await exchange.send(b"first")
        assert await first.receive(PATIENCE) == b"first"
        assert b._directory is not None
        await b._directory.unregister("queue", "Q")
        second = await c.create_queue("Q", scope=GLOBAL)
        await until(lambda: binding.peer == str(c.address))
        await exchange.send(b"second")
        assert await second.receive(PATIENCE) == b"second"


async def test_unbound_while_waiting() -> None:
    """A binding that is unbound while somebody waits for it tells them; closing the wiring as well."""
    async with Wiring() as wiring:
        await wiring.create_exchange("E")
        waiting = asyncio.ensure_future(wiring.bind("E", "Q", wait=None))
        await asyncio.sleep(0)
        (binding,) = wiring.bindings
        await wiring.unbind("E", "Q")
        with pytest.raises(Closed):
            await asyncio.wait_for(waiting, PATIENCE)
        assert not wiring.bindings
        assert binding.ended
        waiting = asyncio.ensure_future(wiring.bind("E", "Q", wait=None))
        await asyncio.sleep(0)
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, PATIENCE)


async def test_bound_again_while_messages_wait_at_the_queue() -> None:
    """Messages of one exchange arrive in order also where its queue was bound anew before it received earlier ones."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        for round_ in range(3):
            await a.bind("E", "Q")
            await exchange.send_many([b"%03d" % (round_ * 50 + number) for number in range(50)])
            await until(lambda: queue.stats.waiting == 50 * (round_ + 1))  # noqa: B023  # at once
            await a.unbind("E", "Q")
        assert await get(queue, 150) == [b"%03d" % number for number in range(150)]
        await until(lambda: not queue.stats.pipes)


async def test_bound_again_while_messages_wait_at_the_exchange() -> None:
    """A queue that leaves a pipe that others have too, and is bound anew before its last message was sent, is bound."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queues = [await b.create_queue(name, scope=GLOBAL, limits=Limits(messages=5)) for name in ("Q", "R")]
        for queue in queues:
            await a.bind("E", queue)
        await exchange.send_many([b"1"] * 20)
        await a.unbind("E", "Q")
        await exchange.send(b"R's alone")
        await a.bind("E", "Q")
        # There are two pipes now: another binding joins the one that its queue has.
        await b.bind("E", "R")
        await exchange.send(b"2")
        assert exchange.stats.waiting
        left, stayed = await asyncio.gather(get(queues[0], 21), get(queues[1], 22))
        assert sorted(left) == [b"1"] * 20 + [b"2"]
        assert stayed == [b"1"] * 20 + [b"R's alone", b"2"]
        await exchange.send(b"3")
        assert await get(queues[0], 1) == await get(queues[1], 1) == [b"3"]
        await until(lambda: [queue.stats.pipes for queue in queues] == [1, 1])


async def test_bound_again_while_it_is_lost() -> None:
    """A queue that is unbound and bound again while its pipe is lost gets nothing that was sent in between."""
    port = free_port()
    async with (
        directory() as names,
        FaultProxy(f"127.0.0.1:{port}") as proxy,
        Wiring(names.address) as a,
        Wiring(names.address, port=port, advertise=str(proxy.address)) as b,
    ):
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queues = [await b.create_queue(name, scope=GLOBAL) for name in ("Q", "R")]
        bindings = [await a.bind("E", queue) for queue in queues]
        proxy.refuse()
        proxy.cut("rst")
        await until(lambda: all(binding.state == "lost" for binding in bindings))
        await a.unbind("E", "Q")
        await exchange.send(b"R's alone")
        again = asyncio.ensure_future(a.bind("E", "Q"))
        await until(lambda: len(a.bindings) == 2)
        proxy.admit()
        await again
        await until(lambda: bindings[1].state == "up")
        await exchange.send(b"both")
        assert await get(queues[1], 2) == [b"R's alone", b"both"]
        assert await get(queues[0], 1) == [b"both"]


@pytest.mark.parametrize("style", Style)
async def test_deleted_while_it_is_bound(style: Style, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is deleted, and made again, before its wiring knows that it was bound, is bound again."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL, style=style)
        queue = await b.create_queue("Q", scope=GLOBAL)
        request = NetConnection.request
        answered, go_on = asyncio.Event(), asyncio.Event()

        async def late(self: NetConnection, word: dict[str, Any], timeout: float | None = None) -> Any:
            answer = await request(self, word, timeout)
            if word["word"] == "bind":
                answered.set()
                await go_on.wait()
            return answer

        monkeypatch.setattr(NetConnection, "request", late)
        binding = asyncio.ensure_future(b.bind("E", "Q"))
        await asyncio.wait_for(answered.wait(), PATIENCE)
        await queue.delete()
        await until(lambda: not exchange.stats.pipes)
        queue = await b.create_queue("Q", scope=GLOBAL)
        go_on.set()
        await binding
        await exchange.send(b"x")
        assert await get(queue, 1) == [b"x"]


async def test_bound_while_another_unbinds() -> None:
    """A binding is up also if another one's pipe to the queue ends while it is being established."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        for _ in range(3):
            await a.bind("E", "Q")
            binding, _none = await asyncio.gather(b.bind("E", "Q", wait=0), a.unbind("E", "Q"))
            assert binding.state == "up"
            await exchange.send(b"x")
            assert await get(queue, 1) == [b"x"]
            await binding.unbind()
            await until(lambda: not exchange.stats.pipes)


@pytest.mark.parametrize("by", ["owner", "stranger"])
async def test_told_while_it_is_bound(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the exchange's owner says that a binding is lost that is being made, it keeps none; others are not believed."""
    async with (
        directory() as names,
        Wiring(names.address) as owner,
        Wiring(names.address) as stranger,
        Wiring(names.address) as binder,
    ):
        exchange = await owner.create_exchange("E", scope=GLOBAL)
        queue = await binder.create_queue("Q", scope=GLOBAL)
        await stranger.create_exchange("F", scope=GLOBAL)
        await binder.bind("F", "Q")
        request = NetConnection.request
        teller = owner if by == "owner" else stranger

        async def late(self: NetConnection, word: dict[str, Any], timeout: float | None = None) -> Any:
            answer = await request(self, word, timeout)
            if word["word"] == "bind":
                (connection,) = (each for each in teller._net.connections.values() if each.identity == binder.identity)
                word = {"word": "unwired", "exchange": "E", "queue": "Q", **refusal(WiringError("gone"))}
                await request(connection, word)
            return answer

        monkeypatch.setattr(NetConnection, "request", late)
        if by == "owner":
            with pytest.raises(WiringError, match="gone"):
                await binder.bind("E", "Q", wait=0)
            await until(lambda: not exchange.stats.pipes)
        else:
            assert (await binder.bind("E", "Q", wait=0)).state == "up"
            await exchange.send(b"x")
            assert await get(queue, 1) == [b"x"]


async def test_told_of_an_earlier_request() -> None:
    """News of what a wiring requested says of which of its requests it is: of an earlier one it is no news."""
    async with directory() as names, Wiring(names.address) as owner, Wiring(names.address) as binder:
        await owner.create_exchange("E", scope=GLOBAL)
        await binder.create_queue("Q", scope=GLOBAL)
        await (await binder.bind("E", "Q")).unbind()
        binding = await binder.bind("E", "Q")
        (connection,) = binder._net.connections.values()
        word = {"word": "unwired", "exchange": "E", "queue": "Q", **refusal(WiringError("gone"))}
        for attempt, state in ((binding.number - 1, "up"), ([], "up"), (binding.number, "lost")):
            connection.said(word | {"attempt": attempt})
            assert binding.state == state
        await until(lambda: binding.state == "up")


async def test_cancelled() -> None:
    """Cancelling `bind` leaves nothing, unless somebody else waits for the same."""
    async with Wiring() as wiring:
        await wiring.create_exchange("E")
        first = asyncio.ensure_future(wiring.bind("E", "Q", wait=None))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not wiring.bindings
        first, second = (asyncio.ensure_future(wiring.bind("E", "Q", wait=None)) for _ in range(2))
        await until(lambda: wiring.bindings[0].callers == 2 if wiring.bindings else False)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await wiring.create_queue("Q")
        assert (await asyncio.wait_for(second, PATIENCE)).state == "up"


async def test_unbinding_is_cancelled() -> None:
    """A binding whose unbinding is cancelled has ended: its exchange keeps no more messages for the owner that is gone."""
    async with directory() as names, Wiring(names.address) as wiring:
        exchange = await wiring.create_exchange("E", limits=Limits(messages=1))
        async with Wiring(names.address) as other:
            await other.create_queue("Q", scope=GLOBAL)
            binding = await wiring.bind("E", "Q")
            await cut(wiring, other)
            assert binding.state == "lost"
            unbinding = asyncio.ensure_future(binding.unbind())
            await asyncio.sleep(0)
            unbinding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await unbinding
            assert not wiring.bindings
            assert not exchange.stats.pipes
            await exchange.send_many([b"nobody"] * 3, timeout=PATIENCE)


async def test_unknown_third() -> None:
    """Who asks another to bind what that does not know gets its error."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        await a.create_exchange("E", scope=GLOBAL)
        with pytest.raises(UnknownName, match="no queue 'nowhere'"):
            await b.bind("E", "nowhere", wait=0)
        assert not a.bindings


@pytest.mark.parametrize("owner", [{}, {"owner": None}, {"owner": "b"}, {"owner": [1]}])
async def test_an_owner_that_is_none(owner: dict[str, Any]) -> None:
    """An answer whose owner of the queue is malformed is refused, and nothing stays bound; a good one later is taken."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        await a.create_queue("Q", scope=GLOBAL)
        bind: Any = a._board.words["bind"]

        async def answer(connection: Connection, word: dict[str, Any]) -> dict[str, Any]:
            assert await bind(connection, word) == {"owner": a.identity}
            return owner

        a._board.words["bind"] = answer
        with pytest.raises(ProtocolError, match="expected the field owner to be bytes"):
            await b.bind("E", "Q", wait=0)
        await until(lambda: not exchange.pipes)
        a._board.words["bind"] = bind
        assert (await b.bind("E", "Q")).state == "up"


async def test_what_a_third_does_not_see() -> None:
    """Who asks another to bind cannot name that one's LOCAL queues, though what both see is bound there."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        await a.create_queue("own")
        await a.create_queue("Q", scope=GLOBAL)
        with pytest.raises(UnknownName, match="no queue 'own'"):
            await b.bind("E", "own", wait=0)
        assert not exchange.pipes
        await a.bind("E", "own")
        with pytest.raises(UnknownName, match="no queue 'own'"):
            await b.bind("E", "own", wait=0)
        assert (await b.bind("E", "Q")).state == "up"


async def test_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """One other wiring has so many of its queues bound here and no more, until it unbinds one; others do not count."""
    monkeypatch.setattr(bindings, "MAX_SUBSCRIPTIONS", 2)
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        await a.create_exchange("E", scope=GLOBAL)
        for name in ("1", "2", "3"):
            await b.create_queue(name)
        await b.bind("E", "1")
        await b.bind("E", "2")
        with pytest.raises(WiringError, match="too many queues of this wiring are bound: the limit is 2"):
            await b.bind("E", "3", wait=0)
        await a.create_queue("own")
        await a.bind("E", "own")
        await b.unbind("E", "1")
        assert (await b.bind("E", "3")).state == "up"


async def test_what_a_third_does_not_see_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that others do not see stays so when it comes after they asked for it, and in a wiring beside."""
    monkeypatch.setattr(bindings, "_PATIENCE", 0.5)
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        asked = asyncio.create_task(b.bind("E", "Q", wait=0))
        await until(lambda: ("queue", "Q") in a._resolver._asked)
        await a.create_queue("Q")
        with pytest.raises(RedpollError):
            await asked
        assert not exchange.pipes


async def test_receiver_started_anew() -> None:
    """A queue's owner that was started anew is told what its predecessor had not taken, for each queue by itself."""
    async with directory() as names, Wiring(names.address) as a:
        exchange = await a.create_exchange("E", limits=Limits(messages=1000))
        first = Wiring(names.address)
        await first.start()
        queues = [await first.create_queue(name, scope=GLOBAL) for name in ("1", "2")]
        for queue in queues:
            await a.bind("E", queue.name)
        await exchange.send_many([b"x"] * 10)
        for queue in queues:
            await get(queue, 10)
            assert queue.receive_nowait() is None
        await until(lambda: exchange.pipes[0].taken == 10)
        await exchange.send_many([b"y"] * 5)
        await until(lambda: exchange.pipes[0].sent == 15)
        await first._net.stop(0)
        await until(lambda: not exchange.pipes[0].up)
        await first.close()
        async with Wiring(names.address) as second:
            one = await second.create_queue("1", scope=GLOBAL, gaps=True)
            await exchange.send_many([b"z"] * 3)
            found = await get(one, 4)
            assert [found[0].count, *found[1:]] == [5, b"z", b"z", b"z"]
            two = await second.create_queue("2", scope=GLOBAL, gaps=True)
            assert (await two.receive(PATIENCE)).count == 8


async def test_two_wait() -> None:
    """Who gives up waiting for a binding does not end it for somebody else who waits for it."""
    async with Wiring() as wiring:
        await wiring.create_exchange("E")
        waiting = asyncio.ensure_future(wiring.bind("E", "Q", wait=None))
        await asyncio.sleep(0)
        with pytest.raises(UnknownName):
            await wiring.bind("E", "Q", wait=0)
        await wiring.create_queue("Q")
        binding = await asyncio.wait_for(waiting, PATIENCE)
        assert binding.state == "up"
        await binding.unbind()
        with pytest.raises(UnknownName):
            await wiring.bind("E", "nobody's", wait=0)
        assert not wiring.bindings


@pytest.mark.parametrize("first", ["exchange", "queue"])
async def test_bound_from_both_ends(first: str) -> None:
    """What both owners have bound goes on, with nothing missing, when one of them has unbound it; then it ends."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL, gaps=True)
        one, other = (a, b) if first == "exchange" else (b, a)
        await one.bind("E", "Q")
        binding = await other.bind("E", "Q")
        await exchange.send_many([b"1"] * 100)
        assert await get(queue, 100) == [b"1"] * 100
        await one.unbind("E", "Q")
        await exchange.send_many([b"2"] * 100)
        assert await get(queue, 100) == [b"2"] * 100
        assert (binding.state, len(exchange.pipes)) == ("up", 1)
        await other.unbind("E", "Q")
        await until(lambda: not exchange.pipes)
        assert queue.stats.missing == 0


async def test_cancelled_when_opened() -> None:
    """A bind that is cancelled when the exchange's owner has just begun leaves nothing bound."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        await b.create_queue("Q")
        await b.create_queue("other")
        ports = b._board.incoming
        opened = ports.open

        def cancel(connection: Connection, word: dict[str, Any]) -> dict[str, Any]:
            answer = opened(connection, word)
            binding.cancel()
            return answer

        ports.open = cancel  # type: ignore[method-assign]
        for kept in (0, 1):
            binding = asyncio.ensure_future(b.bind("E", "Q"))
            with pytest.raises(asyncio.CancelledError):
                await binding
            await until(lambda kept=kept: len(exchange.pipes) == kept)  # type: ignore[misc]
            await until(lambda: "Q" not in {queue for pipe in exchange.pipes for queue in pipe.subscriptions})
            (connection,) = a._net.connections.values()
            await until(lambda connection=connection: not any(queue == "Q" for _, queue in connection.subscriptions))  # type: ignore[misc]
            await until(lambda: not any("Q" in pipe.sources for pipe in ports._pipes.values()))
            if not kept:
                ports.open = opened  # type: ignore[method-assign]
                await b.bind("E", "other")
                ports.open = cancel  # type: ignore[method-assign]


@pytest.mark.parametrize("how", ["closed", "deleted"])
async def test_balanced_is_kept(how: str) -> None:
    """What waits for the only queue of a balancing exchange is for the next one, once that queue is gone for good."""
    async with directory() as names, Wiring(names.address) as a:
        exchange = await a.create_exchange("E", scope=GLOBAL, style=Style.BALANCE)
        async with Wiring(names.address) as b:
            first = await b.create_queue("Q", limits=Limits(messages=3))
            await b.bind("E", "Q")
            await exchange.send_many([b"%d" % number for number in range(50)])
            await until(lambda: exchange.stats.waiting == 47)
            if how == "deleted":
                await first.delete()
                await until(lambda: not exchange.pipes)
        await until(lambda: not exchange.pipes)
        async with Wiring(names.address) as c:
            second = await c.create_queue("Q2")
            await c.bind("E", "Q2")
            assert await get(second, 47) == [b"%d" % number for number in range(3, 50)]
        assert exchange.stats[:3] == (50, 0, 0)
