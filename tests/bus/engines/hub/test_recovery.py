"""What an engine keeps when its link is lost, and when the hub is restarted."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import redpoll
from redpoll import Config
from redpoll.address import Address
from redpoll.bus import Envelope, Outcome, OutcomeKind, Task, TaskInfo
from redpoll.bus.broker import Limits
from redpoll.bus.broker.outputs import Write
from redpoll.bus.engines.hub import asking, member
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.client import HubEngine
from redpoll.bus.engines.hub.server import HubServer
from redpoll.bus.engines.hub.tokens import Tokens
from redpoll.bus.rpc import server
from redpoll.bus.state import EngineState
from redpoll.errors import CallTimeout, Closed, Expired, NotConfirmed, PeerLost, TaskError, TaskExpired, UsageError
from redpoll.node.door import LayerNode, Peer
from redpoll.testing import FaultProxy
from tests.bus.engines.hub.memory_store import MemoryStore
from tests.bus.engines.hub.support import Running, running
from tests.node.support import PATIENCE, elapse, turns, until
from tests.ports import free_port


@pytest.mark.asyncio
async def test_a_worker_keeps_its_task_over_a_restart() -> None:
    """A hub that is restarted gives nobody what a worker holds; the outcome that it reaches meanwhile is recorded once."""
    kept: list[Write] = []
    store = MemoryStore(kept, epoch=1)
    hub = Running(store)
    port = hub.hub.address.port
    begun: Counter[int] = Counter()
    go = asyncio.Event()

    async def work(task: Task) -> int:
        begun[task.data] += 1
        if task.data < 4:
            await go.wait()
        return int(task.data) * 2

    async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
        async with other.tasks.worker(work, queue="q", concurrency=8):
            handles = [await bus.tasks.submit(number, queue="q") for number in range(4)]
            await until(lambda: len(begun) == 4, "it")
            await asyncio.to_thread(hub.stop)
            await until(lambda: other.state is EngineState.RECONNECTING, "it")
            go.set()
            await turns()
            hub = Running(MemoryStore(kept, store.name, 2), port=port)
            await until(lambda: bus.state is other.state is EngineState.READY, "it")
            assert [await handle.result(timeout=10) for handle in handles] == [0, 2, 4, 6]
            assert await bus.tasks.run(7, queue="q", timeout=10) == 14
    assert begun == {0: 1, 1: 1, 2: 1, 3: 1, 7: 1}
    await asyncio.to_thread(hub.stop)


@pytest.mark.asyncio
@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_outcome_of_a_single_task(cancelled: bool) -> None:
    """The outcome of a task that was taken alone, reached while the hub was away, is recorded, whether or not awaited."""
    kept: list[Write] = []
    store = MemoryStore(kept, epoch=1)
    hub = Running(store)
    port = hub.hub.address.port
    async with redpoll.connect(hub.url) as bus:
        engine = bus.engine
        await bus.queues.declare("q")
        receipt = await engine.publish(Envelope("raw", b"x"), queue="q")
        delivery = await engine.take("q", 5)
        await asyncio.to_thread(hub.stop)
        await until(lambda: bus.state is EngineState.RECONNECTING, "the loss of the hub")
        assert delivery.progress(Envelope("raw", b"z"))  # nobody knows of no watcher: signs of life continue
        recorded = asyncio.ensure_future(delivery.ack(Outcome(OutcomeKind.RESULT, Envelope("raw", b"y"))))
        if cancelled:
            recorded.cancel()
        await turns()
        hub = Running(MemoryStore(kept, store.name, 2), port=port)
        await until(lambda: bus.state is EngineState.READY, "it")
        await until(lambda: not engine._requests, "the answers of the hub")  # type: ignore[attr-defined]
        info = await engine.lookup(receipt.id)
        assert (info.state, info.outcome) == ("done", Outcome(OutcomeKind.RESULT, Envelope("raw", b"y")))
    await asyncio.to_thread(hub.stop)


@pytest.mark.asyncio
@pytest.mark.parametrize("pause", [0.0, 1.5])
async def test_cut_links(pause: float) -> None:
    """Links that are cut lose nothing; for less than the grace, nothing is begun twice."""
    with running() as hub:
        async with FaultProxy(str(hub.hub.address)) as proxy:
            url = f"redpoll://{proxy.address}"
            begun: Counter[int] = Counter()

            async def work(task: Task) -> int:
                begun[task.data] += 1
                await elapse(0.002)
                return int(task.data)

            async with redpoll.connect(hub.url) as bus, redpoll.connect(url) as other:
                async with other.tasks.worker(work, queue="q", concurrency=4):
                    handles = [await bus.tasks.submit(number, queue="q") for number in range(300)]
                    for _ in range(3):
                        await asyncio.sleep(0.1)
                        proxy.cut()
                        await asyncio.sleep(pause)
                    results = [await handle.result(timeout=20) for handle in handles]
            assert results == list(range(300))
            if not pause:
                assert set(begun.values()) == {1}


@pytest.mark.asyncio
async def test_slots_after_a_lost_link() -> None:
    """A worker that was away while all its slots were used has them all again when their tasks are done."""
    begun: list[int] = []
    go = asyncio.Event()

    async def work(task: Task) -> None:
        begun.append(task.data)
        if task.data < 2:
            await go.wait()

    with running() as hub:
        async with FaultProxy(str(hub.hub.address)) as proxy:
            url = f"redpoll://{proxy.address}"
            async with redpoll.connect(hub.url) as bus, redpoll.connect(url) as other:
                async with other.tasks.worker(work, queue="q", concurrency=2):
                    handles = [await bus.tasks.submit(number, queue="q") for number in range(6)]
                    await until(lambda: len(begun) == 2, "two of them")
                    proxy.refuse()
                    proxy.cut()
                    await until(lambda: other.state is EngineState.RECONNECTING, "the loss of the link")
                    proxy.admit()
                    await until(lambda: other.state is EngineState.READY, "the link")
                    go.set()
                    for handle in handles:
                        await handle.result(timeout=PATIENCE)
    assert sorted(begun) == list(range(6))


@pytest.mark.asyncio
async def test_a_task_that_is_lost_on_its_way_to_a_taker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes what is there, and whose task is lost with its link, fails, and waits for no other one."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            task = await bus.tasks.submit(1, queue="q")
            delivered = member._TAKE[p.DELIVER]

            def lose(self: Any, *_: Any) -> None:
                monkeypatch.setitem(member._TAKE, p.DELIVER, delivered)
                self._greet(False)  # as where its session is over

            monkeypatch.setitem(member._TAKE, p.DELIVER, lose)
            with pytest.raises(NotConfirmed, match="the hub is gone"):
                async with asyncio.timeout(PATIENCE):
                    await bus.tasks.next(queue="q", timeout=0)
            async with bus.tasks.next(queue="q", timeout=PATIENCE) as again:
                assert again.id == task.id
            assert not bus.engine._consumers  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_what_changed_meanwhile() -> None:
    """After a restart that lost its queue a worker learns that its task is lost; others of the bus go on."""
    hub = Running(MemoryStore())
    port = hub.hub.address.port
    async with redpoll.connect(hub.url) as bus:
        await bus.queues.declare("gone")
        for number in range(3):
            await bus.tasks.submit(number, queue="gone")
        claims = [await bus.tasks.next(queue="gone") for _ in range(3)]
        await asyncio.to_thread(hub.stop)
        await until(lambda: bus.state is EngineState.RECONNECTING, "the loss of the hub")
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(bus.engine.publish(Envelope("raw", b""), queue="gone", timeout=20))
        ]
        for claim in claims[:2]:
            claim.set_result(None)
            ends.append(asyncio.ensure_future(claim.confirmed()))
        await turns()
        hub = Running(MemoryStore(), port=port)
        await until(lambda: bus.state is EngineState.READY, "another hub")
        await asyncio.wait(ends, timeout=10)
        assert all(each.done() for each in ends)
        assert isinstance(ends[0].exception(), redpoll.NoRoute)
        assert [each.result() for each in ends[1:]] == [False, False]
        await bus.queues.declare("q")
        assert await (await bus.tasks.submit(1, queue="q")).state() == "ready"
    await asyncio.to_thread(hub.stop)


@pytest.mark.asyncio
async def test_a_worker_that_is_gone() -> None:
    """The task of a worker that went without goodbye is begun by another, as its second attempt."""
    with running() as hub:
        attempts: list[int] = []
        begun = asyncio.Event()

        async def hang(task: Task) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def work(task: Task) -> str:
            attempts.append(task.attempt)
            return "done"

        async with redpoll.connect(hub.url) as bus:
            lost = redpoll.connect(hub.url)
            await lost.__aenter__()
            worker = lost.tasks.worker(hang, queue="q")
            await worker.__aenter__()
            handle = await bus.tasks.submit(1, queue="q")
            await begun.wait()
            lost.engine.abort()  # type: ignore[attr-defined]  # of hubs and in memory
            async with bus.tasks.worker(work, queue="q"):
                assert await handle.result(timeout=10) == "done"
            await lost.close()
        assert attempts == [2]


#: Seconds that a hub in a process of its own may take to start, on a machine that has much to do.
SLOW = 60.0


@pytest.mark.asyncio
async def test_a_hub_that_is_killed(tmp_path: Path) -> None:
    """Of a hub that is killed at any moment, nothing confirmed is lost, and no worker's task begins again."""
    port = free_port()
    url = f"redpoll://127.0.0.1:{port}"
    begun: Counter[int] = Counter()
    confirmed: list[Any] = []

    async def work(task: Task) -> int:
        begun[task.data] += 1
        await elapse(0.001)
        return int(task.data)

    async def submit(bus: redpoll.Bus) -> None:
        for number in range(240):
            with contextlib.suppress(redpoll.NotConfirmed):
                confirmed.append(await bus.tasks.submit(number, queue="q", timeout=SLOW))

    async with contextlib.AsyncExitStack() as hubs:
        hub = await start_hub(hubs, tmp_path, port)
        async with redpoll.connect(url, wait=True) as bus, redpoll.connect(url, wait=True) as other:
            async with other.tasks.worker(work, queue="q", concurrency=4):
                submitting = asyncio.ensure_future(submit(bus))
                for kill in range(1, 3):
                    # In the middle of it, however slow this machine is.
                    async with asyncio.timeout(SLOW):
                        while len(confirmed) < 80 * kill:  # noqa: ASYNC110  # a count
                            await asyncio.sleep(0.001)
                    hub.kill()
                    await hub.wait()
                    hub = await start_hub(hubs, tmp_path, port)
                await submitting
                for handle in confirmed:
                    await handle.result(timeout=SLOW)
        hub.terminate()
        assert await hub.wait() == 0
    assert len(confirmed) > 200
    assert set(begun.values()) == {1}


