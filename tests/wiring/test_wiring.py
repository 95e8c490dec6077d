"""Exchanges and queues of one wiring, and of several, in all scopes."""

from __future__ import annotations

import asyncio
import gc

import pytest

import redpoll
from redpoll import GLOBAL, LOCAL, PROCESS, Config, Wiring
from redpoll.errors import (
    Closed,
    ConfigError,
    DirectoryUnavailable,
    LinkError,
    NameTaken,
    RedpollError,
    ScopeError,
    UnknownName,
    UsageError,
)
from redpoll.testing import FaultProxy
from redpoll.wiring import AtLimit, Binding, Gap, Limits, Style
from redpoll.wiring.directory import Directory, DirectoryClient
from tests.ports import free_port
from tests.wiring.support import PATIENCE, directory, get, until

pytestmark = pytest.mark.asyncio


async def test_one_wiring() -> None:
    """What is sent by an exchange comes to each queue that is bound to it, in order, and to all of a wiring in turn."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        one, two = await wiring.create_queue("1"), await wiring.create_queue("2")
        binding = await wiring.bind("E", "1")
        await wiring.bind(exchange, two)
        assert (binding.state, binding.exchange, binding.queue, binding.peer) == ("up", "E", "1", "here")
        for number in range(3):
            await wiring.send("E", b"%d" % number)
        assert await get(one, 3) == [b"0", b"1", b"2"]
        await exchange.send(b"3")
        assert sorted(await get(wiring, 5)) == [b"0", b"1", b"2", b"3", b"3"]
        assert wiring.exchanges == (exchange,)
        assert wiring.queues == (one, two)
        assert len(wiring.bindings) == 2


async def test_same_name() -> None:
    """A name given again means the same object if that is made alike, else it is taken; the kinds have their own names."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("N", style=Style.BALANCE)
        queue = await wiring.create_queue("N", gaps=True)
        assert await wiring.create_exchange("N", style=Style.BALANCE) is exchange
        assert await wiring.create_queue("N", gaps=True) is queue
        with pytest.raises(NameTaken, match="exchange name 'N' is taken"):
            await wiring.create_exchange("N")
        with pytest.raises(NameTaken):
            await wiring.create_queue("N", limits=Limits(messages=3))


async def test_bind_again() -> None:
    """Binding what is bound gives the same binding."""
    async with Wiring() as wiring:
        await wiring.create_exchange("E")
        queue = await wiring.create_queue("Q")
        first = await wiring.bind("E", "Q")
        assert await wiring.bind("E", queue) is first
        for _ in range(5):
            await first.unbind()
            first = await wiring.bind("E", "Q")
        assert wiring._bindings.bindings == {("E", "Q"): first}
        await wiring.send("E", b"once")
        assert await queue.receive(PATIENCE) == b"once"
        assert queue.receive_nowait() is None


async def test_bad_arguments() -> None:
    """What cannot be meant is refused, by an error that says what it should be."""
    with pytest.raises(UsageError):
        Wiring("no address")
    with pytest.raises(ConfigError, match="advertise"):
        Wiring(advertise="0.0.0.0")
    async with Wiring() as wiring:
        for name in ("", "x" * 256, "a\nb", 7):
            with pytest.raises(UsageError, match="name"):
                await wiring.create_exchange(name)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="scope"):
            await wiring.create_queue("Q", scope="local")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="limits"):
            await wiring.create_queue("Q", limits=5)  # type: ignore[arg-type]
        with pytest.raises(UsageError) as caught:
            await wiring.create_exchange("E", style="balance")  # type: ignore[arg-type]
        assert (
            str(caught.value) == "style is a Style, not 'balance' (of redpoll.wiring: Style.DISTRIBUTE, Style.BALANCE)"
        )
        with pytest.raises(UsageError, match=r"at_limit is an AtLimit, not 'drop' \(of redpoll.wiring: AtLimit.WAIT, "):
            await wiring.create_exchange("E", at_limit="drop")  # type: ignore[arg-type]
        with pytest.raises(ScopeError, match="needs a directory"):
            await wiring.create_exchange("E", scope=GLOBAL)
        with pytest.raises(UnknownName):
            await wiring.send("E", b"")
        await wiring.create_exchange("E")
        with pytest.raises(UnknownName) as unknown:
            await wiring.bind("E", "Q", wait=0)
        remedy = "a wiring without directory= finds names of its own process alone"
        assert str(unknown.value) == f"there is no queue 'Q' ({remedy})"
        with pytest.raises(UnknownName):
            await wiring.unbind("E", "Q")
        assert not wiring.bindings


