"""kiwiPy itself, on one RabbitMQ with ``connect("amqp://…", speak="kiwipy")``: each serves the other.

The numbers are those of kiwiPy's own tests, as docs/reference/conformance.md has them.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import redpoll
from redpoll.bus import Broadcast, Bus, Retry, Task
from redpoll.bus.engines.amqp.foreign.engine import DialectEngine
from redpoll.errors import CallTimeout, NoRoute, QueueEmpty, RemoteError, TaskRejected, Unsupported
from tests.bus.engines.amqp.foreign.support import Peer, PeerError, healthy, until
from tests.rabbitmq import Broker

pytestmark = [pytest.mark.broker, pytest.mark.asyncio]


@asynccontextmanager
async def both(rabbitmq: Broker) -> AsyncIterator[tuple[Bus, Peer]]:
    """A bus that speaks kiwiPy, and a program with a communicator `comm`, on one server."""
    begin = f"import kiwipy; comm = kiwipy.connect({rabbitmq.url!r})"
    async with Peer(begin) as peer, redpoll.connect(rabbitmq.url, speak="kiwipy") as bus:
        yield bus, peer


async def test_their_tasks(rabbitmq: Broker) -> None:
    """Our worker does their tasks: a result, an exception, no reply, a future, a named queue (K-08 to K-11, K-23)."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    seen: list[Any] = []

    async def work(task: Task) -> Any:
        seen.append(task.data)
        match task.data:
            case "bad":
                raise ValueError("no such thing")
            case "later":
                return future
        return [task.data]

    async with both(rabbitmq) as (bus, peer):
        async with bus.tasks.worker(work), bus.tasks.worker(work, queue="named"):
            assert await peer.run("comm.task_send({'pk': 7, 'tags': ('a', 'b')}).result(20)") == [
                {"pk": 7, "tags": ["a", "b"]}
            ]
            with pytest.raises(PeerError, match="RemoteException: no such thing"):
                await peer.run("comm.task_send('bad').result(20)")
            assert await peer.run("comm.task_send('quiet', no_reply=True)") is None
            await until(lambda: "quiet" in seen)
            # A future comes first, and resolves as our handler's does.
            await peer.run("nested = comm.task_queue('named').task_send('later').result(20)")
            assert await peer.run("nested.done()") is False
            future.set_result(7)
            assert await peer.run("nested.result(20)") == 7
        assert seen.count("quiet") == 1
        # Without a worker it stays where it is (K-12).
        await peer.run("waits = comm.task_send('stays')")
        async with bus.tasks.next(timeout=20) as task:
            assert (task.data, await peer.run("waits.done()")) == ("stays", False)
            task.set_result("pulled")
        assert await peer.run("waits.result(20)") == "pulled"


async def test_our_tasks(rabbitmq: Broker) -> None:
    """Their worker does our tasks: a result, an exception, no reply, a future, a rejection (K-08 to K-11, K-24)."""
    async with both(rabbitmq) as (bus, peer):
        await peer.run("""
got = []
def work(comm, task):
    got.append(task)
    if task == "bad": raise ValueError("no such thing")
    if task == "later":
        global later
        later = kiwipy.Future()
        return later
    return [task]
subscriber = comm.add_task_subscriber(work)
""")
        assert await bus.tasks.run({"pk": 7}, timeout=20) == [{"pk": 7}]
        with pytest.raises(RemoteError, match="no such thing"):
            await bus.tasks.run("bad", timeout=20)
        await bus.tasks.submit("quiet", no_reply=True)
        await peer.until("'quiet' in got")
        handle = await bus.tasks.submit("later")
        nested = await handle.result(20, flat=False)
        await peer.run("later.set_result(7)")
        assert await nested.result(20) == await handle.result(20) == 7
        await peer.run("comm.remove_task_subscriber(subscriber)")
        handles = await bus.tasks.submit_many(range(10))
        await peer.run("""
for task in comm.task_queue('kiwipy.tasks'):
    with task.processing() as outcome:
        outcome.set_result(task.body * 10)
""")
        assert [await each.result(20) for each in handles] == [number * 10 for number in range(10)]