#: The command, which ends with the process of its test too: the watchdog of a test that hangs cleans nothing up.
HUB = """
import ctypes, signal, sys
from redpoll.cli import main
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
main(sys.argv[1:])
"""


async def start_hub(hubs: contextlib.AsyncExitStack, folder: Path, port: int) -> asyncio.subprocess.Process:
    """Start a hub in a process of its own, which is killed at the end of the stack if it is still there."""
    command = ("hub", "--data", str(folder / "hub"), "--port", str(port), "--quiet")
    hub = await asyncio.create_subprocess_exec(sys.executable, "-c", HUB, *command)

    async def end() -> None:
        if hub.returncode is None:
            hub.kill()
            await hub.wait()

    hubs.push_async_callback(end)
    return hub


@pytest.mark.asyncio
async def test_what_is_asked_for_before_there_is_a_hub(tmp_path: Path) -> None:
    """Consumers, takes and subscriptions that are asked for while no hub is linked are made once, when one is."""
    port = free_port()
    async with redpoll.Hub(tmp_path, port=port) as hub, redpoll.connect(hub.url) as bus:
        await bus.queues.declare("q")
        for queue in ("r", "t"):
            await bus.tasks.submit(queue, queue=queue)
    async with redpoll.connect(f"redpoll://127.0.0.1:{port}", wait=True) as bus:
        engine = bus.engine
        consuming = asyncio.ensure_future(engine.consume("q"))
        subscribing = asyncio.ensure_future(engine.subscribe(["s"]))
        taking = [asyncio.ensure_future(each) for each in (engine.take("r"), engine.take("t", PATIENCE))]
        await asyncio.sleep(0)
        async with redpoll.Hub(tmp_path, port=port):
            taken = await asyncio.wait_for(asyncio.gather(*taking), PATIENCE)
            assert [each.queue for each in taken] == ["r", "t"]
            consumer, subscription = await asyncio.wait_for(asyncio.gather(consuming, subscribing), PATIENCE)
            await bus.tasks.submit(2, queue="q")
            assert (await asyncio.wait_for(anext(aiter(consumer)), PATIENCE)).attempt == 1
            await engine.publish(Envelope("raw", b"x"), subject="s")
            assert (await asyncio.wait_for(anext(aiter(subscription)), PATIENCE)).subject == "s"