async def test_not_running() -> None:
    """Before its start and after its end a wiring says that it does not run."""
    wiring = Wiring()
    with pytest.raises(Closed):
        await wiring.create_queue("Q")
    with pytest.raises(Closed):
        await wiring.send("E", b"")
    with pytest.raises(Closed):
        await wiring.receive(0)
    with pytest.raises(Closed):
        wiring.receive_nowait()
    await wiring.close()
    async with wiring:
        queue = await wiring.create_queue("Q")
        exchange = await wiring.create_exchange("E")
        binding = await wiring.bind("E", "Q")
        waiting = asyncio.ensure_future(wiring.receive())
        also = asyncio.ensure_future(queue.receive())
        with pytest.raises(UsageError, match="started once"):
            await wiring.start()
        await asyncio.sleep(0)
    for each in (waiting, also):
        with pytest.raises(Closed):
            await each
    with pytest.raises(Closed):
        await exchange.send(b"")
    with pytest.raises(Closed):
        await wiring.bind("E", "Q")
    await binding.unbind()
    await wiring.close()


async def test_dropped() -> None:
    """One that is dropped unclosed warns."""
    wiring = Wiring()
    await wiring.start()
    node = wiring._net.node
    board = wiring._board
    with pytest.warns(ResourceWarning, match="without being closed"):
        wiring.__del__()
    await wiring.close()
    assert board.closed
    assert not node.listening
    gc.collect()


async def test_late_binding() -> None:
    """`bind` waits for a name to appear, as long as it was told to; then it fails and nothing is left."""
    async with Wiring() as wiring:
        await wiring.create_exchange("E")
        waiting = asyncio.ensure_future(wiring.bind("E", "Q", wait=None))
        await asyncio.sleep(0)
        queue = await wiring.create_queue("Q")
        assert (await asyncio.wait_for(waiting, PATIENCE)).state == "up"
        await wiring.send("E", b"late")
        assert await queue.receive(PATIENCE) == b"late"
        with pytest.raises(UnknownName, match=r"no queue 'R' after 0\.01 s"):
            await wiring.bind("E", "R", wait=0.01)
        assert len(wiring.bindings) == 1


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("binder", ["exchange", "queue", "third"])
async def test_between_processes(binder: str) -> None:
    """Whoever binds, messages flow from the exchange's owner to the queue's, and none that is sent after it is lost."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b, Wiring(names.address) as c:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        wiring = {"exchange": a, "queue": b, "third": c}[binder]
        binding = await wiring.bind("E", "Q")
        for number in range(3000):
            await exchange.send(b"%d" % number)
        assert await get(queue, 3000) == [b"%d" % number for number in range(3000)]
        assert not c.exchanges
        assert not c.queues
        assert [pipe["peer"] for pipe in a.describe()["exchanges"][0]["pipes"]] == [str(b.address)]
        await binding.unbind()
        await until(lambda: not exchange.pipes)
        await exchange.send(b"nobody hears it")
        assert exchange.stats.unbound == 1
        assert queue.receive_nowait() is None


@pytest.mark.usefixtures("apart")
async def test_local_names_of_a_binder() -> None:
    """A queue that others do not see can be bound by its own wiring to an exchange elsewhere; by nobody else."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=LOCAL)
        with pytest.raises(UnknownName):
            await a.bind("E", "Q", wait=0)
        await b.bind("E", queue)
        await exchange.send(b"x")
        assert await queue.receive(PATIENCE) == b"x"


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("binder", ["exchange", "queue", "third"])
@pytest.mark.parametrize("kind", ["exchange", "queue"])
async def test_deleted_and_made_again(kind: str, binder: str) -> None:
    """A binding is lost with its exchange or queue, at whoever bound it, and messages flow again once that is made again."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b, Wiring(names.address) as c:
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        wiring = {"exchange": a, "queue": b, "third": c}[binder]
        binding = await wiring.bind("E", "Q")
        lost: list[RedpollError] = []
        wiring.events.pipe_lost = lambda _, error: lost.append(error)
        await (exchange if kind == "exchange" else queue).delete()
        await until(lambda: binding.state == "lost")
        assert isinstance(lost[0], UnknownName)
        assert (lost[0].kind, lost[0].name) == (kind, {"exchange": "E", "queue": "Q"}[kind])
        exchange = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        assert await wiring.bind("E", "Q") is binding
        await exchange.send(b"again")
        assert await queue.receive(PATIENCE) == b"again"


@pytest.mark.usefixtures("apart")
async def test_made_again_elsewhere() -> None:
    """A binding of two names of others follows an exchange that another wiring makes, and nothing is left where it was."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b, Wiring(names.address) as c:
        former = await a.create_exchange("E", scope=GLOBAL)
        queue = await b.create_queue("Q", scope=GLOBAL)
        binding = await c.bind("E", "Q")
        await former.delete()
        await until(lambda: binding.state == "lost" and not a.bindings)
        exchange = await b.create_exchange("E", scope=GLOBAL)
        await c.bind("E", "Q")
        await exchange.send(b"from the next one")
        assert await queue.receive(PATIENCE) == b"from the next one"
        await binding.unbind()
        assert not b.bindings
        assert not exchange.pipes