async def test_give_backs(rabbitmq: Broker) -> None:
    """A rejected task goes to their worker; a retry counts its tries; a pulled one that is given back comes again (K-28)."""
    tries: list[int] = []

    async def fails(task: Task) -> str:
        tries.append(task.data)
        if len(tries) < 3:
            raise OSError("again")
        return "third"

    async def rejects(_: Task) -> None:
        raise TaskRejected("not mine")

    async with both(rabbitmq) as (bus, peer):
        async with bus.tasks.worker(fails, retry=Retry(times=2, on=OSError, backoff=0.01)):
            assert await peer.run("comm.task_send(1).result(20)") == "third"
        async with bus.tasks.worker(rejects):
            await peer.run("sent = comm.task_send(2)")
            await peer.run("comm.add_task_subscriber(lambda comm, task: 'theirs', 'them')")
            assert await peer.run("sent.result(20)") == "theirs"
            await peer.run("comm.remove_task_subscriber('them')")
        await peer.run("sent = comm.task_send(3)")
        async with bus.tasks.next(timeout=20) as task:
            task.requeue()
        async with bus.tasks.next(timeout=20) as task:
            task.set_exception(ValueError("enough"))
        with pytest.raises(PeerError, match="RemoteException: enough"):
            await peer.run("sent.result(20)")
        for _ in range(10):
            with pytest.raises(QueueEmpty):
                async with bus.tasks.next(timeout=0):
                    pass
        # The engine does not hold on to what took them.
        gc.collect()
        assert isinstance(bus.engine, DialectEngine)
        assert len(bus.engine._consumers) < 5


async def test_killed_worker_loses_no_task(rabbitmq: Broker) -> None:
    """What one held that was killed is done by the other, both ways (KX-1)."""
    stuck = asyncio.Event()

    async def hold(_: Task) -> None:
        stuck.set()
        await asyncio.Event().wait()

    async with both(rabbitmq) as (bus, peer), redpoll.connect(rabbitmq.url, speak="kiwipy") as other:
        await other.tasks.worker(hold).__aenter__()
        await peer.run("sent = comm.task_send('ours was killed')")
        await stuck.wait()
        await other.close()
        await peer.run("comm.add_task_subscriber(lambda comm, task: task, 'them')")
        assert await peer.run("sent.result(20)") == "ours was killed"
        await peer.run("comm.remove_task_subscriber('them')")
        holds = f"""
import kiwipy; comm = kiwipy.connect({rabbitmq.url!r}); got = []
def hold(comm, task):
    got.append(task)
    return kiwipy.Future()
comm.add_task_subscriber(hold)
"""
        async with Peer(holds) as victim:
            handle = await bus.tasks.submit("theirs was killed")
            await victim.until("got")

        async def work(task: Task) -> Any:
            return task.data

        async with bus.tasks.worker(work):
            assert await handle.result(20) == "theirs was killed"


async def test_calls(rabbitmq: Broker) -> None:
    """Calls are answered both ways: a result, an exception, a future; nobody there is no route (K-03 to K-07)."""

    async def control(message: Any) -> Any:
        if message == "bad":
            raise ValueError("no such thing")
        return {"got": message}

    async with both(rabbitmq) as (bus, peer):
        async with bus.rpc.serve("process-1", control):
            assert await peer.run("comm.rpc_send('process-1', {'intent': 'pause'}).result(20)") == {
                "got": {"intent": "pause"}
            }
            with pytest.raises(PeerError, match="RemoteException: no such thing"):
                await peer.run("comm.rpc_send('process-1', 'bad').result(20)")
        with pytest.raises(PeerError, match="UnroutableError"):
            await peer.run("comm.rpc_send('process-1', 1)")
        async with bus.rpc.serve("process-1", control):
            assert await peer.run("comm.rpc_send('process-1', 1).result(20)") == {"got": 1}

        await peer.run("""
def serve(comm, message):
    if message == "bad": raise ValueError("no such thing")
    if message == "later":
        inner = kiwipy.Future(); inner.set_result("done")
        outer = kiwipy.Future(); outer.set_result(inner)
        return outer
    if message == "never":
        return kiwipy.Future()
    return message + 1
comm.add_rpc_subscriber(serve, "process-2")
""")
        assert await bus.rpc.call("process-2", None, 41, timeout=20) == 42
        assert await bus.rpc.call("process-2", None, "later", timeout=20) == "done"
        with pytest.raises(RemoteError, match="no such thing"):
            await bus.rpc.call("process-2", None, "bad", timeout=20)
        # kiwiPy's own callers would wait for ever.
        with pytest.raises(CallTimeout):
            await bus.rpc.call("process-2", None, "never", timeout=0.5)
        await bus.rpc.cast("process-2", None, 1)
        await peer.run("comm.remove_rpc_subscriber('process-2')")
        with pytest.raises(NoRoute, match="process-2"):
            await bus.rpc.call("process-2", None, 41, timeout=20)
        with pytest.raises(Unsupported, match="methods"):
            await bus.rpc.call("process-2", "method", {}, timeout=20)