@pytest.mark.asyncio
async def test_closing_while_it_connects() -> None:
    """An engine that is closed while it connects says so at once, and not that no hub answered in time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        engine = HubEngine([Address.of_host("127.0.0.1", port)], connect_timeout=2 * PATIENCE)
        entering = asyncio.ensure_future(engine.__aenter__())
        await turns()
        await engine.close()
        with pytest.raises(Closed):
            await asyncio.wait_for(entering, PATIENCE)


@pytest.mark.asyncio
async def test_closing_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing an engine returns once the task that keeps it linked has ended too, though that is the last thing to end."""
    ready, stop = LayerNode.ready, LayerNode.stop
    stopped = asyncio.Event()

    async def end_late(node: LayerNode, *arguments: Any, **options: Any) -> None:
        try:
            await ready(node, *arguments, **options)
        except asyncio.CancelledError:
            await stopped.wait()
            await turns()
            raise

    async def tell(node: LayerNode, *arguments: Any) -> None:
        await stop(node, *arguments)
        stopped.set()

    monkeypatch.setattr(LayerNode, "ready", end_late)
    monkeypatch.setattr(LayerNode, "stop", tell)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = HubEngine([Address.of_host("127.0.0.1", silent.getsockname()[1])], wait=True)
        async with engine:
            await turns()
            link = engine._link
            assert link is not None
            assert not link.done()
        assert link.cancelled()
        assert engine.status.state is EngineState.CLOSED


