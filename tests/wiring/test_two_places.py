"""Two wirings that dial each other by forwarded addresses have two connections; each message goes by one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from redpoll import GLOBAL, Config, PeerLost, Wiring
from redpoll.errors import WiringError
from redpoll.testing import FaultProxy
from redpoll.wiring import Exchange, Queue, Style, network
from redpoll.wiring.incoming import IncomingPipe
from redpoll.wiring.network import NetConnection
from tests.ports import free_port
from tests.wiring.support import PATIENCE, directory, get, until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("apart")]

SMALL, LARGE = b"\x01" * 16, b"\xfe" * 16

#: Which identity is the smaller one decides which of two links nodes keep that know them to be one peer's.
IDENTITIES = pytest.mark.parametrize(("sends", "receives"), [(SMALL, LARGE), (LARGE, SMALL)])


class Both(NamedTuple):
    """Two wirings, and what leads to each."""

    one: Wiring
    two: Wiring
    to_one: FaultProxy
    to_two: FaultProxy
    exchange: Exchange
    queue: Queue


@asynccontextmanager
async def both(sends: bytes, receives: bytes, resume: float | None = None, **options: Any) -> AsyncIterator[Both]:
    """One with an exchange and one with a queue."""
    ports = free_port(), free_port()
    configs = [Config(identity=identity, resume=resume) for identity in (sends, receives)]
    async with (
        directory() as names,
        FaultProxy(f"127.0.0.1:{ports[0]}") as to_one,
        FaultProxy(f"127.0.0.1:{ports[1]}") as to_two,
        Wiring(names.address, port=ports[0], advertise=str(to_one.address), config=configs[0]) as one,
        Wiring(names.address, port=ports[1], advertise=str(to_two.address), config=configs[1]) as two,
    ):
        exchange = await one.create_exchange("E", scope=GLOBAL, **options)
        yield Both(one, two, to_one, to_two, exchange, await two.create_queue("Q", scope=GLOBAL))


@IDENTITIES
@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("first", ["one", "two", "at once"])
async def test_bound_by_both(sends: bytes, receives: bytes, style: Style, first: str) -> None:
    """Where both bind the same pair there is one pipe, and each message comes once."""
    async with both(sends, receives, style=style) as each:
        binds = [wiring.bind("E", "Q") for wiring in (each.one, each.two)]
        if first == "at once":
            await asyncio.gather(*binds)
        else:
            for bind in binds if first == "one" else reversed(binds):
                await bind
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1
        await each.exchange.send_many([b"%d" % number for number in range(100)])
        assert await get(each.queue, 100) == [b"%d" % number for number in range(100)]
        await until(lambda: not each.exchange.stats.waiting)
        assert each.queue.stats.received == 100


@IDENTITIES
@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("cut", ["to_one", "to_two"])
async def test_one_connection_is_lost(sends: bytes, receives: bytes, style: Style, cut: str) -> None:
    """Where one of the connections is lost messages flow by the other, though only the wiring that is left has it bound."""
    async with both(sends, receives, style=style) as each:
        own = await each.one.bind("E", "Q")
        asked = await each.two.bind("E", "Q")
        proxy: FaultProxy = getattr(each, cut)
        connections = [*each.one._net.connections.values()]
        proxy.refuse()
        if proxy.cut():
            await until(lambda: not all(connection.up for connection in connections))
        await each.exchange.send(b"0")
        await until(lambda: each.queue.stats.waiting)
        await until(lambda: "up" in (own.state, asked.state))
        assert await get(each.queue, 1) == [b"0"]
        assert each.queue.stats.pipes == 1
        proxy.admit()
        await until(lambda: own.state == asked.state == "up")
        await each.exchange.send(b"1")
        assert await get(each.queue, 1) == [b"1"]
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@IDENTITIES
async def test_links_are_lost_while_both_send(sends: bytes, receives: bytes) -> None:
    """Where one wiring is reached by another address than it dials from, each message comes, or is counted at both ends."""
    port, many = free_port(), 400
    async with (
        directory() as names,
        FaultProxy(f"127.0.0.1:{port}") as proxy,
        Wiring(
            names.address, port=port, advertise=str(proxy.address), config=Config(identity=sends, resume=30.0)
        ) as one,
        Wiring(names.address, config=Config(identity=receives, resume=30.0)) as two,
    ):
        here, there = [await each.create_exchange(name, scope=GLOBAL) for each, name in ((one, "E"), (two, "F"))]
        taken = await two.create_queue("Q", scope=GLOBAL), await one.create_queue("R", scope=GLOBAL)
        await asyncio.gather(one.bind("E", "Q"), two.bind("F", "R"))
        told: list[int] = []
        for each in (one, two):
            each.events.unconfirmed = lambda _, queues, count: told.append(count if queues else -1)
        for number in range(0, many, 20):
            for exchange in (here, there):
                await exchange.send_many([b"%d" % each for each in range(number, number + 20)])
            await asyncio.sleep(0)
            links = [each for each in one._net.node._peers.connections if each.link.dialled == bool(number % 40)]
            for link in links:
                link.give_up(PeerLost(None, "cut"))
            if links:
                await until(lambda: one._net.node._peers.connections)
        for exchange, queue in zip((here, there), taken, strict=True):
            await until(lambda q=queue: q.stats.waiting + q.stats.missing >= many)  # type: ignore[misc]
            stats = queue.stats
            assert stats.missing <= exchange.stats.unconfirmed
            got = await get(queue, stats.waiting)
            assert got == sorted(set(got), key=int)
        assert -1 not in told


@IDENTITIES
@pytest.mark.parametrize("style", Style)
async def test_links_are_cut_while_both_bind(sends: bytes, receives: bytes, style: Style) -> None:
    """Where both bind a pair over two links that are cut in turn, no message arrives twice, and the count is exact."""
    many = 600
    async with both(sends, receives, style=style) as each:
        bindings = [await wiring.bind("E", "Q") for wiring in (each.one, each.two)]
        got: list[bytes] = []

        async def take() -> None:
            async for message in each.queue:
                got.append(message)  # noqa: PERF401

        taking = asyncio.ensure_future(take())
        for number in range(0, many, 20):
            await each.exchange.send_many([b"%03d" % each for each in range(number, number + 20)])
            if number % 60 == 0:
                (each.to_one if number % 120 else each.to_two).cut("rst")
            await asyncio.sleep(0)
        await until(lambda: all(binding.state == "up" for binding in bindings))
        await until(lambda: each.queue.stats.received + each.queue.stats.missing >= many)
        taking.cancel()
        assert len(got) == len(set(got))
        assert got == sorted(got)
        assert len(got) + each.queue.stats.missing == many
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_a_connection_is_lost_at_one_end_alone(style: Style, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe goes on over the other connection where the end of the queue still has the one that the sender has lost."""
    async with both(LARGE, SMALL, style=style) as each:
        bindings = [await wiring.bind("E", "Q") for wiring in (each.one, each.two)]
        (pipe,) = each.exchange.pipes
        carrier = pipe.carrier
        assert isinstance(carrier, NetConnection)
        other = next(found for found in each.one._net.connections.values() if found is not carrier)

        async def find(*_: Any, **__: Any) -> NetConnection:
            return other

        monkeypatch.setattr(each.one._resolver, "find", find)
        del each.one._net.connections[carrier.peer]
        carrier.lose(PeerLost(None, "another node is at its address now"), final=False)
        await until(lambda: bindings[0].state == "up" and pipe.connection is other)
        await until(lambda: bindings[1].state == "up")
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_the_queue_has_its_pipe_over_the_other_connection(style: Style) -> None:
    """What the end of a queue says of a pipe counts by whichever of the two connections it comes."""
    async with both(LARGE, SMALL, style=style) as each:
        for wiring in (each.one, each.two):
            await wiring.bind("E", "Q")
        (source,) = each.queue.sources
        incoming = source.receiver
        assert isinstance(incoming, IncomingPipe)
        incoming.connection = next(
            found for found in each.two._net.connections.values() if found is not incoming.connection
        )
        (pipe,) = each.exchange.pipes
        incoming.connection.tell({"word": "room", "pipe": pipe.number, "messages": 77_777, "bytes": None})
        await until(lambda: pipe.window == 77_777)
        await each.queue.delete()
        await until(lambda: pipe not in each.exchange.pipes)
        queue = await each.two.create_queue("Q", scope=GLOBAL)
        await until(lambda: each.exchange.stats.pipes and queue.stats.pipes)
        await each.exchange.send(b"0")
        assert await get(queue, 1) == [b"0"]
        assert each.exchange.stats.pipes == queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_what_another_requested_is_lost_at_one_end_alone(style: Style) -> None:
    """A wiring requests a binding again where the owner of the exchange has lost the connection and it has not."""
    async with both(LARGE, SMALL, style=style) as each:
        binding = await each.two.bind("E", "Q")
        (pipe,) = each.exchange.pipes
        carrier = pipe.carrier
        assert isinstance(carrier, NetConnection)
        each.one._net.gone(carrier, PeerLost(None, "its session was over there"), final=False)
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        await until(lambda: binding.state == "up")
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_what_another_requested_is_lost_with_its_link(style: Style, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wiring hears over another connection that the owner of an exchange has lost the one of its request, and its link."""
    async with both(LARGE, SMALL, style=style) as each:
        await each.one.bind("E", "Q")
        binding = await each.two.bind("E", "Q")
        (holder,) = (found for found in each.one._net.connections.values() if found.subscriptions)
        assert len(each.one._net.connections) == 2
        with monkeypatch.context() as patched:
            patched.setattr(network, "is_linked", lambda peer: peer is not holder.peer)
            each.one._net.gone(holder, PeerLost(None, "another node is at its address now"), final=False)
        await until(lambda: any(found.subscriptions for found in each.one._net.connections.values()))
        await until(lambda: binding.state == "up")
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_a_session_is_resumed_at_one_end_alone(style: Style, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wiring requests a binding again where its session was resumed, and the owner of the exchange has lost its own."""
    async with both(LARGE, SMALL, style=style, resume=30.0) as each:
        binding = await each.two.bind("E", "Q")
        (lost,) = each.one._net.connections.values()
        with monkeypatch.context() as patched:
            # As for a node that sees another peer over the next link.
            patched.setattr(network, "is_linked", lambda _: False)
            each.one._net.gone(lost, PeerLost(None, "what was sent to it is lost"), final=False)
        each.to_one.cut("rst")
        await until(lambda: any(found.subscriptions for found in each.one._net.connections.values()))
        await until(lambda: binding.state == "up")
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_news_of_a_lost_connection_is_lost(style: Style, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wiring hears with the next link that the other end has lost its connection, where the link took that along before."""
    async with both(LARGE, SMALL, style=style, resume=30.0) as each:
        binding = await each.two.bind("E", "Q")
        (lost,) = each.one._net.connections.values()
        with monkeypatch.context() as patched:
            patched.setattr(each.one._net, "submit", lambda *_, **__: None)
            each.one._net._connection_failed(lost)
        # Its hello is behind the news, and ahead of the question of whether there is a connection: that is answered by yes.
        hello = asyncio.create_task(each.two._net.connect(each.to_one.address, 30.0))
        each.to_one.cut("rst")
        await hello
        await until(lambda: any(found.subscriptions for found in each.one._net.connections.values()))
        await until(lambda: binding.state == "up")
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_a_pipe_is_lost_at_the_queues_end_alone(style: Style) -> None:
    """What was sent while only the end of the queue had lost the pipe is missing there, and unconfirmed at the other end."""
    async with both(LARGE, SMALL, style=style) as each:
        binding = await each.two.bind("E", "Q")
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        (connection,) = each.two._net.connections.values()
        del each.two._net.connections[connection.peer]
        connection.lose(PeerLost(None, "another node is at its address now"), final=False)
        await each.exchange.send_many([b"1", b"2", b"3"])
        await until(lambda: binding.state == "up")
        await each.exchange.send(b"4")
        assert await get(each.queue, 1) == [b"4"]
        assert each.queue.stats.missing == each.exchange.stats.unconfirmed == 3
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_each_end_has_the_pipe_by_another_connection(style: Style) -> None:
    """Where the ends do not agree by which of two connections they have a pipe, it is opened anew."""
    async with both(LARGE, SMALL, style=style) as each:
        for wiring in (each.one, each.two):
            await wiring.bind("E", "Q")
        # As for nodes that exchanged the links of two peers.
        first, second = each.two._net.connections.values()
        first.incoming, second.incoming = second.incoming, first.incoming
        (pipe,) = (source.receiver for source in each.queue.sources)
        assert isinstance(pipe, IncomingPipe)
        pipe.connection = first if first.incoming else second
        await each.two.unbind("E", "Q")
        await each.two.bind("E", "Q", wait=PATIENCE)
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1


@pytest.mark.parametrize("style", Style)
async def test_both_bind_again_at_once(style: Style, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a lost pipe is opened over both connections at once, and so refused over one, both bindings come up again."""
    async with both(LARGE, SMALL, style=style) as each:
        bindings = [await wiring.bind("E", "Q") for wiring in (each.one, each.two)]
        request = NetConnection.request
        asked, answered = asyncio.Event(), asyncio.Event()
        refused: list[WiringError] = []

        async def in_turn(self: NetConnection, word: dict[str, Any], timeout: float | None = None) -> Any:
            """The one that has the exchange opens it before it knows that it is open, as the other one asked."""
            if word["word"] != "open" or answered.is_set():
                return await request(self, word, timeout)
            own = self.peer.address == each.to_two.address
            if own:
                await asked.wait()
            try:
                return await request(self, word, timeout)
            except WiringError as error:
                refused.append(error)
                raise
            finally:
                (answered if own else asked).set()
                await answered.wait()

        monkeypatch.setattr(NetConnection, "request", in_turn)
        # Where both ends dial at the same moment one connection may be all that there is, and nothing is refused.
        for _ in range(20):
            if refused:
                break
            answered.set()
            for proxy in (each.to_one, each.to_two):
                proxy.refuse()
                proxy.cut("rst")
            await until(lambda: all(binding.state == "lost" for binding in bindings))
            asked.clear()
            answered.clear()
            for proxy in (each.to_one, each.to_two):
                proxy.admit()
            await until(lambda: all(binding.state == "up" for binding in bindings))
        assert refused
        await each.exchange.send(b"0")
        assert await get(each.queue, 1) == [b"0"]
        assert each.exchange.stats.pipes == each.queue.stats.pipes == 1
