"""Tasks on every engine: kiwiPy's behaviours by their ids, and ours."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from typing import Any

from redpoll.bus import Bus, Claim, EngineState, QueueSpec, Requeue, Retry, Task, current_context, use_headers
from redpoll.errors import (
    Closed,
    DeadLettered,
    NoRoute,
    QueueEmpty,
    RedpollError,
    RemoteError,
    ResultExpired,
    TaskCancelled,
    TaskExpired,
    TaskRejected,
    TimeLimit,
    UsageError,
)
from redpoll.testing.conformance.frame import NotCovered, Place, attempt, behaviour, fails

__all__: list[str] = []


async def _twice(task: Task) -> Any:
    return task.data * 2


async def _forever(_: Task) -> None:
    await asyncio.get_running_loop().create_future()


async def _open(place: Place, count: int = 1) -> tuple[str, list[Bus]]:
    """A queue, and buses that meet; the first declares the queue by submitting to it."""
    queue = place.name("tasks")
    place.clean(queue)
    return queue, [await place.open() for _ in range(count)]


async def _empty(bus: Bus, queue: str) -> None:
    await fails(bus.tasks.next(queue, 0).__aenter__(), QueueEmpty)


@behaviour("K-01")
async def closed(place: Place) -> None:
    """Every verb of a closed bus raises Closed."""
    queue, (bus,) = await _open(place)
    await bus.tasks.submit(1, queue)
    await bus.close()
    await fails(bus.tasks.submit(1, queue), Closed)
    await fails(bus.tasks.run(1, queue), Closed)
    await fails(bus.tasks.next(queue).__aenter__(), Closed)
    await fails(bus.tasks.worker(_twice, queue).__aenter__(), Closed)
    topic = place.name("topic")
    for verb in (bus.rpc.call, bus.rpc.cast, bus.rpc.fanout):
        await fails(verb(topic, "x"), Closed)
    await fails(bus.rpc.serve(topic, _twice).start(), Closed)
    await fails(bus.broadcast.send(1, subject=topic), Closed)
    await fails(bus.broadcast.subscribe(print, subject=topic).start(), Closed)
    await fails(bus.notifier("p", topics=[topic]).info("e"), Closed)
    await fails(bus.notifications.listen(_twice, topics=[topic]).start(), Closed)


@behaviour("K-02")
async def block(place: Place) -> None:
    """A bus is open inside of its block, and closed after it."""
    bus = place.setting.connect(place)
    async with bus:
        inside = bus.state
    assert [inside, bus.state] == [EngineState.READY, EngineState.CLOSED]


@behaviour("K-08")
async def result(place: Place) -> None:
    """The handler receives the task, and the submitter its result."""
    queue, (sender, receiver) = await _open(place, 2)
    async with receiver.tasks.worker(_twice, queue):
        assert await sender.tasks.run("x", queue) == "xx"


@behaviour("K-09", "progress")
async def nested(place: Place) -> None:
    """A handler that returns a future: the submitter first gets a future, whose result comes when the handler's is there."""
    queue, (sender, receiver) = await _open(place, 2)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    async with receiver.tasks.worker(lambda _: future, queue):
        handle = await sender.tasks.submit(1, queue)
        first = await handle.result(flat=False)
        waiting = asyncio.ensure_future(first.result(flat=False))
        await place.calm()
        assert not waiting.done()
        future.set_result(5)
        assert await waiting == 5
        assert await handle.result() == 5


@behaviour("K-10")
async def raises(place: Place) -> None:
    """An exception of a handler reaches the submitter as a RemoteError with class, text and traceback."""
    queue, (sender, receiver) = await _open(place, 2)

    async def handler(_: Task) -> None:
        raise LookupError("nothing there")

    async with receiver.tasks.worker(handler, queue):
        error = await fails(sender.tasks.run(1, queue), RemoteError)
    assert isinstance(error, RemoteError)
    assert (error.kind, error.text) == ("LookupError", "nothing there")
    assert "in handler" in (error.traceback or "")


