"""The fault proxy: a network that breaks as it is told."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from redpoll import Address, Closed, ConfigError, DialFailed, Message, Node, UsageError
from redpoll.testing import Chaos, FaultProxy, Faults, Step
from tests.node.support import elapse, until
from tests.testing.support import Server, dialled, pair

pytestmark = pytest.mark.asyncio

MEGABYTE = bytes(range(256)) * 4096


async def test_passes_everything_on() -> None:
    """Without faults all bytes arrive, both ways, and a half-closed connection is half-closed at the other end too."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        client.writer.write(MEGABYTE)
        client.writer.write_eof()
        await until(lambda: far.end, "the end")
        assert (far.data, far.end) == (MEGABYTE, "eof")
        far.writer.write(b"after the end")
        await until(lambda: client.data == b"after the end", "the answer")
        far.writer.close()
        await until(lambda: client.end == "eof", "the other end")
        await until(lambda: not proxy.stats().open, "the connection to be over")
        stats = proxy.stats()
        assert (stats.connections, stats.forward, stats.back, stats.rst) == (1, len(MEGABYTE), 13, 0)


async def test_many_connections() -> None:
    """Connections do not meet: each has its own bytes."""
    async with Server() as server, FaultProxy(str(server.address)) as proxy:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(_talk(proxy, b"%d" % number * 1000))
        await until(lambda: sum(each.end == "eof" for each in server.conversations) == 20, "all of them")
        assert sorted(each.data for each in server.conversations) == sorted(b"%d" % n * 1000 for n in range(20))


async def _talk(proxy: FaultProxy, data: bytes) -> None:
    async with dialled(proxy) as client:
        client.writer.write(data)
        await client.writer.drain()


async def test_delay() -> None:
    """A delay holds bytes back for its time, keeps their order, and ends with the faults."""
    loop = asyncio.get_running_loop()
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        proxy.set(Faults(delay=0.1, jitter=0.1), "forward")
        start = loop.time()
        for number in range(10):
            client.writer.write(b"%d" % number)
            await client.writer.drain()
            await asyncio.sleep(0)
        await until(lambda: len(far.data) == 10, "the bytes")
        assert loop.time() - start > 0.099
        assert far.data == b"0123456789"
        proxy.set(Faults(delay=3600.0))
        client.writer.write(b"late")
        await until(lambda: client.writer.transport.get_write_buffer_size() == 0, "the writing")
        await elapse(0.02)
        assert far.data == b"0123456789"
        proxy.calm()
        await until(lambda: far.data == b"0123456789late", "what was delayed")


async def test_rate() -> None:
    """A rate lets no more through than it says."""
    loop = asyncio.get_running_loop()
    async with Server() as server, FaultProxy(server.address, faults=Faults(rate=100_000)) as proxy:
        start = loop.time()
        async with pair(proxy, server) as (client, far):
            client.writer.write(bytes(20_000))
            await until(lambda: len(far.data) == 20_000, "the bytes")
        assert loop.time() - start > 0.18


@pytest.mark.parametrize(("pieces", "sizes"), [(1, {1}), ((3, 5), {3, 5}), (range(2, 4), {2, 3})], ids=str)
async def test_pieces(pieces: Any, sizes: set[int]) -> None:
    """Each write arrives in pieces of the given sizes."""
    data = bytes(range(240))
    async with Server() as server, FaultProxy(server.address, seed=1, faults=Faults(pieces=pieces)) as proxy:
        async with pair(proxy, server) as (client, far):
            client.writer.write(data)
            await until(lambda: len(far.data) == len(data), "the bytes")
        assert far.data == data
        found = [len(piece) for piece in far.pieces]
        assert set(found) | {1} == sizes | {1}
        if isinstance(pieces, tuple):
            assert found == [3, 5] * 30


async def test_cut_after_a_byte() -> None:
    """A connection can be cut at any byte: so many arrive and no more."""
    async with Server() as server, FaultProxy(server.address) as proxy:
        for count in range(5):
            proxy.set(Faults(cut_after=count, cut="fin"), "forward")
            async with pair(proxy, server) as (client, far):
                client.writer.write(b"12345678")
                await until(lambda: far.end and client.end, "the end")
                assert (far.data, far.end, client.end) == (b"12345678"[:count], "eof", "eof")
        assert proxy.stats().fin == 5