@pytest.mark.asyncio
async def test_a_worker_that_closes_as_its_link_is_lost() -> None:
    """It has closed: the hub hands out nothing over a link that is lost, and the next one has other workers alone."""
    taken: list[str] = []

    def taker(name: str) -> Callable[[Task], None]:
        return lambda task: taken.append(f"{name} {task.data}")

    with running() as hub:
        async with FaultProxy(hub.url[10:]) as proxy, redpoll.connect(f"redpoll://{proxy.address}") as bus:
            await bus.queues.declare("q")
            async with bus.tasks.worker(taker("former"), "q"):
                await bus.tasks.run(1, "q")
                proxy.freeze()
                cutting = asyncio.get_running_loop().call_later(0.1, proxy.cut)
            assert cutting.when() <= asyncio.get_running_loop().time()
            proxy.thaw()
            async with bus.tasks.worker(taker("later"), "q"):
                await asyncio.wait_for(bus.tasks.run(2, "q"), PATIENCE)
    assert taken == ["former 1", "later 2"]


@pytest.mark.asyncio
async def test_a_loss_that_the_client_sees_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose session is over comes back to a hub for which it goes on, and so do its signs of life."""
    monkeypatch.setattr(member, "_RESUME", 0.01)
    signs: list[str] = []
    live = HubServer._live

    def note(self: HubServer, peer: Peer, name: str, token: str) -> None:
        signs.append(name)
        live(self, peer, name, token)

    monkeypatch.setattr(HubServer, "_live", note)
    with running(limits=Limits(grace=PATIENCE)) as hub:
        config = Config(keepalive=0.05)
        async with (
            FaultProxy(str(hub.hub.address)) as proxy,
            redpoll.connect(f"redpoll://{proxy.address}", config=config) as bus,
            bus.tasks.worker(lambda task: task.data, queue="q"),
        ):
            await until(lambda: signs, "a sign of life")
            proxy.refuse()
            proxy.cut()
            await until(lambda: bus.state is EngineState.RECONNECTING, "the loss")
            await turns(50)
            signs.clear()
            proxy.admit()
            assert await bus.tasks.run(1, queue="q", timeout=PATIENCE) == 1
            await until(lambda: signs, "signs of life")


@pytest.mark.asyncio
async def test_what_was_left_before_it_was_confirmed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consuming and subscribing that were cancelled, and whose answers were lost with the link, leave nothing behind."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            engine: Any = bus.engine
            await bus.queues.declare("q")
            monkeypatch.setitem(member._TAKE, p.REPLY, lambda *_: None)
            asked = (engine.consume("q"), engine.subscribe(["a"]), engine.take("q", None))
            left = [asyncio.ensure_future(each) for each in asked]
            await until(lambda: [each.sent for each in engine._requests.values()] == [True] * 3, "what is asked")
            for each in left:
                each.cancel()
            engine._greet(False)
            await asyncio.wait(left)
            monkeypatch.undo()
            await until(lambda: not engine.linked, "the loss")
            await until(lambda: engine.linked, "the link")
            assert await bus.queues.names() == ["q"]
            assert not engine._requests
            assert not engine._consumers
            assert not engine._subscriptions


@pytest.mark.asyncio
async def test_closing_a_consumer_whose_hub_goes_away() -> None:
    """A consumer that is closed in the moment in which its hub goes away is closed, though that never returns."""
    hub = Running()
    async with redpoll.connect(hub.url) as bus:
        assert isinstance(bus.engine, HubEngine)
        await bus.queues.declare("q")
        consumers = [await bus.engine.consume("q") for _ in range(2)]
        closing = [asyncio.ensure_future(consumers[0].close())]
        await turns(1)
        assert bus.engine._peer is not None
        closing.append(asyncio.ensure_future(consumers[1].close()))
        bus.engine.ended(bus.engine._peer, PeerLost(None, "gone"))
        await asyncio.to_thread(hub.stop)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*closing)


@pytest.mark.asyncio
@pytest.mark.parametrize(("drain", "goodbye"), [(600.0, 0.0), (None, 600.0)])
async def test_closing_waits_for_a_hub_that_is_not_seen_to_be_away(
    monkeypatch: pytest.MonkeyPatch, drain: float | None, goodbye: float
) -> None:
    """An outcome that was sent to a hub as it froze is recorded when it returns, if the bus has so long to close."""
    monkeypatch.setattr(member, "_GOODBYE", goodbye)
    with running() as hub:
        async with FaultProxy(hub.url[10:]) as proxy, redpoll.connect(hub.url) as bus:
            async with redpoll.connect(f"redpoll://{proxy.address}") as other:
                engine: Any = other.engine
                task = await bus.tasks.submit(1, queue="q")
                delivery = await engine.take("q", PATIENCE)
                proxy.freeze()
                recorded = asyncio.ensure_future(delivery.ack(Outcome(OutcomeKind.RESULT)))
                closing = asyncio.ensure_future(other.close(drain))
                await turns()
                assert engine.linked
                proxy.cut()
                await until(lambda: not engine.linked, "the loss")
                proxy.thaw()
                assert await asyncio.wait_for(recorded, PATIENCE)
                await asyncio.wait_for(closing, PATIENCE)
            assert await task.state() == "done"


@pytest.mark.asyncio
@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("drain", [0.01, None])
async def test_closing_waits_so_long_for_a_hub_that_is_away(
    monkeypatch: pytest.MonkeyPatch, noticed: bool, drain: float | None
) -> None:
    """A bus that closes gives up an outcome when the time for that is over, whether or not its hub is seen to be away."""
    monkeypatch.setattr(member, "_GOODBYE", 0.01)
    with running() as hub:
        async with FaultProxy(hub.url[10:]) as proxy, redpoll.connect(f"redpoll://{proxy.address}") as bus:
            engine: Any = bus.engine
            await bus.tasks.submit(1, queue="q")
            delivery = await engine.take("q", PATIENCE)
            if noticed:
                proxy.refuse()
                proxy.cut()
                await until(lambda: not engine.linked, "the loss")
            else:
                proxy.freeze()
            recorded = asyncio.ensure_future(delivery.ack(Outcome(OutcomeKind.RESULT)))
            await asyncio.wait_for(bus.close(drain), PATIENCE)
            with pytest.raises(Closed):
                await recorded
            proxy.calm()


@pytest.mark.asyncio
async def test_outcomes_of_a_worker_that_hands_tasks_on() -> None:
    """A worker may record that a task expired, or was lost, elsewhere; a dead letter it makes by rejecting."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            for kind, raised in ((OutcomeKind.EXPIRED, TaskExpired), (OutcomeKind.LOST, TaskError)):
                task = await bus.tasks.submit(1, queue="q")
                delivery = await bus.engine.take("q", PATIENCE)
                with pytest.raises(UsageError, match="DEAD"):
                    delivery.ack(Outcome(OutcomeKind.DEAD))
                assert await delivery.ack(Outcome(kind, None, "over there"))
                with pytest.raises(raised, match="over there"):
                    await task.result(timeout=PATIENCE)