@pytest.mark.usefixtures("apart")
async def test_one_copy() -> None:
    """A process gets one copy of a distributed message, however many of its queues are bound; each of them gets it."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E")
        queues = [await b.create_queue(f"Q{number}", scope=GLOBAL) for number in range(5)]
        await asyncio.gather(*(a.bind("E", queue.name) for queue in queues))
        assert len(exchange.pipes) == 1
        message = b"x" * 100
        await exchange.send(message)
        found = [await queue.receive(PATIENCE) for queue in queues]
        assert found == [message] * 5
        assert len({id(each) for each in found}) == 1


@pytest.mark.usefixtures("apart")
async def test_queue_joins_and_leaves() -> None:
    """A queue gets exactly what is sent between being bound and unbound, though its pipe carries more."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        exchange = await a.create_exchange("E")
        one, two = await b.create_queue("1", scope=GLOBAL), await b.create_queue("2", scope=GLOBAL)
        await a.bind("E", "1")
        for number in range(100):
            exchange.send_nowait(b"%d" % number)
        binding = await a.bind("E", "2")
        for number in range(100, 200):
            exchange.send_nowait(b"%d" % number)
        await binding.unbind()
        for number in range(200, 300):
            exchange.send_nowait(b"%d" % number)
        assert await get(one, 300) == [b"%d" % number for number in range(300)]
        assert await get(two, 100) == [b"%d" % number for number in range(100, 200)]
        assert two.receive_nowait() is None
        assert one.stats.missing == two.stats.missing == 0