@behaviour("K-11")
async def no_reply(place: Place) -> None:
    """A task whose result is not requested is done once."""
    queue, (sender, receiver) = await _open(place, 2)
    seen: list[Any] = []

    async def handler(task: Task) -> None:
        seen.append(task.data)

    async with receiver.tasks.worker(handler, queue):
        await sender.tasks.submit(1, queue, no_reply=True)
        await place.until(lambda: seen)
        await place.calm()
    assert seen == [1]
    await _empty(sender, queue)


@behaviour("K-12")
async def worker_gone(place: Place) -> None:
    """After its worker has ended a task waits."""
    queue, (sender, receiver) = await _open(place, 2)
    async with receiver.tasks.worker(_twice, queue):
        pass
    waiting = asyncio.ensure_future((await sender.tasks.submit(1, queue)).result())
    await place.calm()
    assert not waiting.done()
    waiting.cancel()


@behaviour("K-13")
async def not_begun(place: Place) -> None:
    """Closing what was not begun, or is closed, is no error, and ends nothing else of its name."""
    queue, (bus,) = await _open(place)
    topic = place.name("topic")
    others: list[Any] = [
        bus.tasks.worker(_twice, queue),
        bus.rpc.serve(topic, _twice),
        bus.broadcast.subscribe(print, subject=topic),
        bus.notifications.listen(print, topics=[topic]),
    ]
    async with bus.tasks.worker(_twice, queue) as worker:
        for each in others:
            await each.close()
        assert await bus.tasks.run("x", queue) == "xx"
    await worker.close()


@behaviour("K-23", "progress")
async def own_queue(place: Place) -> None:
    """A queue with a name of its own works from end to end, also with a handler that returns a future."""
    queue, (sender, receiver) = await _open(place, 2)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    async with receiver.tasks.worker(lambda _: future, queue):
        handle = await sender.tasks.submit("x", queue)
        future.set_result("done")
        assert await handle.result() == "done"
    await _empty(sender, queue)


@behaviour("K-24")
async def claim(place: Place) -> None:
    """The result that is set on a claimed task reaches the submitter."""
    queue, (sender, receiver) = await _open(place, 2)
    handle = await sender.tasks.submit("x", queue)
    task = await receiver.tasks.next(queue)
    task.set_result(task.data * 2)
    assert await task.confirmed()
    assert await handle.result() == "xx"


@behaviour("K-25")
async def claim_block(place: Place) -> None:
    """A task is claimed by a block, its data seen and its result set; a block without a result gives it back."""
    queue, (sender, receiver) = await _open(place, 2)
    handle = await sender.tasks.submit("x", queue)
    async with receiver.tasks.next(queue) as task:
        assert task.data == "x"
    async with receiver.tasks.next(queue, 5) as task:
        assert (task.data, task.attempt) == ("x", attempt(receiver, 2))
        task.set_result(None)
    assert await handle.result() is None


@behaviour("K-26")
async def drain(place: Place) -> None:
    """Iterating over a queue of ten finishes them all; a second iteration has nothing."""
    queue, (sender, receiver) = await _open(place, 2)
    handles = await sender.tasks.submit_many(range(10), queue)
    async for task in receiver.tasks.each(queue):
        async with task:
            task.set_result(task.data * 2)
    assert [await each.result() for each in handles] == [number * 2 for number in range(10)]
    assert [task async for task in receiver.tasks.each(queue)] == []


@behaviour("K-27")
async def drain_part(place: Place) -> None:
    """Tasks that an iteration leaves come in the next one."""
    queue, (sender, receiver) = await _open(place, 2)
    handles = await sender.tasks.submit_many(range(10), queue)
    for odd in (1, 0):
        async for task in receiver.tasks.each(queue):
            if task.data % 2 == odd:
                async with task:
                    task.set_result(task.data)
        await place.calm()
    assert [await each.result() for each in handles] == list(range(10))


@behaviour("K-28")
async def forgotten(place: Place) -> None:
    """A claimed task is given to no other worker; when its claim is garbage-collected it is available again."""
    queue, (sender, receiver) = await _open(place, 2)
    handle = await sender.tasks.submit(1, queue)
    claims: list[Claim] = [await receiver.tasks.next(queue)]
    await _empty(sender, queue)
    claims.clear()
    gc.collect()
    async with receiver.tasks.next(queue, 5) as task:
        task.set_result(2)
    assert await handle.result() == 2