@pytest.mark.asyncio
async def test_expired_publishes_take_no_room() -> None:
    """Publishes that expired while there was no hub count no longer among the bytes that wait for one."""
    engine = HubEngine([Address.of_host("127.0.0.1", free_port())], wait=True)
    body = Envelope("raw", b"x" * 2**24)
    async with engine:
        for _ in range(5):
            with pytest.raises(Expired):
                await engine.publish(body, queue="q", timeout=0.001)


@pytest.mark.asyncio
async def test_timeouts_of_answered_publishes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes that were answered long before their timeouts leave no more of these than a few."""
    monkeypatch.setattr(asking, "_TIMEOUTS", 8)
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            for _ in range(100):
                await bus.tasks.submit(b"x", queue="q", timeout=60)
            assert len(bus.engine._timeouts) < 16  # type: ignore[attr-defined]


class _Slow:
    """Methods that take longer than a test."""

    async def wait(self) -> None:
        """Answer late."""
        await asyncio.Event().wait()

    async def parts(self) -> AsyncIterator[int]:
        """Send one part, and the next one late."""
        yield 1
        await asyncio.Event().wait()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["gone", "frozen"])
async def test_calls_end_without_their_hub(how: str) -> None:
    """Calls and streams that were begun end at their deadlines where the hub is gone by then, or does not answer."""
    with running() as hub:
        async with FaultProxy(str(hub.hub.address)) as proxy:
            url = f"redpoll://{proxy.address}"
            async with redpoll.connect(hub.url) as other, redpoll.connect(url) as bus:
                async with other.rpc.serve("s", _Slow()):
                    stream = bus.rpc.stream("s", "parts", timeout=0.5)
                    calls = [asyncio.ensure_future(bus.rpc.call("s", "wait", timeout=0.5)) for _ in range(3)]
                    assert await anext(stream) == 1
                    engine: Any = bus.engine
                    await until(lambda: len(engine._watchers) == 4, "the confirmations")
                    if how == "gone":
                        proxy.refuse()
                        proxy.cut()
                    else:
                        proxy.freeze()
                    for each in (*calls, asyncio.ensure_future(anext(stream))):
                        with pytest.raises(CallTimeout, match="no answer of the hub"):
                            await asyncio.wait_for(each, PATIENCE)
                    assert not engine._watchers
                    proxy.calm()


class _Cut:
    """An endpoint whose work continues while its server is cut off."""

    def __init__(self) -> None:
        self.go, self.went = asyncio.Event(), asyncio.Event()

    async def parts(self) -> AsyncIterator[int]:
        """Send one part, and the others while there is no link."""
        yield 0
        await self.go.wait()
        yield 1
        self.went.set()


@pytest.mark.asyncio
async def test_a_stream_over_a_lost_link() -> None:
    """A stream whose server was cut off while it sent a part fails for the missing part, though its end is known later."""
    with running(limits=Limits(grace=PATIENCE)) as hub:
        async with FaultProxy(str(hub.hub.address)) as proxy:
            url = f"redpoll://{proxy.address}"
            async with redpoll.connect(hub.url) as bus, redpoll.connect(url) as other:
                cut = _Cut()
                async with other.rpc.serve("s", cut):
                    stream = bus.rpc.stream("s", "parts")
                    assert await anext(stream) == 0
                    proxy.refuse()
                    proxy.cut()
                    await until(lambda: other.state is EngineState.RECONNECTING, "the loss of the link")
                    cut.go.set()
                    await asyncio.wait_for(cut.went.wait(), PATIENCE)
                    proxy.admit()
                    with pytest.raises(PeerLost, match="part 1 of its answer was lost"):
                        await asyncio.wait_for(anext(stream), PATIENCE)


@pytest.mark.asyncio
async def test_a_hub_that_is_frozen_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the health of a bus ends soon where its hub does not answer, before anybody knows that its link is lost."""
    monkeypatch.setattr("redpoll.bus.bus._ANSWER", 0.1)
    with running() as hub:
        async with FaultProxy(str(hub.hub.address)) as proxy, redpoll.connect(f"redpoll://{proxy.address}") as bus:
            proxy.freeze()
            assert not await asyncio.wait_for(bus.healthy(), PATIENCE)
            assert bus.state is EngineState.READY
            proxy.thaw()
            await until(lambda: not bus.engine._requests, "the late answer")  # type: ignore[attr-defined]
            monkeypatch.undo()
            assert await bus.healthy()