async def test_balance() -> None:
    """A balancing exchange gives each message to one queue, in turn; without any, `send` waits and `send_nowait` is False."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E", style=Style.BALANCE)
        assert not exchange.send_nowait(b"")
        waiting = asyncio.ensure_future(exchange.send(b"0"))
        await asyncio.sleep(0)
        queues = [await wiring.create_queue(f"{number}") for number in range(3)]
        await wiring.bind("E", "0")
        await asyncio.wait_for(waiting, PATIENCE)
        assert await queues[0].receive(PATIENCE) == b"0"
        for queue in queues[1:]:
            await wiring.bind(exchange, queue)
        for number in range(30):
            await exchange.send(b"%d" % number)
        found = [await get(queue, 10) for queue in queues]
        assert sorted(int(each) for some in found for each in some) == list(range(30))
        assert all(some == sorted(some, key=int) for some in found)


async def test_balance_passes_over_full() -> None:
    """A balancing exchange passes over a queue that has no room."""
    async with Wiring() as wiring:
        few = Limits(messages=1)
        exchange = await wiring.create_exchange("E", style=Style.BALANCE, limits=few)
        slow, fast = await wiring.create_queue("slow", limits=few), await wiring.create_queue("fast")
        await wiring.bind("E", "slow")
        await wiring.bind("E", "fast")
        for number in range(100):
            await exchange.send(b"%d" % number)
        taken = await get(fast, 97)
        assert len(set(taken)) == 97
        assert slow.stats.waiting == 1
        await wiring.close(linger=0)


async def test_process_scope() -> None:
    """A PROCESS name is seen by other wirings of the process, on other threads too, and by no directory; it is one's own."""
    async with Wiring() as a:
        exchange = await a.create_exchange("E", scope=PROCESS)
        got: list[bytes] = []

        async def other() -> None:
            async with Wiring() as b:
                queue = await b.create_queue("Q")
                with pytest.raises(NameTaken, match="another wiring of this process"):
                    await b.create_exchange("E", scope=PROCESS)
                binding = await b.bind("E", "Q")
                assert binding.peer == "this process"
                while len(got) < 20_000:
                    got.append(await queue.receive(PATIENCE))
                await binding.unbind()

        thread = asyncio.create_task(asyncio.to_thread(asyncio.run, other()))
        await until(lambda: exchange.stats.pipes or thread.done())
        for number in range(20_000):
            await exchange.send(b"%d" % number)
        await thread
        assert got == [b"%d" % number for number in range(20_000)]
        await until(lambda: not exchange.pipes)
        async with Wiring() as c:
            with pytest.raises(UnknownName):
                await c.bind("E", "nobody's", wait=0)
            await c.create_queue("R", scope=PROCESS)
            await a.bind("E", "R")
            await exchange.send(b"back")
            assert await c.receive(PATIENCE) == b"back"
        await until(lambda: a.bindings[0].state == "lost")


async def test_unseen() -> None:
    """A LOCAL name is seen by no other wiring, and one that was deleted or closed by nobody."""
    async with Wiring() as a, Wiring() as b:
        await a.create_exchange("E")
        await b.create_queue("Q")
        with pytest.raises(UnknownName):
            await b.bind("E", "Q", wait=0)
        seen = await a.create_exchange("F", scope=PROCESS)
        await b.bind("F", "Q", wait=0)
        await seen.delete()
        with pytest.raises(UnknownName):
            await b.bind("F", "R", wait=0)
        await b.create_exchange("F", scope=PROCESS)


async def test_describe() -> None:
    """`describe` says what there is, how it is wired, and what it counted."""
    async with Wiring() as wiring:
        await wiring.create_exchange("E", style=Style.BALANCE)
        await wiring.create_queue("Q")
        await wiring.bind("E", "Q")
        await wiring.send("E", b"x")
        await wiring.receive(PATIENCE)
        told = wiring.describe()
        assert told["identity"] == wiring.identity
        assert told["address"] == str(wiring.address)
        (exchange,) = told["exchanges"]
        assert (exchange["name"], exchange["scope"], exchange["style"], exchange["sent"]) == (
            "E",
            "local",
            "balance",
            1,
        )
        (pipe,) = exchange["pipes"]
        assert (pipe["queue"], pipe["peer"], pipe["state"], pipe["sent"]) == ("Q", "here", "up", 1)
        (queue,) = told["queues"]
        assert (queue["name"], queue["received"], queue["waiting"], queue["pipes"]) == ("Q", 1, 0, 1)


async def test_directory_away() -> None:
    """Without its directory a GLOBAL name cannot be had, nor one be found; what needs none works."""
    async with Wiring(f"127.0.0.1:{free_port()}", bind_timeout=0.1) as wiring:
        with pytest.raises(DirectoryUnavailable):
            await wiring.create_exchange("E", scope=GLOBAL)
        await wiring.create_exchange("E")
        with pytest.raises(DirectoryUnavailable):
            await wiring.bind("E", "Q")
        await wiring.create_queue("Q")
        await wiring.bind("E", "Q")
        assert wiring.directory_state == "connecting"