async def test_broadcasts(rabbitmq: Broker) -> None:
    """Broadcasts arrive with all four fields, filtered on either side; nobody listening is no error (K-14 to K-21)."""
    heard: list[Broadcast] = []
    async with both(rabbitmq) as (bus, peer):
        await bus.broadcast.send("unheard", subject="state.1.finished")
        async with bus.broadcast.subscribe(heard.append, subject="state.*.finished", sender="*.jones"):
            for sender, subject in (
                ("bob.jones", "state.42.running"),
                ("bob.smith", "state.42.finished"),
                ("bob.jones", "state.42.finished"),
            ):
                sent = f"comm.broadcast_send({{'pk': 42}}, sender={sender!r}, subject={subject!r}, correlation_id='c')"
                assert await peer.run(sent) is True
            await until(lambda: heard)
        assert heard == [Broadcast({"pk": 42}, "bob.jones", "state.42.finished", "c")]

        await peer.run("""
got = []
def hear(comm, body, sender, subject, correlation_id):
    got.append([body, sender, subject, correlation_id])
comm.add_broadcast_subscriber(kiwipy.BroadcastFilter(hear, subject="purchase.*"))
""")
        await bus.broadcast.send("a boat", sender=7, subject="sale.boat")
        await bus.broadcast.send({"a": "car"}, sender=7, subject="purchase.car", correlation_id=3)
        await bus.broadcast.send("plain")
        await peer.until("len(got) == 2")
        assert await peer.run("got") == [[{"a": "car"}, 7, "purchase.car", 3], ["plain", None, None, None]]


async def test_after_a_lost_connection(rabbitmq: Broker) -> None:
    """After all connections were cut, workers, recipients and subscriptions of ours serve their programs again."""
    heard: list[Any] = []

    async def double(value: Any) -> Any:
        return value * 2

    async def work(task: Task) -> Any:
        return task.data * 2

    async with both(rabbitmq) as (bus, peer):
        async with (
            bus.tasks.worker(work),
            bus.rpc.serve("process-1", double),
            bus.broadcast.subscribe(lambda broadcast: heard.append(broadcast.body)),
        ):
            await peer.run("comm.task_send(1).result(20)")
            rabbitmq.close_connections()
            await healthy(bus)
            again = f"import kiwipy; comm = kiwipy.connect({rabbitmq.url!r})"
            async with Peer(again) as later:
                assert await later.run("comm.task_send(21).result(20)") == 42
                assert await later.run("comm.rpc_send('process-1', 21).result(20)") == 42
                await later.run("comm.broadcast_send('heard')")
                await until(lambda: "heard" in heard)
        assert await bus.healthy()


async def test_own_names_and_encoding(rabbitmq: Broker) -> None:
    """Exchanges, the queue of tasks and the encoding are those that the kiwiPy programs were given, in the URL or not."""
    begin = f"""
import json, kiwipy, kiwipy.rmq
comm = kiwipy.rmq.RmqThreadCommunicator.connect(
    {rabbitmq.url!r}, message_exchange="m", task_exchange="t", task_queue="q",
    encoder=lambda value: json.dumps(value).encode(), decoder=json.loads)
"""
    options: dict[str, Any] = {
        "task_exchange": "t",
        "task_queue": "q",
        "encoder": lambda value: json.dumps(value).encode(),
        "decoder": json.loads,
    }

    async def work(task: Task) -> Any:
        return [task.data]

    async with (
        Peer(begin) as peer,
        redpoll.connect(f"{rabbitmq.url}?speak=kiwipy&message_exchange=m", **options) as bus,
        bus.tasks.worker(work),
    ):
        assert await peer.run("comm.task_send({'a': 1}).result(20)") == [{"a": 1}]
        assert await peer.run("comm.broadcast_send(1)") is True
        assert {"m", "t"} <= set(rabbitmq.exchanges())
        assert "q" in rabbitmq.queues()


async def test_cancelled_handler(rabbitmq: Broker) -> None:
    """A handler of ours that was cancelled cancels their future; a task that is theirs cannot be cancelled, nor delayed."""

    async def cancels(_: Task) -> None:
        raise asyncio.CancelledError

    async with both(rabbitmq) as (bus, peer):
        async with bus.tasks.worker(cancels):
            with pytest.raises(PeerError, match="CancelledError"):
                await peer.run("comm.task_send(1).result(20)")
        await peer.run("comm.add_task_subscriber(lambda comm, task: task, 'them')")
        handle = await bus.tasks.submit(1)
        assert await handle.result(20) == 1
        with pytest.raises(Unsupported, match="cancelling"):
            await handle.cancel()
        with pytest.raises(Unsupported, match="delays"):
            await bus.tasks.submit(1, delay=1)