@behaviour("K-29")
async def nothing(place: Place) -> None:
    """An empty queue is QueueEmpty at the timeout, and not before."""
    queue, (bus,) = await _open(place)
    taking = asyncio.ensure_future(bus.tasks.next(queue, 1).__aenter__())
    await place.calm()
    assert not taking.done()
    while not taking.done():  # a thread may have begun to wait just now
        await place.wait(1)
    await fails(taking, QueueEmpty)


@behaviour("K-30")
async def claim_raises(place: Place) -> None:
    """An exception in the block of a claim is raised further, reaches the submitter, and the queue is empty."""
    queue, (sender, receiver) = await _open(place, 2)
    handle = await sender.tasks.submit(1, queue)

    async def work() -> None:
        async with receiver.tasks.next(queue):
            raise ZeroDivisionError

    await fails(work(), ZeroDivisionError)
    await fails(handle.result(), RemoteError)
    await _empty(sender, queue)


@behaviour("K-31")
async def told_of_close(place: Place) -> None:
    """A watch of the state hears once that the bus is closed."""
    bus = await place.open()
    seen: list[EngineState] = []
    bus.status.watch(lambda state, _: seen.append(state))
    await bus.close()
    await bus.close()
    await place.until(lambda: seen)
    await place.calm()
    assert seen == [EngineState.CLOSED]


@behaviour("K-32")
async def notebook(place: Place) -> None:
    """Where an event loop runs a bus can be used; it can be closed twice, and a result that came is readable after that."""
    queue, (bus,) = await _open(place)
    async with bus.tasks.worker(_twice, queue):
        handle = await bus.tasks.submit("x", queue)
        assert await handle.result() == "xx"
        if place.setting.face == "blocking":
            # On this thread, which runs the loop of this behaviour, and is blocked meanwhile.
            face: Any = bus
            assert face._target.tasks.run("y", queue) == "yy"
    await bus.close()
    await bus.close()
    assert await handle.result(timeout=5) == "xx"


@behaviour("K-33")
async def what_it_is(place: Place) -> None:
    """A bus states its engine and the capabilities of that."""
    bus = await place.open()
    assert place.setting.url.startswith(bus.capabilities.engine)


@behaviour("K-35")
async def forgotten_by_a_coroutine(place: Place) -> None:
    """The claim of a coroutine that ended without an outcome is available again."""
    place.only_async("coroutines")
    queue, (sender, receiver) = await _open(place, 2)
    handle = await sender.tasks.submit(1, queue)

    async def take() -> str:
        claim = await receiver.tasks.next(queue)
        await _empty(sender, queue)
        return claim.id

    assert await take() == handle.id
    gc.collect()
    async with receiver.tasks.next(queue, 5) as task:
        task.set_result(2)
    assert await handle.result() == 2


@behaviour("K-36")
async def no_queue(place: Place) -> None:
    """With declare=False a queue that does not exist is no route."""
    queue, (bus,) = await _open(place)
    await fails(bus.tasks.submit(1, queue, declare=False), NoRoute)
    await fails(bus.tasks.next(queue, 0, declare=False).__aenter__(), NoRoute)
    await fails(bus.tasks.worker(_twice, queue, declare=False).__aenter__(), NoRoute)


@behaviour("K-37")
async def captured(_: Place) -> None:
    """An exception that is captured in a block becomes that of a future, as the same object."""
    raise NotCovered("a helper for kiwiPy's futures, which no engine sees")


@behaviour("KX-01")
async def killed(place: Place) -> None:
    """The tasks of a killed worker are done by another one, however many there were."""
    queue, (sender, dead, alive) = await _open(place, 3)
    worker = await dead.tasks.worker(_forever, queue, concurrency=4).__aenter__()
    handles = await sender.tasks.submit_many(range(4), queue)
    await place.until(lambda: worker.running == 4)
    await place.kill(dead)
    async with alive.tasks.worker(_twice, queue, concurrency=1):
        await place.wait(2)
        assert [await each.result() for each in handles] == [0, 2, 4, 6]
    await worker.close()