async def test_directory_away_while_sessions_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory whose link is lost is told of at once, and asked again, also where sessions outlast their links."""
    monkeypatch.setattr("redpoll.wiring.directory.session._PATIENCE", 3600.0)
    async with directory() as names, FaultProxy(names) as way, Wiring(way.address, resume=3600.0) as wiring:
        await wiring.create_queue("Q", scope=GLOBAL)
        told: list[object] = []
        wiring.events.directory_lost = told.append
        way.refuse()
        way.cut()
        await until(lambda: wiring.directory_state == "lost" and told)
        way.admit()
        await until(lambda: wiring.directory_state == "up" and names.entries)
        await wiring.create_queue("R", scope=GLOBAL)


async def test_taken_in_the_directory() -> None:
    """A GLOBAL name that another process has is taken, and nothing is left of the attempt."""
    async with directory() as names, Wiring(names.address) as a, Wiring(names.address) as b:
        await a.create_queue("Q", scope=GLOBAL)
        with pytest.raises(NameTaken):
            await b.create_queue("Q", scope=GLOBAL)
        assert not b.queues
        await a.queues[0].delete()
        await b.create_queue("Q", scope=GLOBAL)


async def test_an_owner_that_was_killed() -> None:
    """A GLOBAL name whose owner is gone is had when the lease of that one is over, however short `bind_timeout` is."""
    async with (
        Directory(port=0, lease=3.0) as names,
        FaultProxy(names) as proxy,
        DirectoryClient(proxy.address) as owner,
        Wiring(names.address, bind_timeout=1.0) as wiring,
    ):
        await owner.register("queue", "Q", "127.0.0.1:4000", timeout=PATIENCE)
        proxy.refuse()
        proxy.cut()
        await until(lambda: names.entries[0].suspect)
        await wiring.create_queue("Q", scope=GLOBAL)
        assert [entry.identity for entry in names.entries] == [wiring.identity]


async def test_made_twice_at_once() -> None:
    """Who makes what is being made has it when that is done, and makes it if the first gives up; closing ends the wait."""
    address = f"127.0.0.1:{free_port()}"
    async with Wiring(address, bind_timeout=None) as wiring:
        first, second, third = (asyncio.ensure_future(wiring.create_queue("Q", scope=GLOBAL)) for _ in range(3))
        await until(lambda: wiring.queues)
        assert not second.done()
        first.cancel()
        async with Directory("127.0.0.1", int(address.rpartition(":")[2])) as names:
            async with asyncio.timeout(PATIENCE):
                assert await second is await third is wiring.queues[0]
            assert [entry.name for entry in names.entries] == ["Q"]
        assert first.cancelled()
        making = [asyncio.ensure_future(wiring.create_exchange("E", scope=GLOBAL)) for _ in range(2)]
        await until(lambda: wiring.exchanges)
    for each in making:
        with pytest.raises(Closed):
            await each


async def test_the_hook_taken() -> None:
    """A wiring is told that another took a name of its over, which a later run with its identity can."""
    async with directory() as names, Wiring(names.address) as wiring:
        told: list[tuple[str, str, RedpollError]] = []
        wiring.events.taken = lambda kind, name, error: told.append((kind, name, error))
        await wiring.create_exchange("E", scope=GLOBAL)
        async with DirectoryClient(names.address, owner_identity=wiring.identity) as later:
            await later.register("exchange", "E", "127.0.0.1:4000", timeout=PATIENCE)
            await until(lambda: told)
    ((kind, name, error),) = told
    assert (kind, name) == ("exchange", "E")
    assert isinstance(error, NameTaken)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_everywhere(host: str) -> None:
    """Who listens on all interfaces registers, and says, the address of its link to the directory."""
    is_global = ("0.0.0.0", "::")
    async with (
        Directory(host, 0, lease=3600.0) as names,
        Wiring(
            names.address, bind_timeout=None, encryption=False, config=Config(host=is_global, port=free_port())
        ) as wiring,
    ):
        async with asyncio.timeout(PATIENCE):
            await wiring.create_queue("Q", scope=GLOBAL)
        assert names.entries[0].address == wiring.address == redpoll.Address.of_host(host, wiring.address.port)
        assert wiring.describe()["address"] == str(wiring.address)


@pytest.mark.parametrize(("host", "is_global"), [("127.0.0.1", "::"), ("::1", "0.0.0.0")])
async def test_everywhere_but_there(host: str, is_global: str) -> None:
    """Who listens on no interface of the family of its link to the directory is told so, and what to do."""
    async with Directory(host, 0) as names, Wiring(names.address, host=is_global, encryption=False) as wiring:
        with pytest.raises(ConfigError, match="by which the directory is reached") as caught:
            await wiring.create_queue("Q", scope=GLOBAL)
        assert "advertise=" in (caught.value.hint or "")
        assert not names.entries


async def test_a_directory_that_was_just_started() -> None:
    """A name that nobody has is unknown there, too, when the time is over, and the hint says why that took it."""
    async with Directory(port=0, lease=3600.0) as names, Wiring(names.address, bind_timeout=0.5) as wiring:
        await wiring.create_queue("Q")
        for options in ({}, {"wait": 0}):
            with pytest.raises(UnknownName, match="there is no exchange 'E'") as caught:
                await wiring.bind("E", "Q", **options)
            assert "started just now" in (caught.value.hint or "")


async def test_a_directory_that_is_frozen() -> None:
    """A directory that does not answer is the error, not the name."""
    async with directory() as names, FaultProxy(names) as proxy, Wiring(proxy.address) as wiring:
        await wiring.create_queue("Q", scope=GLOBAL)
        await until(lambda: wiring._directory is not None and wiring._directory.settled)
        proxy.freeze()
        with pytest.raises(DirectoryUnavailable, match="has not answered"):
            await wiring.bind("E", "Q", wait=0.2)
        proxy.thaw()


@pytest.mark.usefixtures("apart")
async def test_owner_unreachable() -> None:
    """An owner that is registered and not there is an error of the link, not an unknown name."""
    async with directory() as names:
        gone = Wiring(names.address)
        await gone.start()
        await gone.create_queue("Q", scope=GLOBAL)
        async with Wiring(names.address) as wiring:
            await wiring.create_exchange("E")
            await gone._net.stop(0)
            with pytest.raises(LinkError):
                await wiring.bind("E", "Q", wait=0.3)
        await gone.close()


async def test_far_directory() -> None:
    """With a directory on another machine a wiring that only this one can reach is refused before anybody dials."""
    wiring = Wiring("203.0.113.1:5682", encryption=False)
    with pytest.raises(ConfigError, match="only this machine can reach that"):
        await wiring.start()
    with pytest.raises(ConfigError, match="advertise"):
        async with Wiring("203.0.113.1:5682", encryption=False, advertise="localhost"):
            pass


async def test_options() -> None:
    """Options of a Config reach the node; those of the wiring go before them; some are the wiring's alone."""
    wiring = Wiring(config=Config(memory_limit=5000, host="::1", slots=3), port=0)
    assert wiring._config.memory_limit == 5000
    assert wiring._config.host == "::1"
    assert wiring._config.slots != 3
    async with Wiring(advertise="example.org", config=Config(host="127.0.0.1")) as wiring:
        assert wiring.address.host == "example.org"
        assert wiring.address.port == wiring._net.node.address.port