@pytest.mark.asyncio
async def test_operations_at_a_hub_that_is_frozen_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that has no timeout ends so long after it began, or after the hub was last heard, not after its link was lost."""
    config = Config(keepalive=0.05)
    with running() as hub:
        async with (
            FaultProxy(str(hub.hub.address)) as proxy,
            redpoll.connect(f"redpoll://{proxy.address}", config=config) as bus,
        ):
            await bus.queues.declare(redpoll.bus.QueueSpec("full", max_length=1))
            handle = await bus.tasks.submit(1, queue="full")
            engine: Any = bus.engine
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(asking, "ABSENCE", 0.0)
            early = loop.time()
            earlier = asyncio.ensure_future(bus.tasks.submit(1, queue="full", dedup="a"))
            await until(lambda: engine._requests, "a submit that waits for room")
            (first,) = engine._requests
            await until(lambda: engine._peer.link.liveness.last_received > early, "an answer to a ping")
            monkeypatch.setattr(asking, "ABSENCE", 3.0)
            proxy.freeze()
            operations: list[Callable[[], Awaitable[Any]]] = [
                handle.state,
                handle.cancel,
                bus.queues.names,
                lambda: bus.queues.inspect("full"),
                lambda: bus.queues.browse("full"),
                lambda: bus.queues.pause("full"),
                lambda: bus.queues.declare("r"),
                lambda: bus.queues.purge("full"),
                lambda: bus.queues.delete("full"),
                lambda: bus.queues.move("full", "r"),
                lambda: bus.queues.redrive("full"),
                lambda: bus.tasks.submit(1, queue="full"),
                lambda: bus.tasks.submit(1, queue="full", dedup="b"),
            ]
            asked = [asyncio.ensure_future(each()) for each in operations]
            await turns()
            late = loop.time()
            await until(lambda: not engine.linked, "the loss")
            await turns()
            ends = {number: each.absence for number, each in engine._requests.items()}
            assert early + 3 < ends.pop(first)
            assert ends
            assert max(ends.values()) <= late + 3
            done = await asyncio.wait_for(asyncio.gather(earlier, *asked, return_exceptions=True), PATIENCE)
            assert {type(each) for each in done} == {NotConfirmed}
            assert "the hub did not answer in time" in str(done[1])


@pytest.mark.asyncio
async def test_timeouts_of_lost_links_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits over many losses of the link has one timeout, and a loss costs no look at all for each."""
    monkeypatch.setattr(asking, "_TIMEOUTS", 4)
    looks = 0
    sort = heapq.heapify

    def count(timeouts: list[Any]) -> None:
        nonlocal looks
        looks += 1
        sort(timeouts)

    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare(redpoll.bus.QueueSpec("q", max_length=1))
            await bus.tasks.submit("first", queue="q")
            waiting = [asyncio.ensure_future(bus.tasks.submit(1, queue="q", dedup=f"{n}")) for n in range(100)]
            engine: Any = bus.engine
            await until(lambda: len(engine._requests) == 100, "the publishes")
            monkeypatch.setattr(heapq, "heapify", count)
            for _ in range(8):
                engine._greet(False)
                await until(lambda: not engine.linked, "the loss")
                await until(lambda: engine.linked, "the link")
            assert len(engine._timeouts) <= 3 * 100
            assert looks <= 16
            for each in waiting:
                each.cancel()
            await asyncio.wait(waiting)


