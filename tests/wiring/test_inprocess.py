"""Wirings of one process, on one loop and on several."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from redpoll import GLOBAL, PROCESS, Wiring
from redpoll.errors import Closed, NameTaken, PeerLost, UnknownName
from redpoll.wiring import inprocess
from tests.wiring.support import PATIENCE, directory, get, until

pytestmark = pytest.mark.asyncio


async def test_one_pair() -> None:
    """Two wirings have one pair of connections, whoever looks first; one that is closed is not found."""
    async with Wiring() as a, Wiring() as b:
        await a.create_exchange("E", scope=PROCESS)
        await b.create_exchange("F", scope=PROCESS)
        there = a._neighbour.find("exchange", "F")
        back = b._neighbour.find("exchange", "E")
        assert there is not None
        assert back is not None
        assert there.twin is back
        assert a._neighbour.find("exchange", "E") is None
        assert a._neighbour.find("queue", "F") is None
        with pytest.raises(NameTaken):
            a._neighbour.claim("exchange", "F")
    assert not inprocess._names
    assert not inprocess._watchers


async def test_closing_ends_what_others_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wiring does for another one of its process ends when it closes, also if that never answers."""
    async with Wiring() as b:
        monkeypatch.setitem(b._board.words, "open", lambda *_: asyncio.get_running_loop().create_future())
        await b.create_queue("Q")
        async with Wiring() as a:
            await a.create_exchange("E", scope=PROCESS)
            binding = asyncio.ensure_future(b.bind("E", "Q"))
            await until(lambda: a._board.tasks and b._board.tasks)
        assert not a._board.tasks
        binding.cancel()
    assert not b._board.tasks


async def test_connections_are_added_on_their_own_loops() -> None:
    """The connection of a wiring that another one makes is added to those of its board by its own loop."""
    async with Wiring() as a, Wiring() as b:
        await b.create_exchange("F", scope=PROCESS)
        there = await asyncio.to_thread(a._neighbour.find, "exchange", "F")
        assert there is not None
        for made in (there, there.twin):
            await until(lambda made=made: made.board.connections.get(made.identity) == [made])  # type: ignore[misc]
        there.give_up(PeerLost(None, "for this test"))
        again = a._neighbour.find("exchange", "F")
        assert again is not None
        key = again.twin.identity
        assert again.twin not in b._board.connections[key]
        again.give_up(PeerLost(None, "before it was added"))
        await until(lambda: again.twin in b._board.connections[key])
        assert b.identity not in a._board.connections


async def test_errors_come_back() -> None:
    """What goes wrong at the other wiring comes back as what it is."""
    async with Wiring() as a, Wiring() as b:
        await a.create_exchange("E", scope=PROCESS)
        connection = b._neighbour.find("exchange", "E")
        assert connection is not None
        with pytest.raises(UnknownName, match="no exchange 'G'"):
            await connection.request({"word": "bind", "exchange": "G", "queue": "Q", "here": True, "is_global": False})
        with pytest.raises(UnknownName, match="no queue 'nowhere'"):
            await connection.request({"word": "bind", "exchange": "E", "queue": "nowhere", "here": False})


async def test_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that appears on another thread wakes who waits for it at once."""
    monkeypatch.setattr("redpoll.wiring.bindings.FIRST_PAUSE", 1000.0)
    made = threading.Event()
    done = threading.Event()

    async def other() -> None:
        async with Wiring() as far:
            queue = await far.create_queue("Q", scope=PROCESS)
            made.set()
            assert await queue.receive(PATIENCE) == b"x"
            await asyncio.to_thread(done.wait, PATIENCE)

    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        waiting = asyncio.ensure_future(wiring.bind("E", "Q", wait=PATIENCE))
        await asyncio.sleep(0)
        thread = asyncio.create_task(asyncio.to_thread(asyncio.run, other()))
        binding = await waiting
        assert made.is_set()
        await exchange.send(b"x")
        done.set()
        await thread
        await until(lambda: binding.state == "lost")


async def test_both_ways() -> None:
    """Messages flow both ways between two loops, with limits that hold, and none is lost."""
    count = 5000

    async def echo(ready: threading.Event) -> None:
        async with Wiring() as far:
            queue = await far.create_queue("there", scope=PROCESS)
            exchange = await far.create_exchange("back", scope=PROCESS)
            ready.set()
            for _ in range(count):
                await exchange.send(await queue.receive(PATIENCE))
            await exchange.flush()
            await until(lambda: exchange.pipes[0].taken == count)

    async with Wiring() as wiring:
        ready = threading.Event()
        thread = asyncio.create_task(asyncio.to_thread(asyncio.run, echo(ready)))
        await asyncio.to_thread(ready.wait, PATIENCE)
        exchange = await wiring.create_exchange("E")
        queue = await wiring.create_queue("Q")
        await wiring.bind("back", "Q")
        await wiring.bind("E", "there")
        sending = asyncio.create_task(exchange.send_many(b"%d" % number for number in range(count)))
        assert await get(queue, count) == [b"%d" % number for number in range(count)]
        assert queue.receive_nowait() is None
        await sending
        await thread


async def test_fork() -> None:
    """A child of the process sees none of its parent's names."""
    async with Wiring() as wiring:
        await wiring.create_exchange("E", scope=PROCESS)
        pid = os.fork()
        if not pid:
            os._exit(len(inprocess._names))
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert inprocess._names


async def test_a_child_sends_and_receives_nothing() -> None:
    """In a child its parent's wiring is closed: nothing is accepted that never leaves, nor received in both processes."""
    async with Wiring() as wiring:
        exchange, queue = await wiring.create_exchange("E"), await wiring.create_queue("Q")
        await wiring.bind("E", "Q")
        await exchange.send_many([b"1", b"2"])
        assert await queue.receive() == b"1"
        exchange.send_nowait(b"3")
        pid = os.fork()
        if not pid:
            closed = 0
            try:
                for use in (
                    queue.receive_nowait,
                    lambda: exchange.send_nowait(b"4"),
                    lambda: exchange.send_some([b"4"]),
                ):
                    with pytest.raises(Closed):
                        use()
                    closed += 1
            finally:
                os._exit(closed)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 3
        assert [await queue.receive(timeout=5) for _ in range(2)] == [b"2", b"3"]


async def test_what_is_seen_everywhere() -> None:
    """On behalf of another process only GLOBAL names of a wiring beside are found."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        await b.create_queue("here", scope=PROCESS)
        await b.create_queue("all", scope=GLOBAL)
        find = a._neighbour.find
        assert find("queue", "here") is find("queue", "all") is find("queue", "all", is_global=True) is not None
        assert find("queue", "here", is_global=True) is None