async def test_close_lingers() -> None:
    """Closing sends what was sent first; a queue gives what it has after it was closed, too."""
    async with directory() as names, Wiring(names.address) as b:
        queue = await b.create_queue("Q", scope=GLOBAL)
        async with Wiring(names.address) as a:
            exchange = await a.create_exchange("E")
            await a.bind("E", "Q")
            for number in range(5000):
                await exchange.send(b"%d" % number)
        assert await get(queue, 5000) == [b"%d" % number for number in range(5000)]
        await until(lambda: not queue.stats.pipes)
    assert queue.stats.missing == 0


async def test_too_large() -> None:
    """A message above the node's limit is refused as it is sent."""
    async with Wiring(config=Config(max_message_size=100_000)) as wiring:
        await wiring.create_exchange("E")
        with pytest.raises(redpoll.MessageTooLarge):
            await wiring.send("E", bytes(100_001))


async def test_gap_hook() -> None:
    """Where messages were dropped a gap stands in the queue that asked for it, and the hook is told either way."""
    async with Wiring() as wiring:
        told: list[tuple[str, Gap]] = []
        ups: list[Binding] = []
        wiring.events.gap = lambda queue, gap: told.append((queue.name, gap))
        wiring.events.pipe_up = ups.append
        few = Limits(messages=2)
        exchange = await wiring.create_exchange("E", limits=few, at_limit=AtLimit.DROP_OLD)
        plain = await wiring.create_queue("plain", limits=few)
        with_gaps = await wiring.create_queue("gaps", limits=few, gaps=True)
        for name in ("plain", "gaps"):
            await wiring.bind("E", name)
        for number in range(10):
            await exchange.send(b"%d" % number)
        got: dict[str, list[bytes | Gap]] = {"plain": [], "gaps": []}
        while b"9" not in got["plain"] or b"9" not in got["gaps"]:
            for queue in (plain, with_gaps):
                got[queue.name] += [each for each in [queue.receive_nowait()] if each is not None]
            await asyncio.sleep(0)
        gaps = [each for each in got["gaps"] if isinstance(each, Gap)]
        messages = [each for each in got["gaps"] if not isinstance(each, Gap)]
        dropped = 10 - len(messages)
        assert dropped >= 6
        assert messages == sorted(messages) == got["plain"]
        assert sum(gap.count for gap in gaps) == dropped == exchange.stats.dropped == plain.stats.missing
        assert [gap for name, gap in told if name == "gaps"] == gaps == [gap for name, gap in told if name == "plain"]
        assert plain.stats.gaps == len(gaps)
        assert [each.queue for each in ups] == ["plain", "gaps"]


