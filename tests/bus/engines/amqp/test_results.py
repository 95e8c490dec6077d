"""A hub beside RabbitMQ: what is done once, cancelled, found later, and put in again and again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus, EngineState, OutcomeKind, QueueSpec, Task
from redpoll.bus.broker.outputs import Write
from redpoll.bus.engines.amqp import messages as m
from redpoll.bus.engines.amqp import topology as t
from redpoll.bus.engines.amqp.publishing import Sending
from redpoll.bus.envelope import Envelope, encode
from redpoll.errors import ConfigError, DeadLettered, PayloadTooLarge, TaskCancelled, TaskExpired, Unsupported
from redpoll.testing.conformance.frame import Recorder
from tests.bus.engines.amqp.support import BRIEF, PATIENCE, Way, elapse, until, within
from tests.bus.engines.amqp.workers import Worker
from tests.bus.engines.hub.memory_store import MemoryStore
from tests.bus.engines.hub.support import Running, running
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]


@pytest.fixture
def hub() -> Iterator[Running]:
    """A hub of the test's own, which is stopped behind it."""
    with running() as hub:
        yield hub


def both(rabbitmq: Broker, hub: Running, **options: Any) -> Bus:
    """A bus on both."""
    return redpoll.connect(rabbitmq.url, results=hub.url, **options)


async def inspect(hub: Running, queue: str) -> Any:
    """What the hub says of the records of a queue."""
    async with redpoll.connect(hub.url) as bus:
        return await bus.queues.inspect(f"amqp:{queue}")


async def test_capabilities_and_refusals_name_the_hub(rabbitmq: Broker, hub: Running) -> None:
    """The capabilities say what a hub adds; without one the refusal names the option."""
    async with both(rabbitmq, hub) as bus, redpoll.connect(rabbitmq.url) as alone:
        had, lacks = bus.capabilities, alone.capabilities
        assert (had.results, had.dedup, had.fencing, had.attempts, had.cancel, had.schedule) == (
            "stored", True, True, "lost", True, True,
        )  # fmt: skip
        assert (lacks.results, lacks.dedup, lacks.fencing, lacks.attempts, lacks.cancel, lacks.schedule) == (
            "live", False, False, "given", False, False,
        )  # fmt: skip
        handle = await alone.tasks.submit(1, queue="q")
        for refused in (
            alone.tasks.handle(handle.id, queue="q").result(),
            handle.state(),
            handle.cancel(),
            alone.tasks.submit(1, queue="q", dedup="k"),
            alone.tasks.schedule("s", 1, every=1.0),
        ):
            with pytest.raises(Unsupported) as caught:
                await refused
            assert "results=" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("url", "options", "name"),
    [
        ("amqp://h/", {"results": "amqp://h/"}, "results"),
        ("amqp://h/", {"results": 5}, "url"),
        ("amqp://h/?speak=kiwipy", {"results": "redpoll://h"}, "results"),
    ],
)
async def test_wrong_results(url: str, options: dict[str, Any], name: str) -> None:
    """The option is the URL of a hub, for redpoll's own messages alone."""
    with pytest.raises(ConfigError) as caught:
        redpoll.connect(url, **options)
    assert caught.value.field == name