@pytest.mark.asyncio
async def test_a_link_that_is_lost_while_it_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker keeps its task and goes on taking, also if the answers of a hub that it returned to are lost."""
    begun: list[Task] = []
    go = asyncio.Event()

    async def work(task: Task) -> Any:
        begun.append(task)
        await go.wait()
        return task.data

    with running() as hub:
        async with redpoll.connect(hub.url) as bus, bus.tasks.worker(work, queue="q"):
            task = await bus.tasks.submit(1, queue="q")
            await until(lambda: begun, "the beginning")
            engine: Any = bus.engine
            rejoin = engine._rejoin

            def once() -> None:
                monkeypatch.undo()
                rejoin()
                engine._dismissed(PeerLost(None, "again"))

            monkeypatch.setattr(engine, "_rejoin", once)
            engine._dismissed(PeerLost(None, "lost"))
            await until(lambda: "_rejoin" not in vars(engine) and engine.linked, "the second return")
            go.set()
            assert await task.result(timeout=PATIENCE) == 1
            assert await bus.tasks.run(2, queue="q", timeout=PATIENCE) == 2
            assert not begun[0].lost
            assert len(begun) == 2


@pytest.mark.asyncio
async def test_operations_wait_for_an_absent_hub_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no timeout fails after a limit while the hub is away, naming it; a hub that is back in time answers."""
    monkeypatch.setattr(asking, "ABSENCE", 0.2)
    store = MemoryStore()
    with running(store) as hub:
        address = hub.url.removeprefix("redpoll://")
        port = hub.hub.address.port
        bus, patient = redpoll.connect(hub.url), redpoll.connect(hub.url, wait=True)
        await bus.__aenter__()
        await patient.__aenter__()
        await patient.status.wait_for(EngineState.READY)
        handle = await bus.tasks.submit(1, queue="q")
    await bus.status.wait_for(EngineState.RECONNECTING)
    waiting = asyncio.ensure_future(patient.queues.names())
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: bus.queues.inspect("q"),
        bus.queues.names,
        lambda: bus.tasks.submit(1, queue="q"),
        lambda: bus.tasks.run(1, queue="q"),
        lambda: bus.broadcast.send(1, subject="a"),
        lambda: bus.broadcast.subscribe(print).start(),
        lambda: bus.tasks.worker(print, queue="q").__aenter__(),
        lambda: bus.tasks.next("q", timeout=0).__aenter__(),
        lambda: bus.tasks.next("q", timeout=0.1).__aenter__(),
        lambda: bus.tasks.handle(handle.id, queue="q").result(),
    ]
    for failed in await asyncio.gather(*(operation() for operation in operations), return_exceptions=True):
        assert isinstance(failed, Expired)
        assert f"still waiting for the hub at {address} (reconnecting: " in str(failed)
        assert "start the hub" in str(failed.hint)
    monkeypatch.setattr(asking, "ABSENCE", PATIENCE)
    late = asyncio.ensure_future(bus.queues.names())
    with running(MemoryStore(list(store.load()), store.name, 2), port=port):
        assert not waiting.done()
        assert await asyncio.wait_for(waiting, PATIENCE) == await asyncio.wait_for(late, PATIENCE)
        await bus.close()
        await patient.close()


