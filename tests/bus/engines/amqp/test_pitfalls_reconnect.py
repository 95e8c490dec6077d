"""Pitfalls 1 to 9 of AMQP clients: connections that are lost, and all that has to be there again after them."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import aiormq
import pytest

import redpoll
from redpoll.bus import Bus, EngineState, QueueSpec, Task
from redpoll.errors import DialFailed, RedpollError, SpecConflict
from redpoll.testing import Faults
from tests.bus.engines.amqp.support import BRIEF, PATIENCE, Consumers, Way, elapse, pair, states, until, within
from tests.ports import free_port
from tests.rabbitmq import Broker, serves

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]
nightly = pytest.mark.nightly


async def know(bus: Bus, names: set[str]) -> None:
    """Wait until a bus knows these queues, and no others."""
    async with asyncio.timeout(PATIENCE):
        while set(await bus.queues.names()) != names:
            await elapse(0.01)


def lose(way: Way, broker: Broker, how: str) -> None:
    """End the connections of a client, in one of several ways."""
    if how == "closed":
        broker.close_connections()
    else:
        way.cut(how)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["closed", "fin", "rst", pytest.param("silence", marks=nightly)])
async def test_01_all_consume_again(rabbitmq: Broker, how: str) -> None:
    """After a connection was closed, reset or silenced, workers, iterations, servers and subscriptions all get messages."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other), Consumers(bus) as consumers:
        await consumers.reached(other)
        lose(way, rabbitmq, how)
        await consumers.reached(other)
        await until(lambda: bus.state is EngineState.READY, "the engine")
        assert await bus.healthy()


@pytest.mark.parametrize("part", [0.0, 0.6, *(pytest.param(each, marks=nightly) for each in (0.2, 0.4, 0.8, 0.95))])
async def test_01_lost_again_while_it_is_restored(rabbitmq: Broker, part: float) -> None:
    """A connection that is lost in its handshake, or while consumers are restored, is followed by one that restores all."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other), Consumers(bus) as consumers:
        before = way.stats()
        lose(way, rabbitmq, "rst")
        await until(lambda: way.stats().connections > before.connections, "a connection")
        await until(lambda: bus.state is EngineState.READY, "the engine")
        made = way.stats().connections - before.connections
        each = (way.stats().back - before.back) // made
        way.cut_future(int(each * part))
        seen = way.stats().connections
        lose(way, rabbitmq, "rst")
        await until(lambda: way.stats().connections >= seen + 2 * made, "connections that are lost again")
        way.set(Faults(), to="future")
        lose(way, rabbitmq, "rst")
        await consumers.reached(other)


async def test_01_lost_twice_within_a_moment(rabbitmq: Broker) -> None:
    """Two losses within a tenth of a second are no more than one."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other), Consumers(bus) as consumers:
        seen = way.stats().connections
        lose(way, rabbitmq, "rst")
        await until(lambda: way.stats().connections > seen, "a connection")
        lose(way, rabbitmq, "rst")
        await consumers.reached(other)
        await until(lambda: bus.state is EngineState.READY, "the engine")


async def test_02_lost_inside_of_a_callback(rabbitmq: Broker) -> None:
    """A connection that is lost while a watch of the state runs, which blocks, is noticed as any other."""
    async with Way(rabbitmq) as way, pair(way) as (bus, other), Consumers(bus) as consumers:
        blocked: list[EngineState] = []

        def watch(state: EngineState, _: str) -> None:
            if state is EngineState.READY and len(blocked) < 2:
                blocked.append(state)
                way.cut()
                end = time.monotonic() + 0.05
                while time.monotonic() < end:
                    pass

        bus.status.watch(watch)
        lose(way, rabbitmq, "rst")
        await until(lambda: len(blocked) == 2, "two losses in callbacks")
        await consumers.reached(other)