@behaviour("KX-02")
async def restarted(place: Place) -> None:
    """Tasks that wait outlive a restart of the engine's server, and each is done once."""
    queue, (sender,) = await _open(place)
    seen: list[int] = []

    async def handler(task: Task) -> None:
        seen.append(task.data)

    await sender.tasks.submit_many(range(5), queue, no_reply=True)
    await place.setting.restart()
    receiver = await place.open()
    async with receiver.tasks.worker(handler, queue):
        await place.until(lambda: len(seen) >= 5)
        await place.calm()
    assert sorted(seen) == list(range(5))


@behaviour("KX-03")
async def one_at_a_time(place: Place) -> None:
    """No task is given to two workers, and each is done once."""
    queue, (sender, *others) = await _open(place, 4)
    seen: list[int] = []

    async def handler(task: Task) -> Any:
        seen.append(task.data)
        await asyncio.sleep(0)
        return task.data

    handles = await sender.tasks.submit_many(range(50), queue)
    workers = [await each.tasks.worker(handler, queue, concurrency=3).__aenter__() for each in others]
    assert [await each.result() for each in handles] == list(range(50))
    for worker in workers:
        await worker.close()
    assert sorted(seen) == list(range(50))


@behaviour("KX-04")
async def rejected(place: Place) -> None:
    """A task that a worker rejects goes to another one."""
    queue, (sender, one, two) = await _open(place, 3)
    asked: list[str] = []

    async def unwilling(_: Task) -> None:
        asked.append("unwilling")
        raise TaskRejected

    async def willing(_: Task) -> str:
        asked.append("willing")
        return "done"

    async with one.tasks.worker(unwilling, queue), two.tasks.worker(willing, queue):
        for _ in range(4):
            assert await sender.tasks.run(1, queue) == "done"
    assert asked.count("willing") == 4


@behaviour("KX-05")
async def final(place: Place) -> None:
    """An exception is final: the task is not tried again."""
    queue, (sender, receiver) = await _open(place, 2)
    seen: list[int] = []

    async def handler(task: Task) -> None:
        seen.append(task.attempt)
        raise ValueError

    async with receiver.tasks.worker(handler, queue):
        await fails(sender.tasks.run(1, queue), RemoteError)
        await place.calm()
    assert seen == [1]
    await _empty(sender, queue)


@behaviour("KX-07")
async def told_of_loss(place: Place) -> None:
    """A watch of the state reports a loss of the connection as well."""
    bus = await place.open()
    seen: list[EngineState] = []
    bus.status.watch(lambda state, _: seen.append(state))
    await place.kill(bus)
    await place.until(lambda: seen)
    assert EngineState.READY not in seen