@pytest.mark.parametrize(("how", "seen"), [("fin", "eof"), ("rst", "reset")])
async def test_cut(how: Any, seen: str) -> None:
    """FIN reads as an end at both ends, RST as a reset; what was held back is lost."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        client.writer.write(b"arrives")
        await until(lambda: far.data == b"arrives", "the bytes")
        proxy.reorder()
        client.writer.write(b"is lost")
        await until(lambda: client.writer.transport.get_write_buffer_size() == 0, "the writing")
        assert proxy.cut(how) == 1
        await until(lambda: far.end and client.end, "the end")
        assert (far.data, far.end, client.end) == (b"arrives", seen, seen)
        assert getattr(proxy.stats(), how) == 1


async def test_fin_in_one_direction() -> None:
    """A FIN one way ends that way alone."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        proxy.cut("fin", "forward")
        await until(lambda: far.end == "eof", "the end")
        far.writer.write(b"still there")
        await until(lambda: client.data == b"still there", "the other way")
        assert not client.end


@pytest.mark.parametrize("direction", ["forward", "back", "both"])
async def test_silence(direction: Any) -> None:
    """A silenced direction passes nothing, not even the end; the other goes on."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        proxy.cut("silence", direction)
        client.writer.write(b"question")
        far.writer.write(b"answer")
        if direction != "forward":
            await until(lambda: far.data or direction == "both", "the question")
        if direction != "back":
            await until(lambda: client.data or direction == "both", "the answer")
        client.writer.close()
        await elapse(0.02)
        assert far.data == (b"question" if direction == "back" else b"")
        assert far.end == ("eof" if direction == "back" else "")
        assert proxy.stats().silence == (2 if direction == "both" else 1)
        proxy.calm()
        await until(lambda: far.end, "the end of what nobody can mend")
        assert proxy.stats().open == 0


async def test_freeze_stops_reading() -> None:
    """While it is frozen nothing is read, so the writer's buffers fill; thawed, everything arrives."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        proxy.freeze()
        client.writer.write(MEGABYTE * 8)
        await elapse(0.02)
        assert client.writer.transport.get_write_buffer_size() > 0
        assert (far.data, proxy.stats().forward, proxy.stats().freezes) == (b"", 0, 2)
        proxy.thaw()
        await until(lambda: len(far.data) == 8 * len(MEGABYTE), "all of it")
        assert far.data == MEGABYTE * 8


async def test_backpressure_passes_through() -> None:
    """It reads no more than its buffer ahead of a side that does not read."""
    async with Server(reads=False) as server, FaultProxy(server.address, buffer=1000) as proxy:
        async with pair(proxy, server) as (client, _):
            client.writer.write(bytes(32 << 20))
            await until(lambda: proxy.stats().forward > 0, "the first bytes")
            before = -1
            while before != proxy.stats().forward:  # until the system's buffers are full
                before = proxy.stats().forward
                await asyncio.sleep(0.05)
            assert client.writer.transport.get_write_buffer_size() > 0
            proxy.cut("rst")
            assert proxy.stats().dropped <= 1000


async def test_refuse() -> None:
    """Told to refuse, it is as if nobody listened there; then it listens at the same address again."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        for _ in range(3):
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(proxy.address.host, proxy.address.port)
            proxy.admit()
            async with dialled(proxy):
                pass
        client.writer.write(b"went on")
        await until(lambda: far.data == b"went on", "the open connection")


class Waiting:
    """A connection that moves its bytes when it is released, and then is over."""

    def __init__(self, proxy: FaultProxy, number: int, released: list[int]) -> None:
        self.number = number
        self._proxy = proxy
        self._released = released

    def release(self) -> None:
        """Pass on what was held."""
        self._released.append(self.number)
        self._proxy.moved(self)  # type: ignore[arg-type]  # it is like a passage
        self._proxy.closed(self)  # type: ignore[arg-type]


async def test_released_by_another_that_is_released() -> None:
    """A newer connection releases the older ones in their order, though each of them releases those before it as well."""
    proxy = FaultProxy("127.0.0.1:1")
    released: list[int] = []
    for number in (1, 8, 16, 17):  # a set of small numbers does not give them in their order
        waiting: Any = Waiting(proxy, number, released)
        proxy._passages[number] = waiting
        if number < 17:
            proxy.holding(waiting)
    proxy.moved(proxy._passages[17])
    assert released == [1, 8, 16]
    assert list(proxy._passages) == [17]


async def test_reorder() -> None:
    """What an older connection carries waits until a newer one's has passed."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (older, older_far):
        assert proxy.reorder() == 1
        older.writer.write(b"first")
        async with pair(proxy, server) as (newer, newer_far):
            await elapse(0.02)
            assert older_far.data == b""
            newer.writer.write(b"second")
            await until(lambda: newer_far.data == b"second", "the newer")
            await until(lambda: older_far.data == b"first", "the older")
        held = proxy.reorder("back")
        older_far.writer.write(b"answer")
        await elapse(0.02)
        assert older.data == b""
        proxy.release()
        await until(lambda: older.data == b"answer", "what was held")
        assert proxy.stats().holds == 2 + held