async def test_03_consumers_that_nobody_refers_to(rabbitmq: Broker) -> None:
    """A subscription and a worker to which no reference is left are restored; ones that were closed are not."""
    got: list[str] = []

    async def work(task: Task) -> None:
        got.append(task.data)

    async def begin(bus: Bus) -> None:
        await bus.tasks.worker(work, queue="kept").__aenter__()
        await bus.broadcast.subscribe(lambda broadcast: got.append(broadcast.body), subject="a").__aenter__()
        async with (
            bus.tasks.worker(work, queue="closed"),
            bus.broadcast.subscribe(lambda _: got.append("no"), subject="b"),
        ):
            pass

    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        await begin(bus)
        gc.collect()
        seen = states(bus)
        lose(way, rabbitmq, "rst")
        await until(lambda: "ready" in seen, "the engine")
        await other.tasks.submit("task", queue="kept")
        await other.tasks.submit("no", queue="closed")
        await other.broadcast.send("event", subject="b")
        await other.broadcast.send("event", subject="a")
        await until(lambda: len(got) == 2, "the task and the event")
        await elapse(0.1)
        assert sorted(got) == ["event", "task"]
        assert (await other.queues.inspect("closed")).ready == 1


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_04_deleted_queues(rabbitmq: Broker, busy: bool) -> None:
    """A worker whose queue is deleted says that it does not work, ends what it began, and works once it is declared again."""
    begun: list[str] = []
    go = asyncio.Event()

    async def work(task: Task) -> None:
        begun.append(task.data)
        await go.wait()

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with bus.tasks.worker(work, queue="q") as worker, bus.tasks.worker(work, queue="beside"):
            if busy:
                await other.tasks.submit("first", queue="q")
                await until(lambda: begun, "the first task")
            await other.queues.delete("q")
            await until(lambda: not worker.active, "the end of the consumer")
            assert not await bus.healthy()
            go.set()
            await other.queues.declare("q")
            await until(lambda: worker.active, "the consumer")
            await other.tasks.submit("second", queue="q")
            await other.tasks.submit("beside", queue="beside")
            await until(lambda: {"second", "beside"} <= set(begun), "the tasks")
            await until(lambda: bus.state is EngineState.READY, "the engine")