async def test_receivers_of_all() -> None:
    """Of several tasks that receive of all queues each gets one of the messages that came at one go."""
    async with Wiring() as wiring:
        exchange = await wiring.create_exchange("E")
        await wiring.create_queue("Q")
        await wiring.bind("E", "Q")
        tasks = [asyncio.ensure_future(wiring.receive(PATIENCE)) for _ in range(5)]
        await until(lambda: len(wiring._board.waiters) == 5)
        await exchange.send_many([b"%d" % number for number in range(5)])
        assert sorted(await asyncio.gather(*tasks)) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize(("linger", "least"), [(60.0, 30.0), (None, None), (0.0, 0.0)])
async def test_closing_gives_the_network_what_is_left_of_linger(linger: float | None, least: float | None) -> None:
    """What was handed to the network has that long to get there, and not only what a goodbye takes."""
    wiring = Wiring()
    await wiring.start()
    given: list[float | None] = []
    stop = wiring._net.stop

    async def recorded(drain: float | None) -> None:
        given.append(drain)
        await stop(drain)

    wiring._net.stop = recorded  # type: ignore[method-assign]
    await wiring.close(linger)
    (drain,) = given
    if least is None:
        assert drain is None
    else:
        assert drain is not None
        assert drain >= least


async def test_closing_is_cancelled_while_bindings_end() -> None:
    """Closing that is cancelled while it waits for the ends of bindings stops the node at once all the same."""
    wiring = Wiring()
    await wiring.start()
    await wiring.create_queue("Q")
    binding = asyncio.ensure_future(wiring.bind("E", "Q", wait=None))
    await until(lambda: wiring.bindings and wiring.bindings[0].task)
    closing = asyncio.ensure_future(wiring.close(60))
    while wiring.bindings:  # noqa: ASYNC110  # in the very turn
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(closing, PATIENCE)
    with pytest.raises(Closed):
        await binding
    assert not wiring._net.node.listening
    assert repr(wiring) == "<Wiring closed>"


async def test_nothing_is_there_after_a_start_that_failed() -> None:
    """What it has can be asked for, and is nothing."""
    wiring = Wiring("192.0.2.1:5682")
    with pytest.raises(ConfigError):
        await wiring.start()
    assert (wiring.exchanges, wiring.queues, wiring.bindings) == ((), (), ())


async def test_local_to_another_wiring() -> None:
    """An exchange or a queue that is LOCAL to another wiring is refused at once; a name of its own is not meant."""
    async with Wiring() as one, Wiring() as two:
        for wiring in (one, two):
            await wiring.create_exchange("E")
            await wiring.create_queue("Q")
        with pytest.raises(UsageError, match=r"<Exchange 'E' local distribute> belongs to another wiring"):
            await one.bind(two.exchanges[0], "Q")
        with pytest.raises(UsageError, match=r"<Queue 'Q' local> belongs to another wiring"):
            await one.bind("E", two.queues[0])
        assert not one.bindings
        await one.bind(one.exchanges[0], one.queues[0])