@pytest.mark.parametrize("to", ["present", "future"])
async def test_scope(to: Any) -> None:
    """Faults are for the connections that are there, or for those to come, as they are told."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (present, present_far):
        proxy.freeze(to=to)
        async with pair(proxy, server) as (future, future_far):
            present.writer.write(b"x")
            future.writer.write(b"x")
            free, stuck = (present_far, future_far) if to == "future" else (future_far, present_far)
            await until(lambda: free.data == b"x", "what is free")
            await elapse(0.02)
            assert stuck.data == b""
            proxy.thaw()
            await until(lambda: stuck.data == b"x", "what was stuck")


async def test_future_connections_are_reset() -> None:
    """Connections to come can be reset as soon as they are made, until it is calm."""
    async with Server() as server, FaultProxy(server.address) as proxy:
        assert proxy.cut("rst", to="future") == 0
        async with dialled(proxy) as client:
            await until(lambda: client.end == "reset", "the reset")
        assert (proxy.stats().refused, server.conversations) == (1, [])
        proxy.calm()
        async with pair(proxy, server):
            pass


async def test_steps() -> None:
    """Steps happen to each connection in turn, and what lasts ends by itself."""
    steps = [
        Step(do="freeze", direction="forward", seconds=0.05),
        Step(do="set", faults=Faults(pieces=1), seconds=30.0),
        Step(do="hold", after=0.1, direction="back", seconds=0.01),
        Step(do="thaw"),
        Step(do="rst", after=0.1),
    ]
    async with Server() as server, FaultProxy(server.address, steps=steps) as proxy:
        for number in (1, 2):
            async with pair(proxy, server) as (client, far):
                client.writer.write(b"abc")
                await until(lambda: far.end and client.end, "the end of the script")
                assert (far.data, far.end) == (b"abc", "reset")
            assert proxy.stats().rst == number
        assert (proxy.stats().freezes, proxy.stats().holds, proxy.stats().pieces) == (2, 2, 6)


async def test_chaos_then_calm() -> None:
    """A running chaos breaks connections; calmed, it only passes on."""
    chaos = Chaos(interval=(0.001, 0.003), rst=0.3, fin=0.2, freeze=0.1, hold=0.1, change=0.2, refuse=0.5)
    async with Server() as server, FaultProxy(server.address, seed=7, chaos=chaos) as proxy:
        while (stats := proxy.stats()).rst < 3 or not (stats.fin and stats.refused):
            async with dialled(proxy) as client:
                client.writer.write(b"x" * 100)
                await until(lambda: client.end, "the end that chaos makes")
        proxy.freeze()
        proxy.refuse()
        proxy.calm()
        before = proxy.stats()
        async with dialled(proxy) as client:
            client.writer.write(MEGABYTE)
            await until(lambda: proxy.stats().forward == before.forward + len(MEGABYTE), "all of it")
        await until(lambda: any(each.data == MEGABYTE for each in server.conversations), "all of it there")
        after = proxy.stats()
        assert (after.rst, after.fin, after.refused) == (before.rst, before.fin, before.refused)


async def test_seed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The seed stands in the text of a proxy and in a log line, drawn or given."""
    caplog.set_level(logging.INFO, "redpoll.testing")
    async with FaultProxy("127.0.0.1:9", seed=4711) as proxy:
        assert "seed 4711" in repr(proxy)
    assert "seed 4711" in caplog.text
    assert FaultProxy("127.0.0.1:9").seed != FaultProxy("127.0.0.1:9").seed