async def test_05_one_of_ten_queues_is_incompatible(rabbitmq: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Where one of ten queues became another one meanwhile, nine workers work on, that one is named, and nothing spins."""
    got: list[str] = []

    async def work(task: Task) -> None:
        got.append(task.data)

    names = [f"q{number}" for number in range(10)]
    async with Way(rabbitmq) as way, pair(way) as (bus, other):
        for name in names:
            await bus.tasks.worker(work, queue=name).__aenter__()
        way.refuse()
        lose(way, rabbitmq, "rst")
        # A queue that belongs to another connection can neither be declared nor consumed from.
        connection = await aiormq.connect(rabbitmq.url)
        channel = await connection.channel()
        await channel.queue_delete("q3")
        await channel.queue_declare("q3", exclusive=True)
        way.admit()
        for name in names:
            if name != "q3":
                await other.tasks.submit(name, queue=name)
        await until(lambda: len(got) == 9, "nine tasks")
        await until(lambda: bus.state is EngineState.DEGRADED, "the engine to say so")
        assert "q3" in bus.status.reason
        assert not await bus.healthy()
        sent = way.stats().forward
        await elapse(1.0)
        assert way.stats().forward - sent < 10_000
        assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) < 20
        await connection.close()


async def test_05_one_of_three_queues_is_forbidden(rabbitmq: Broker) -> None:
    """Where one of some queues may not be read any more, the others are restored; when it may be again, so is that one."""
    got: list[str] = []

    async def work(task: Task) -> None:
        got.append(task.data)

    async with Way(rabbitmq) as way, redpoll.connect(rabbitmq.url) as other:
        async with redpoll.connect(rabbitmq.user("someone", way.url), **BRIEF) as bus:
            for name in ("a", "b", "secret"):
                await bus.tasks.worker(work, queue=name).__aenter__()
            rabbitmq.permit("someone", read="^(?!.*secret).*")
            lose(way, rabbitmq, "rst")
            for name in ("a", "b", "secret"):
                await other.tasks.submit(name, queue=name)
            await until(lambda: sorted(got) == ["a", "b"], "two tasks")
            await until(lambda: bus.state is EngineState.DEGRADED, "the engine to say so")
            assert "secret" in bus.status.reason
            rabbitmq.permit("someone")
            await until(lambda: len(got) == 3, "the third task", 45.0)
            await until(lambda: bus.state is EngineState.READY, "the engine")


async def test_06_a_ghost_holds_exclusive_queues(rabbitmq: Broker) -> None:
    """While the server takes a silenced connection for alive, a newer one has its calls answered."""
    async with (
        Way(rabbitmq) as way,
        redpoll.connect(rabbitmq.url) as other,
        other.rpc.serve("echo", lambda value: value),
    ):
        async with redpoll.connect(way.url, **BRIEF) as bus:
            assert await bus.rpc.call("echo", None, 1) == 1
            old = way.stats().connections
            # The server goes on to get bytes from the client, and so takes it for alive; the client gets none.
            way.cut("silence", "back")
            await until(lambda: way.stats().connections > old, "a newer connection")
            await until(lambda: bus.state is EngineState.READY, "the engine")
            assert await bus.rpc.call("echo", None, 2, timeout=5) == 2


@nightly
async def test_07_restarted_server(rabbitmq: Broker) -> None:
    """After a restart of the server durable tasks are there, and new ones, calls and broadcasts find their way at once."""
    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as other:
        async with (
            Consumers(bus) as consumers,
            bus.broadcast.subscribe(lambda _: None, durable="kept", subject="durable"),
        ):
            await other.tasks.submit("before", queue="later")
            rabbitmq.server.stop()
            await until(lambda: bus.state is not EngineState.READY, "the engine to notice")
            rabbitmq.server.start()
            await serves(rabbitmq.server)
            await consumers.reached(other, 60.0)
        await other.tasks.submit("after", queue="later")
        for expected in ("before", "after"):
            async with other.tasks.next("later", timeout=20) as task:
                assert task.data == expected
                task.set_result(None)


@nightly
async def test_07_killed_server(rabbitmq: Broker) -> None:
    """A server that was killed has lost the list of queues: old and new programs share one again, with all settings."""
    async with redpoll.connect(rabbitmq.url) as bus:
        await bus.queues.declare(QueueSpec("limited", max_length=7))
        await bus.queues.declare(QueueSpec("deleted"))
        await bus.queues.delete("deleted")
        for number in range(2):
            rabbitmq.server.kill()
            await until(lambda: bus.state is EngineState.RECONNECTING, "the engine to notice")
            rabbitmq.server.start()
            await serves(rabbitmq.server)
            async with asyncio.timeout(60):
                await bus.status.wait_for(EngineState.READY, EngineState.DEGRADED)
            # Without the list queues are declared and used all the same.
            await within(bus.tasks.submit(number, queue=f"during-{number}"))
            async with asyncio.timeout(60):
                await bus.status.wait_for(EngineState.READY)
            await within(bus.queues.declare(QueueSpec(f"after-{number}", max_length=5)))
            async with redpoll.connect(rabbitmq.url) as other:
                await until(lambda: other.state is EngineState.READY, "the other engine")
                names = {"limited", *(f"{each}-{past}" for past in range(number + 1) for each in ("during", "after"))}
                await know(other, names)
                for name in ("limited", f"after-{number}"):
                    with pytest.raises(SpecConflict, match="max_length"):
                        await other.queues.declare(QueueSpec(name, max_length=6))
            async with bus.tasks.next(f"during-{number}", timeout=20) as task:
                assert task.data == number
                task.set_result(None)


async def test_08_settings_of_a_queue_that_is_there(rabbitmq: Broker) -> None:
    """Another spec is a conflict that names the field, and ends nothing else."""
    got: list[int] = []

    async def work(task: Task) -> None:
        got.append(task.data)

    async with redpoll.connect(rabbitmq.url) as bus, redpoll.connect(rabbitmq.url) as older:
        await older.queues.declare(QueueSpec("q", max_length=100))
        async with bus.tasks.worker(work, queue="q"):
            with pytest.raises(SpecConflict, match="max_length"):
                await bus.queues.declare(QueueSpec("q", max_length=5))
            await bus.tasks.submit(1, queue="q")
            await until(lambda: got, "the task")
            assert bus.state is EngineState.READY


async def test_08_queues_that_others_declared(rabbitmq: Broker) -> None:
    """A queue that another program declared with arguments of its own is a conflict that says so, and ends nothing else."""
    connection = await aiormq.connect(rabbitmq.url)
    channel = await connection.channel()
    await channel.queue_declare("theirs", durable=True, arguments={"x-message-ttl": 60_000, "x-max-length": 1000})
    async with redpoll.connect(rabbitmq.url) as bus, bus.tasks.worker(lambda task: task.data, queue="q"):
        seen = states(bus)
        with pytest.raises(SpecConflict):
            await bus.queues.declare("theirs")
        assert await bus.tasks.run(1, queue="q", timeout=20) == 1
        assert not seen
    await connection.close()


async def test_09_first_connection(rabbitmq: Broker) -> None:
    """Where no host answers entering fails in its time; of two hosts the live one is found, whichever stands first."""
    dead, live = free_port(), rabbitmq.server.port
    nowhere = rabbitmq.url.replace(str(live), str(dead))
    began = time.monotonic()
    with pytest.raises(DialFailed):
        await redpoll.connect(nowhere, connect_timeout=1.0).__aenter__()
    assert time.monotonic() - began < 5.0
    for hosts in (f"127.0.0.1:{dead},127.0.0.1:{live}", f"127.0.0.1:{live},127.0.0.1:{dead}"):
        async with redpoll.connect(rabbitmq.url.replace(f"127.0.0.1:{live}", hosts)) as bus:
            await bus.queues.declare("q")


async def test_09_starts_while_the_server_is_away(rabbitmq: Broker) -> None:
    """A bus that need not be connected at first declares, consumes and publishes once a server is there."""
    got: list[int] = []

    async def work(task: Task) -> None:
        got.append(task.data)

    async with Way(rabbitmq) as way:
        way.refuse()
        async with redpoll.connect(way.url, wait=True) as bus:
            assert bus.state is EngineState.CONNECTING

            async def begin() -> None:
                await bus.tasks.worker(work, queue="q").__aenter__()
                await bus.tasks.submit(1, queue="q")

            begun = asyncio.ensure_future(begin())
            await elapse(0.2)
            assert not begun.done()
            way.admit()
            await within(begun)
            await until(lambda: got, "the task")


async def test_09_wrong_password(rabbitmq: Broker) -> None:
    """A refused password is not tried at full speed, and entering fails with what the server said."""
    async with Way(rabbitmq) as way:
        wrong = way.url.replace("guest:guest", "guest:wrong")
        with pytest.raises(RedpollError, match=r"(?i)access|auth|login|refused"):
            await redpoll.connect(wrong, connect_timeout=2.0).__aenter__()
        async with redpoll.connect(wrong, wait=True):
            seen = way.stats().connections
            await elapse(2.0)
            assert way.stats().connections - seen < 15


async def test_09_many_clients_begin_at_once(rabbitmq: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Clients that are the first ones of a virtual host, at the same time, set it up without a lost connection."""
    buses = [redpoll.connect(rabbitmq.url, connect_timeout=PATIENCE) for _ in range(8)]
    seen = [states(bus) for bus in buses]

    async def begin(bus: Bus, number: int) -> None:
        await bus.__aenter__()
        await bus.queues.declare(QueueSpec(f"q{number}"))

    with caplog.at_level(logging.WARNING):
        await asyncio.gather(*(begin(bus, number) for number, bus in enumerate(buses)))
        await until(lambda: all(bus.state is EngineState.READY for bus in buses), "all")
        for bus in buses:
            await know(bus, {f"q{number}" for number in range(8)})
            await bus.close()
    assert not caplog.records
    assert all("reconnecting" not in each for each in seen)


@nightly
async def test_09_many_clients_return_apart(rabbitmq: Broker) -> None:
    """Of sixty clients whose server was away for a while no great part dials in the same instant, and none gives up."""
    async with Way(rabbitmq) as way:
        buses = [redpoll.connect(way.url) for _ in range(60)]
        for bus in buses:
            await bus.__aenter__()
        made = way.stats().connections
        way.refuse()
        way.cut()
        await until(lambda: all(bus.state is not EngineState.READY for bus in buses), "all to notice")
        await elapse(5.0)
        way.admit()
        seen, most = way.stats().connections, 0
        while any(bus.state is not EngineState.READY for bus in buses):
            await asyncio.sleep(0.05)
            now = way.stats().connections
            seen, most = now, max(most, now - seen)
        assert most < made / 2
        for bus in buses:
            await bus.close()


async def test_09_states_are_told(rabbitmq: Broker) -> None:
    """A watch hears of a loss and of the return, once each."""
    async with Way(rabbitmq) as way, pair(way) as (bus, _):
        seen = states(bus)
        lose(way, rabbitmq, "rst")
        await until(lambda: "ready" in seen, "the return")
        assert (seen.count("reconnecting"), seen[-1]) == (1, "ready")