@behaviour("KX-08")
async def own_pool(place: Place) -> None:
    """A handler may hand its task to a pool of threads and return the pool's future."""
    queue, (sender, receiver) = await _open(place, 2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        async with receiver.tasks.worker(lambda task: pool.submit(pow, 2, task.data), queue):
            assert await sender.tasks.run(5, queue) == 32


@behaviour("KX-09")
async def mandatory(place: Place) -> None:
    """A call needs a server, and a task its queue, or it is no route; a broadcast needs nobody."""
    queue, (bus,) = await _open(place)
    await fails(bus.rpc.call(place.name("nobody"), None, 1), NoRoute)
    await fails(bus.tasks.submit(1, queue, declare=False), NoRoute)
    await bus.broadcast.send(1, subject=place.name("nobody"))


@behaviour("KX-10")
async def fast(_: Place) -> None:
    """Hundreds to thousands of messages a second."""
    raise NotCovered("a speed, which benchmarks measure")


@behaviour("T-01", "results")
async def found_again(place: Place) -> None:
    """A task is found again by its id, on another bus, before and after its end."""
    queue, (sender, receiver, other) = await _open(place, 3)
    handle = await sender.tasks.submit(1, queue)
    waiting = asyncio.ensure_future(other.tasks.handle(handle.id, queue).result())
    async with receiver.tasks.worker(_twice, queue):
        assert await waiting == 2
    late = other.tasks.handle(handle.id, queue)
    assert [await late.result(), await late.state()] == [2, "done"]
    quiet = await sender.tasks.submit(1, queue, no_reply=True)
    async with receiver.tasks.worker(_twice, queue, concurrency=1):
        await sender.tasks.run(1, queue)
    await fails(quiet.result(), ResultExpired)


@behaviour("T-02", "progress")
async def progress(place: Place) -> None:
    """Progress reaches the submitter in order and before the outcome, by iterating and by a callback."""
    queue, (sender, receiver) = await _open(place, 2)

    seen: list[Any] = []

    async def handler(task: Task) -> str:
        task.progress("begun")
        await place.until(lambda: seen)
        for number in range(5):
            task.progress(number)
        return "done"

    handle = await sender.tasks.submit(1, queue)
    heard: list[Any] = []
    handle.on_progress(heard.append)
    async with receiver.tasks.worker(handler, queue):
        async for each in handle.watch():
            seen.append(each)  # noqa: PERF401  # the handler waits for the first
        assert await handle.result() == "done"
    assert seen == ["begun", *range(5)]
    await place.until(lambda: heard == seen)


@behaviour("T-03", "cancel")
async def cancel(place: Place) -> None:
    """A task that waits is withdrawn; the handler of another is cancelled; one that ended is too late."""
    queue, (sender, receiver) = await _open(place, 2)
    handle = await sender.tasks.submit(1, queue)
    assert await handle.cancel() == "withdrawn"
    await fails(handle.result(), TaskCancelled)
    async with receiver.tasks.worker(_forever, queue) as worker:
        handle = await sender.tasks.submit(2, queue)
        await place.until(lambda: worker.running)
        await place.calm()
        assert await handle.cancel() == "asked"
        await fails(handle.result(), TaskCancelled)
        assert await handle.cancel() == "too late"


@behaviour("T-04", "delay")
async def retries(place: Place) -> None:
    """An exception that the policy covers is tried again by any worker, and its tries are counted in the task."""
    queue, (sender, one, two) = await _open(place, 3)
    tries: list[int] = []

    async def handler(task: Task) -> None:
        tries.append(task.tries)
        raise OSError("again")

    policy = Retry(times=2, on=OSError, backoff=0.5, longest=0.5, jitter=0)
    async with one.tasks.worker(handler, queue, retry=policy):
        handle = await sender.tasks.submit(1, queue)
        await place.until(lambda: tries == [1])
    async with two.tasks.worker(handler, queue, retry=policy):
        await place.wait(0.5)
        await place.until(lambda: tries == [1, 2])
        await place.wait(0.5)
        await fails(handle.result(), RemoteError)
    assert tries == [1, 2, 3]


@behaviour("T-05", "delay")
async def requeue(place: Place) -> None:
    """Requeue gives a task back, unblamed where only lost workers are, and it is not begun before its delay."""
    queue, (sender, receiver) = await _open(place, 2)
    seen: list[int] = []

    async def handler(task: Task) -> str:
        seen.append(task.attempt)
        if len(seen) == 1:
            raise Requeue(delay=1)
        return "done"

    async with receiver.tasks.worker(handler, queue):
        handle = await sender.tasks.submit(1, queue)
        await place.until(lambda: seen)
        await place.calm()
        assert seen == [1]
        await place.wait(1)
        assert await handle.result() == "done"
    assert seen == [1, attempt(receiver, 2)]


@behaviour("T-06")
async def time_limit(place: Place) -> None:
    """A handler that takes longer than its time limit is cancelled, and that is the outcome."""
    queue, (sender, receiver) = await _open(place, 2)
    async with receiver.tasks.worker(_forever, queue, time_limit=0.5) as worker:
        handle = await sender.tasks.submit(1, queue)
        await place.until(lambda: worker.running)
        await place.wait(0.5)
        await fails(handle.result(), TimeLimit)


@behaviour("T-07", "delay")
async def times(place: Place) -> None:
    """A task is not begun before its delay, nor after its ttl."""
    queue, (sender, receiver) = await _open(place, 2)
    late = await sender.tasks.submit(1, queue, ttl=0.5)
    submitted = place.time()
    delayed = asyncio.ensure_future((await sender.tasks.submit(2, queue, delay=1)).result())
    await place.wait(0.6)
    async with receiver.tasks.worker(_twice, queue):
        await fails(late.result(), TaskExpired)
        await place.calm()
        assert not delayed.done() or place.time() >= submitted + 1
        await place.wait(0.5)
        assert await delayed == 4


@behaviour("T-08", "dedup")
async def dedup(place: Place) -> None:
    """A second task with the same key is the first one."""
    queue, (sender, receiver) = await _open(place, 2)
    first = await sender.tasks.submit(1, queue, dedup="k")
    second = await sender.tasks.submit(2, queue, dedup="k")
    assert (second.id, second.duplicate) == (first.id, True)
    async with receiver.tasks.worker(_twice, queue):
        assert [await first.result(), await second.result()] == [2, 2]


@behaviour("T-09", "priorities")
async def priorities(place: Place) -> None:
    """Higher priorities come first; one that the queue has not is refused, not ignored."""
    queue, (bus,) = await _open(place)
    await bus.queues.declare(QueueSpec(queue, priorities=2))
    for priority in (0, 1):
        await bus.tasks.submit(priority, queue, priority=priority)
    assert [task.data async for task in bus.tasks.each(queue)] == [1, 0]
    await fails(bus.tasks.submit(1, queue, priority=2), RedpollError)


@behaviour("T-10", "browse")
async def dead_letters(place: Place) -> None:
    """A task that is given up is a dead letter with its history; redriving it makes a new task."""
    queue, (sender, receiver) = await _open(place, 2)

    async def hopeless(_: Task) -> None:
        raise DeadLettered(reason="no such host")

    async with receiver.tasks.worker(hopeless, queue):
        handle = await sender.tasks.submit(4, queue)
        error = await fails(handle.result(), DeadLettered)
    assert "no such host" in str(error)
    (letter,) = await sender.queues.browse(queue, "dead")
    assert (letter.id, letter.history[-1]) == (handle.id, "no such host")
    await sender.queues.redrive(queue)
    async with receiver.tasks.next(queue, 5) as task:
        assert (task.data, task.tries) == (4, 1)
        task.set_result(None)


@behaviour("T-11")
async def credit(place: Place) -> None:
    """A worker has no more tasks than slots; the rest is there for others."""
    queue, (sender, one, two) = await _open(place, 3)
    handles = await sender.tasks.submit_many(range(6), queue)
    async with one.tasks.worker(_forever, queue, concurrency=2, drain=0) as busy:
        await place.until(lambda: busy.running == 2)
        await place.calm()
        assert busy.running == 2
        async with two.tasks.worker(_twice, queue):
            assert [await each.result() for each in handles[2:]] == [4, 6, 8, 10]
    async with two.tasks.worker(_twice, queue):
        assert [await each.result() for each in handles[:2]] == [0, 2]


@behaviour("T-12")
async def threads(place: Place) -> None:
    """A plain function runs in a thread, and other tasks end while it blocks."""
    queue, (sender, receiver) = await _open(place, 2)
    gate = threading.Event()

    def handler(task: Task) -> Any:
        if task.data == "slow":
            gate.wait(place.setting.patience)
        return threading.current_thread() is not threading.main_thread()

    async with receiver.tasks.worker(handler, queue, concurrency=2):
        slow = await sender.tasks.submit("slow", queue)
        assert [each async for each in sender.tasks.map(range(5), queue)] == [True] * 5
        gate.set()
        assert await slow.result()


@behaviour("T-13")
async def context(place: Place) -> None:
    """Headers of a task apply to the tasks and calls of its handler, in threads too; calls have no more time than it."""
    queue, (sender, receiver) = await _open(place, 2)
    behind, topic = place.name("behind"), place.name("topic")
    place.clean(behind)
    seen: list[tuple[str, dict[str, Any], bool]] = []

    def note(where: str) -> None:
        context = current_context()
        seen.append((where, dict(context.headers), context.left is not None and context.left <= 50))

    async def front(task: Task) -> Any:
        note("front")
        await receiver.rpc.call(topic, None, 1, timeout=100)
        return await receiver.tasks.run(1, behind, headers={"more": task.data})

    def back(_: Task) -> None:
        note("behind")

    async def called(_: Any) -> None:
        note("called")

    async with (
        receiver.tasks.worker(front, queue),
        receiver.tasks.worker(back, behind),
        receiver.rpc.serve(topic, called),
    ):
        with use_headers(user="ada"):
            await sender.tasks.run(7, queue, deadline=50)
            (many,) = await sender.tasks.submit_many([8], queue)
            await many.result()
        await sender.tasks.run(9, queue)
    ada = {"user": "ada"}
    assert seen == [
        ("front", ada, True),
        ("called", ada, True),
        ("behind", {**ada, "more": 7}, False),
        ("front", ada, False),
        ("called", ada, False),
        ("behind", {**ada, "more": 8}, False),
        ("front", {}, False),
        ("called", {}, False),
        ("behind", {"more": 9}, False),
    ]


@behaviour("T-14")
async def queue_deleted(place: Place) -> None:
    """A worker whose queue is deleted is reported as not working, and works again when the queue is declared again."""
    queue, (sender, receiver) = await _open(place, 2)
    async with receiver.tasks.worker(_twice, queue):
        assert await sender.tasks.run(1, queue) == 2
        assert await receiver.healthy()
        await sender.queues.delete(queue)
        await place.calm()
        assert not await receiver.healthy()
        handle = await sender.tasks.submit(2, queue)
        await place.wait(2)
        assert await handle.result() == 4
        assert await receiver.healthy()


@behaviour("T-15")
async def exits(place: Place) -> None:
    """A handler in a thread that exits the program has failed, once; its worker works on."""
    queue, (sender, receiver) = await _open(place, 2)
    begun: list[Any] = []

    def handler(task: Task) -> Any:
        begun.append(task.data)
        if task.data == "exit":
            raise SystemExit(3)
        return task.data

    async with receiver.tasks.worker(handler, queue):
        error = await fails(sender.tasks.run("exit", queue), RemoteError)
        assert await sender.tasks.run("next", queue) == "next"
    assert isinstance(error, RemoteError)
    assert (error.kind, begun) == ("SystemExit", ["exit", "next"])


@behaviour("T-16", "successors")
async def chains(place: Place) -> None:
    """A chain hands each result to the next task, a group all of them, in order; a failure ends what comes after it."""
    queue, (sender, receiver) = await _open(place, 2)
    slow = place.name("slow")
    place.clean(slow)

    async def handler(task: Task) -> Any:
        if task.data == "fail":
            raise LookupError("nothing there")
        return [task.data, *task.results]

    def in_thread(task: Task) -> Any:
        return [task.data, *map(str, task.results)]

    async with receiver.tasks.worker(handler, queue), receiver.tasks.worker(in_thread, slow):
        chain = sender.tasks.chain(1, queue).then(2, slow).then(3, queue)
        assert await chain.run() == [3, [2, "[1]"]]
        handle = await chain.submit()
        assert await handle.result() == [3, [2, "[1]"]]
        three = [sender.tasks.chain(number, queue) for number in range(3)]
        assert await sender.tasks.group(three).run() == [[0], [1], [2]]
        assert await sender.tasks.group(three).then("all", queue).run() == ["all", [0], [1], [2]]
        handles = await sender.tasks.group(three).submit()
        assert [await each.result() for each in handles] == [[0], [1], [2]]
        failing = [sender.tasks.chain("fail", queue), three[1]]
        await fails(sender.tasks.group(failing).run(), RemoteError)
        error, result = await sender.tasks.group(failing, collect=True).run()
        assert (type(error), result) == (RemoteError, [1])
        told = await sender.tasks.group(failing, collect=True).then("all", slow).run()
        assert told == ["all", "remote LookupError: nothing there", "[1]"]
        after = sender.tasks.group(failing).then("all", queue).then("more", queue)
        failed = await fails(after.run(), TaskCancelled)
        assert "which failed: LookupError: nothing there" in str(failed)
        keyed = sender.tasks.chain("a", queue).then("b", queue, dedup="key")
        first, second = await keyed.submit(), await keyed.submit()
        assert (first.id, first.duplicate, second.duplicate) == (second.id, False, True)
        await fails(sender.tasks.group([keyed, three[0]]).submit(), UsageError)