async def test_same_seed_same_refusals() -> None:
    """The same seed refuses the same connections."""
    seen = []
    async with Server() as server:
        for seed in (5, 5, 6):
            quiet = Chaos(interval=(3600.0, 3600.0), refuse=0.5)
            async with FaultProxy(server.address, seed=seed, chaos=quiet) as proxy:
                refused: list[bool] = []
                for _ in range(16):
                    before = proxy.stats().refused
                    async with dialled(proxy):
                        await until(lambda: proxy.stats().connections > len(refused), "it")  # noqa: B023
                    refused.append(proxy.stats().refused > before)
                seen.append(refused)
    assert seen[0] == seen[1] != seen[2]


async def test_unreachable_target() -> None:
    """Where nobody listens behind it, a connection is reset, and counted."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with FaultProxy(Address("tcp", "127.0.0.1", port)) as proxy, dialled(proxy) as client:
        await until(lambda: client.end == "reset", "the reset")
        assert (proxy.stats().unreachable, proxy.stats().open) == (1, 0)


async def test_reset_by_an_end_reaches_the_other() -> None:
    """An end that resets its connection is a reset at the other end as well."""
    async with Server() as server, FaultProxy(server.address) as proxy, pair(proxy, server) as (client, far):
        far.writer.transport.abort()
        await until(lambda: client.end, "the end")
        await client.close()
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        async with pair(proxy, server) as (other, other_far):
            other.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            other.writer.transport.abort()
            await until(lambda: other_far.end == "reset", "the reset")
        await until(lambda: not proxy.stats().open, "both to be over")


async def test_unix_target(tmp_path: Path) -> None:
    """A node that listens on a unix socket can stand behind it."""
    async with Node(lambda message: message.data, host=f"unix:{tmp_path}/node") as node:
        async with FaultProxy(node) as proxy, Node(listen=False) as client:
            answer = await client.request(Message(b"through", proxy.address))
            assert answer.data == b"through"


async def test_names_resolve() -> None:
    """A name is resolved when it starts; one that cannot be is an error from the tree."""
    async with Server() as server, FaultProxy(f"localhost:{server.address.port}") as proxy, pair(proxy, server):
        assert proxy.running
    broken = FaultProxy("no.such.name.invalid:1")
    with pytest.raises(DialFailed):
        await broken.start()
    assert not broken.running


async def test_leaves_nothing() -> None:
    """At its end every connection is closed, whatever state it is in."""
    async with Server() as server:
        async with FaultProxy(server.address) as proxy:
            ends = [await asyncio.open_connection(proxy.address.host, proxy.address.port) for _ in range(4)]
            await server.nth(4)
            proxy.freeze()
            proxy.cut("silence", to="future")
            ends.append(await asyncio.open_connection(proxy.address.host, proxy.address.port))
            await until(lambda: proxy.stats().connections == 5, "the last")
        proxy.close()
        assert (proxy.stats().open, proxy.running) == (0, False)
        for _, writer in ends:
            writer.close()


async def test_wrong_use() -> None:
    """What makes no sense is refused with an error from the tree."""
    for target in ("inproc:here", "127.0.0.1:0", 7, "no port"):
        with pytest.raises(UsageError):
            FaultProxy(target)  # type: ignore[arg-type]
    for options in ({"seed": "x"}, {"buffer": 0}):
        with pytest.raises(ConfigError):
            FaultProxy("127.0.0.1:1", **options)
    proxy = FaultProxy("127.0.0.1:1")
    for use in (proxy.cut, proxy.freeze, proxy.thaw, proxy.refuse, proxy.admit, proxy.calm, proxy.set, proxy.release):
        with pytest.raises(Closed):
            use()
    with pytest.raises(Closed):
        _ = proxy.address
    async with proxy:
        for wrong in (("bang",), ("rst", "up")):
            with pytest.raises(ConfigError):
                proxy.cut(*wrong)
        with pytest.raises(ConfigError, match="cut_after=0"):
            proxy.cut("fin", to="future")
        with pytest.raises(ConfigError):
            proxy.freeze(to="past")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="started once"):
            await proxy.start()


async def test_dropped_unclosed() -> None:
    """A proxy that is dropped while it runs warns."""
    proxy = FaultProxy("127.0.0.1:1")
    await proxy.start()
    with pytest.warns(ResourceWarning, match="without being closed"):
        proxy.__del__()
    proxy.close()
    del proxy
    gc.collect()