async def test_a_result_is_found_by_its_id_when_all_others_are_gone(rabbitmq: Broker, hub: Running) -> None:
    """An outcome is found by another program after publisher and worker have ended; its state too."""
    async with both(rabbitmq, hub) as bus:
        first, second = await bus.tasks.submit(2, queue="q"), await bus.tasks.submit(0, queue="q")
        assert await first.state() == "ready"
    async with both(rabbitmq, hub) as bus, bus.tasks.worker(lambda task: 6 // task.data, queue="q"):
        async with both(rabbitmq, hub) as other:
            assert await within(other.tasks.handle(first.id, queue="q").result()) == 3
    async with both(rabbitmq, hub) as bus:
        assert await bus.tasks.handle(first.id, queue="q").result() == 3
        assert await bus.tasks.handle(first.id, queue="q").state() == "done"
        found = await bus.engine.lookup(second.id)
        assert (found.queue, found.outcome and found.outcome.kind) == ("q", OutcomeKind.ERROR)


async def test_what_was_cancelled_never_begins(rabbitmq: Broker, hub: Running) -> None:
    """A task that is cancelled while its message waits at RabbitMQ is not begun; the message goes when it comes."""
    begun: list[Any] = []
    async with both(rabbitmq, hub) as bus:
        handles = [await bus.tasks.submit(number, queue="q") for number in range(4)]
        async with both(rabbitmq, hub) as other:
            assert await other.tasks.handle(handles[1].id, queue="q").cancel() == "withdrawn"
        assert await handles[2].cancel() == "withdrawn"
        with pytest.raises(TaskCancelled):
            await within(handles[1].result())
        async with bus.tasks.worker(lambda task: begun.append(task.data), queue="q"):
            await within(asyncio.gather(handles[0].result(), handles[3].result()))
        assert begun == [0, 3]
        assert (await bus.queues.inspect("q")).ready == 0
        assert await handles[0].cancel() == "too late"


async def test_work_goes_on_when_the_connection_is_lost(rabbitmq: Broker, hub: Running) -> None:
    """A worker whose connection to RabbitMQ is lost keeps its task: nobody else begins it, and its outcome counts."""
    begun: list[str] = []
    go = asyncio.Event()

    def working(name: str) -> Any:
        async def work(task: Task) -> str:
            begun.append(name)
            await go.wait()
            assert not task.lost
            return name

        return work

    async with Way(rabbitmq) as way, both(rabbitmq, hub) as other:
        async with redpoll.connect(way.url, results=hub.url, **BRIEF) as bus:
            async with bus.tasks.worker(working("first"), queue="q"):
                handle = await other.tasks.submit(1, queue="q")
                await until(lambda: begun, "the worker")
                async with other.tasks.worker(working("second"), queue="q"):
                    way.cut("rst")
                    await until(lambda: bus.state is not EngineState.READY, "the loss")
                    await elapse(1.5)
                    assert await handle.state() == "taken"
                    go.set()
                    assert await within(handle.result()) == "first"
                    await until(lambda: bus.state is EngineState.READY, "the connection")
                    await _empty(other, "q")
    assert begun == ["first"]


async def _empty(bus: Bus, queue: str) -> None:
    """Wait until no message of a queue is at RabbitMQ, after the longest pause of one whose task is taken."""
    async with asyncio.timeout(PATIENCE):
        while (await bus.queues.inspect(queue)).ready:
            await elapse(0.05)


async def test_the_task_of_a_killed_process_is_done_by_another(rabbitmq: Broker, hub: Running, worker: Worker) -> None:
    """A worker's process is killed: another one has its task as the second attempt, and the outcome is that one's."""
    async with both(rabbitmq, hub) as bus:
        await bus.queues.declare("q")
        worker.start(f"{rabbitmq.url}?results={hub.url}", 4)
        handle = await bus.tasks.submit(1, queue="q")
        await worker.says("begun")
        worker.kill()
        async with bus.tasks.worker(lambda task: task.attempt, queue="q"):
            assert await within(handle.result(), PATIENCE * 2) == 2


async def test_a_hub_that_restarts_starts_no_work_again(rabbitmq: Broker) -> None:
    """While the hub restarts, what runs goes on; its outcome is recorded then, and what waits begins after that."""
    kept: list[Write] = []
    store = MemoryStore(kept, epoch=1)
    hub = Running(store)
    port = hub.hub.address.port
    begun: Counter[int] = Counter()
    go = asyncio.Event()

    async def work(task: Task) -> int:
        begun[task.data] += 1
        await go.wait()
        return int(task.data)

    async with both(rabbitmq, hub) as bus, bus.tasks.worker(work, queue="q", concurrency=2):
        handles = [await bus.tasks.submit(number, queue="q") for number in range(4)]
        await until(lambda: len(begun) == 2, "two tasks")
        await asyncio.to_thread(hub.stop)
        await until(lambda: bus.state is EngineState.DEGRADED, "the loss of the hub")
        assert "hub" in bus.status.reason
        go.set()
        with running(MemoryStore(kept, store.name, 2), port=port):
            assert await within(asyncio.gather(*(each.result() for each in handles))) == [0, 1, 2, 3]
            await until(lambda: bus.state is EngineState.READY, "the hub")
            assert begun == {0: 1, 1: 1, 2: 1, 3: 1}
            assert (await bus.queues.inspect("q")).ready == 0
            await bus.close()


async def test_a_hub_without_its_disk_loses_no_task(rabbitmq: Broker, hub: Running) -> None:
    """A task whose record is gone with its hub is done; its outcome is nowhere."""
    done: list[Any] = []
    async with both(rabbitmq, hub) as bus:
        await bus.tasks.submit("x", queue="q")
    with running() as another:
        async with both(rabbitmq, another) as bus, bus.tasks.worker(lambda task: done.append(task.data), queue="q"):
            await until(lambda: done, "the task")
            await _empty(bus, "q")
    assert done == ["x"]


async def test_a_task_that_is_there_twice_is_done_once(rabbitmq: Broker, hub: Running) -> None:
    """A second message of a task, as a lost connection or a delay may leave one, is dropped, before its end and after it."""
    begun: list[Any] = []
    go = asyncio.Event()

    async def work(task: Task) -> None:
        begun.append(task.data)
        await go.wait()

    async with both(rabbitmq, hub) as bus, bus.tasks.worker(work, queue="q", concurrency=3):
        handle = await bus.tasks.submit(1, queue="q")
        await until(lambda: begun, "the task")

        async def again() -> None:
            engine: Any = bus.engine
            envelope = bus.payloads.pack(1)
            kept = m.properties_of(envelope, {m.RECORDED: "q"}, delivery_mode=2, message_id=handle.id, type=m.TASK)
            sending = Sending(t.WORK, "q", kept, envelope.body, mandatory=True)
            engine.publisher.send(sending)
            await sending

        await again()
        await elapse(0.3)
        go.set()
        await within(handle.result())
        await again()
        await _empty(bus, "q")
        await elapse(1.5)
        await _empty(bus, "q")
    assert begun == [1]


async def test_a_program_without_the_hub_leaves_such_tasks_to_others(
    rabbitmq: Broker, hub: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that has no hub begins no task that has a record, and says so once; one that has does."""
    begun: list[Any] = []
    async with redpoll.connect(rabbitmq.url) as alone, both(rabbitmq, hub) as bus:
        async with alone.tasks.worker(begun.append, queue="q", concurrency=2):
            handles = [await bus.tasks.submit(number, queue="q") for number in range(2)]
            await until(lambda: "which this program lacks" in caplog.text, "the warning")
        async with bus.tasks.worker(lambda task: task.data, queue="q"):
            assert await within(asyncio.gather(*(each.result() for each in handles))) == [0, 1]
    assert begun == []
    assert caplog.text.count("which this program lacks") == 1


async def test_a_publish_that_fails_or_is_cancelled_leaves_no_record(rabbitmq: Broker, hub: Running) -> None:
    """No room, no consumer, a wait that is cancelled: the record goes, and its watcher hears nothing."""
    async with both(rabbitmq, hub) as bus:
        engine = bus.engine
        await bus.queues.declare(QueueSpec("full", max_length=1, at_limit="refuse"))
        await bus.queues.declare("q")
        envelope, watcher = bus.payloads.pack(1), Recorder()
        await engine.publish(envelope, queue="full")
        with pytest.raises(redpoll.errors.QueueFull):
            await engine.publish(envelope, queue="full", watcher=watcher)
        with pytest.raises(redpoll.errors.NoRoute):
            await engine.publish(envelope, queue="q", watcher=watcher, mandatory=True)
        waiting = asyncio.ensure_future(engine.publish(envelope, queue="q", watcher=watcher))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await _records(hub, "q", 0)
        await _records(hub, "full", (await bus.queues.inspect("full")).ready)
        assert [each.kind for each in watcher.outcomes] == []


async def _records(hub: Running, queue: str, number: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await inspect(hub, queue)).ready != number:
            await elapse(0.02)


async def test_what_a_queue_drops_is_dead_and_what_expires_is_expired(rabbitmq: Broker, hub: Running) -> None:
    """The outcome of a task that RabbitMQ dropped for a newer one, or that no worker began in time, is at the hub."""
    async with both(rabbitmq, hub) as bus:
        await bus.queues.declare(QueueSpec("few", max_length=1, at_limit="drop-old"))
        handles = [await bus.tasks.submit(number, queue="few") for number in range(2)]
        with pytest.raises(DeadLettered):
            await within(handles[0].result())
        assert await bus.tasks.handle(handles[0].id, queue="few").state() == "dead"
        late = await bus.tasks.submit(1, queue="q", ttl=0.1)
        with pytest.raises(TaskExpired):
            await within(bus.tasks.handle(late.id, queue="q").result())


async def test_a_schedule_outlives_its_programs(rabbitmq: Broker, hub: Running) -> None:
    """The hub keeps a schedule while no program is there; the first one that comes carries its tasks to RabbitMQ."""
    async with both(rabbitmq, hub) as bus:
        await bus.tasks.schedule("often", "x", queue="q", every=0.2)
        await bus.tasks.schedule("often", "y", queue="other", every=0.2)
        (found,) = await bus.engine.schedules()
        assert (found.name, found.queue) == ("often", "other")
    await elapse(0.5)
    done: list[Any] = []
    async with both(rabbitmq, hub) as bus, bus.tasks.worker(lambda task: done.append(task.data), queue="other"):
        await until(lambda: len(done) > 2, "tasks of the schedule")
        assert await bus.tasks.unschedule("often")
        assert not await bus.tasks.unschedule("often")
    assert set(done) == {"y"}


async def test_a_task_that_nobody_can_carry_stops_no_schedule(
    rabbitmq: Broker, hub: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign task among those of schedules is a dead letter, one too large too; those for a full queue are left out."""
    done: list[Any] = []
    body = bytes(encode(Envelope("raw", b"x" * 2_000)))
    async with redpoll.connect(hub.url) as alone, both(rabbitmq, hub, max_body=1_000) as bus:
        await bus.queues.declare(QueueSpec("full", max_length=1))
        await bus.engine.publish(Envelope("raw", b""), queue="full")
        put = alone.engine.publish
        for meta in (None, {"redpoll": ["q", "high", True, True]}, {"redpoll": ["q", 0, False, False]}):
            await put(Envelope("raw", body, meta), queue="amqp.scheduled")
        # More than one program carries at a time, each of which waits a second for room.
        small, meta = bytes(encode(Envelope("raw", b""))), {"redpoll": ["full", 0, False, False]}
        await asyncio.gather(*(put(Envelope("raw", small, meta), queue="amqp.scheduled") for _ in range(40)))
        await bus.tasks.schedule("often", "x", queue="q", every=0.2)
        async with bus.tasks.worker(lambda task: done.append(task.data), queue="q"):
            await until(lambda: len(done) > 2, "tasks of the schedule")
        with pytest.raises(PayloadTooLarge):
            await bus.tasks.schedule("large", "x" * 2_000, queue="q", every=0.2)
        assert await bus.tasks.unschedule("often")
        async with asyncio.timeout(PATIENCE):
            while (left := await alone.queues.inspect("amqp.scheduled")).ready or left.taken:
                await elapse(0.02)
        # What was left out leaves no record.
        await _records(hub, "full", (await bus.queues.inspect("full")).ready)
        assert (await alone.queues.inspect("amqp.scheduled")).dead == 3
    assert set(done) == {"x"}
    assert caplog.text.count("is a dead letter of the hub's queue") == 3


@pytest.mark.nightly
@pytest.mark.timeout(240)
async def test_nothing_is_lost_while_everything_is_killed(rabbitmq: Broker) -> None:
    """Each confirmed task has one outcome while workers are killed, connections cut and a hub restarted; nothing is left."""
    chance = random.Random(1)
    kept: list[Write] = []
    store = MemoryStore(kept, epoch=1)
    hub, epoch = Running(store), 1
    port, url = hub.hub.address.port, hub.url
    begun: Counter[int] = Counter()
    ended: Counter[int] = Counter()

    async def work(task: Task) -> int:
        begun[task.data] += 1
        await elapse(chance.uniform(0.0, 0.2))
        ended[task.data] += 1
        return int(task.data)

    async def serve(way: Way, life: float) -> None:
        bus = redpoll.connect(way.url, results=url, wait=True, **BRIEF)
        async with bus, bus.tasks.worker(work, queue="q", concurrency=4):
            await elapse(life)
            engine: Any = bus.engine
            engine.abort()

    async with Way(rabbitmq) as way, redpoll.connect(rabbitmq.url, results=url, wait=True) as bus:
        await bus.queues.declare("q")
        serving = [asyncio.ensure_future(serve(way, 0.5 * number)) for number in range(1, 8)]
        handles: dict[int, Any] = {}
        withdrawn: set[int] = set()
        for number in range(300):
            handles[number] = await bus.tasks.submit(number, queue="q")
            if number % 10 == 3 and await handles[number].cancel() == "withdrawn":
                withdrawn.add(number)
            if number % 60 == 50:
                way.cut("rst")
            if number % 100 == 70:
                await asyncio.to_thread(hub.stop)
                epoch += 1
                hub = Running(MemoryStore(kept, store.name, epoch), port=port)
            await asyncio.sleep(0.01)
        serving.append(asyncio.ensure_future(serve(way, 60.0)))
        async with asyncio.timeout(90):
            results = await asyncio.gather(*(each.result() for each in handles.values()), return_exceptions=True)
            async with both(rabbitmq, hub) as other:
                await _empty(other, "q")
                found = await asyncio.gather(*(other.tasks.handle(each.id).state() for each in handles.values()))
        serving[-1].cancel()
        served = await asyncio.gather(*serving, return_exceptions=True)
        assert served[:-1] == [None] * 7
        assert {number for number, each in enumerate(results) if isinstance(each, TaskCancelled)} >= withdrawn
        assert not withdrawn & begun.keys()
        assert all(each == number or isinstance(each, TaskCancelled) for number, each in enumerate(results))
        assert {number for number, each in enumerate(results) if each == number} <= ended.keys()
        assert set(found) == {"done"}
        left = await inspect(hub, "q")
        assert (left.ready, left.taken, left.delayed) == (0, 0, 0)
    await asyncio.to_thread(hub.stop)