CALLER = """
import asyncio, sys
import redpoll

async def main():
    async with redpoll.connect(sys.argv[1]) as bus:
        async for part in bus.rpc.stream("endless", sys.argv[2]):
            print(part, flush=True)
            await asyncio.sleep(3_600)

asyncio.run(main())
"""


class Endless:
    """An endpoint whose stream does not end by itself."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def numbers(self) -> AsyncIterator[int]:
        """Count."""
        try:
            for number in itertools.count():
                yield number
        finally:
            self.left.set()

    async def silence(self) -> AsyncIterator[int]:
        """Yield one number, and wait for what never happens."""
        try:
            yield 0
            await asyncio.Event().wait()
        finally:
            self.left.set()


SERVES, CALLS = "serves-serves-serves", "calls-calls-calls"
TOKENS = f"""
[server]
token = "{SERVES}"
serve = ["endless"]
[caller]
token = "{CALLS}"
call = ["endless"]
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("method", ["numbers", "silence"])
async def test_a_stream_whose_caller_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, *, secured: bool
) -> None:
    """It ends at its server when the hub has given up its caller; while the caller only takes nothing, it stays."""
    monkeypatch.setattr(server, "LOOK", 0.02)
    endless = Endless()
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    with running(limits=Limits(grace=0.1, inbox_time=0.1), tokens=Tokens(tokens) if secured else None) as hub:
        own, callers = (hub.url.replace("//", f"//{token}@" if secured else "//") for token in (SERVES, CALLS))
        async with redpoll.connect(own) as bus, bus.rpc.serve("endless", endless):
            lookup, looks = bus.engine.lookup, []

            async def look(task: str) -> TaskInfo:
                looks.append(await lookup(task))
                return looks[-1]

            monkeypatch.setattr(bus.engine, "lookup", look)
            caller = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CALLER, callers, method, stdout=asyncio.subprocess.PIPE
            )
            try:
                assert caller.stdout is not None
                assert await caller.stdout.readline() == b"0\n"
                await until(lambda: len(looks) > 3, "some looks after the caller")
                assert all(info.watched for info in looks)
                assert not endless.left.is_set()
            finally:
                caller.kill()
                await caller.communicate()
            async with asyncio.timeout(30):
                await endless.left.wait()
