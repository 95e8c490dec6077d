"""The hub of a folder, and what it does with programs that break the rules."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import redpoll
from redpoll import Config, ConfigError, Hub, Message, Node, UsageError
from redpoll.address import Address
from redpoll.bus import QueueSpec
from redpoll.bus.awaitables import OutcomeFuture
from redpoll.bus.broker import Limits
from redpoll.bus.engines.hub import calls, member, requests
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.client import HubEngine
from redpoll.bus.engines.hub.handles import HubDelivery, packed
from redpoll.bus.engines.hub.life import life
from redpoll.bus.envelope import Envelope
from redpoll.bus.state import EngineState
from redpoll.errors import (
    DeadLettered,
    DecodeError,
    DialFailed,
    EncodeError,
    NotConfirmed,
    PeerLost,
    ProtocolError,
    StoreError,
)
from redpoll.serializers import get
from redpoll.testing import FaultProxy
from tests.bus.engines.hub.support import running
from tests.node.support import PATIENCE, turns, until


@pytest.mark.asyncio
async def test_restarted(tmp_path: Path) -> None:
    """What is confirmed is there after a restart: tasks, outcomes under their ids, and settings of queues."""
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        assert bus.capabilities.confirm == "disk"
        waiting = await bus.tasks.submit("wait", queue="waiting")
        async with bus.tasks.worker(lambda task: task.data * 2, queue="done"):
            ended = await bus.tasks.submit(21, queue="done")
            assert await ended.result(timeout=PATIENCE) == 42
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        assert hub.holds == {"queues": 2, "tasks": 1, "results": 1}
        assert await bus.tasks.handle(waiting.id, queue="waiting").state() == "ready"
        assert await bus.tasks.handle(ended.id, queue="done").result(timeout=PATIENCE) == 42


@pytest.mark.asyncio
async def test_a_damaged_body(tmp_path: Path) -> None:
    """A task whose body cannot be read from the disk is given up, with the file that is damaged; the others are done."""
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        made = await bus.tasks.submit_many(["x" * 100_000, 1, "y" * 100_000, 2], queue="q")
    with (tmp_path / "hub" / "hub.bodies").open("r+b") as file:
        file.write(bytes(100))
    begun: list[object] = []
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        async with bus.tasks.worker(lambda task: begun.append(task.data), queue="q", concurrency=1):
            first, *others = [bus.tasks.handle(each.id, queue="q") for each in made]
            with pytest.raises(DeadLettered, match=r"hub\.bodies at byte 0 is not there"):
                await first.result(timeout=PATIENCE)
            for each in others:
                await each.result(timeout=PATIENCE)
        assert begun == [1, "y" * 100_000, 2]
        (letter,) = await bus.queues.browse("q", "dead")
        assert letter.id == first.id


@pytest.mark.asyncio
async def test_a_damaged_outcome(tmp_path: Path) -> None:
    """Waiting for an outcome that cannot be read from the disk is an error that names the file; the hub continues."""
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        async with bus.tasks.worker(lambda task: task.data * 100_000, queue="q"):
            ended = await bus.tasks.submit("x", queue="q")
            assert len(await ended.result(timeout=PATIENCE)) == 100_000
    file = tmp_path / "hub" / "hub.bodies"
    file.write_bytes(bytes(file.stat().st_size))
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        with pytest.raises(NotConfirmed, match=r"its outcome is not known: .*hub\.bodies at byte 0 is not there"):
            await bus.tasks.handle(ended.id, queue="q").result(timeout=PATIENCE)
        async with bus.tasks.worker(lambda task: task.data + 1, queue="q"):
            assert await bus.tasks.run(1, queue="q", timeout=PATIENCE) == 2


@pytest.mark.asyncio
async def test_a_damaged_outcome_of_a_predecessor(tmp_path: Path) -> None:
    """A task does not begin without the outcome that it comes after: it is given up, with the file that is damaged."""
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        last = await bus.tasks.chain("x", "q").then("y", "r").submit()
        async with bus.tasks.worker(lambda task: task.data * 100_000, queue="q"):
            async with asyncio.timeout(PATIENCE):
                while not (await bus.queues.inspect("r")).ready:  # noqa: ASYNC110  # the hub is asked
                    await asyncio.sleep(0.01)
    file = tmp_path / "hub" / "hub.bodies"
    file.write_bytes(bytes(file.stat().st_size))
    begun: list[object] = []
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        async with bus.tasks.worker(begun.append, queue="r"):
            with pytest.raises(DeadLettered, match=r"hub\.bodies at byte 0 is not there"):
                await bus.tasks.handle(last.id, queue="r").result(timeout=PATIENCE)
            assert not begun
            await bus.tasks.run("z", queue="r", timeout=PATIENCE)
            assert len(begun) == 1


@pytest.mark.asyncio
async def test_what_cannot_be(tmp_path: Path) -> None:
    """A folder is one hub's, a hub is started once, and nobody listens off loopback without encryption."""
    async with Hub(tmp_path / "hub", port=0) as hub:
        with pytest.raises(StoreError):
            await Hub(tmp_path / "hub", port=0).start()
        with pytest.raises(UsageError, match="started before"):
            await hub.start()
    with pytest.raises(ConfigError):
        await Hub(tmp_path / "other", port=0, host="0.0.0.0").start()
    with pytest.raises(redpoll.Closed):
        _ = Hub(tmp_path / "third").address


@pytest.mark.asyncio
async def test_nobody_there() -> None:
    """Connecting fails within its time, or goes on in the background where that was asked for."""
    with running() as hub:
        url = hub.url
    with pytest.raises(DialFailed, match=r"no hub answered in time \(redpoll hub --data DIR starts one\)"):
        await redpoll.connect(url, connect_timeout=0.2).__aenter__()
    async with redpoll.connect(url, wait=True) as bus:
        assert not await bus.healthy()


def body(*records: object) -> bytes:
    """A message of records."""
    return bytes(get("msgpack").encode(list(records)))


HELLO = [p.HELLO, p.VERSION, "stranger", ""]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xc1",
        body(1),
        body([]),
        body([p.CREDIT, 1, 1]),
        body([p.HELLO, 99, "x", ""]),
        body(HELLO, [p.CREDIT, "1", 1]),
        body(HELLO, [p.PUBLISH]),
        body(HELLO, [p.CALL, 1, "declare", [{"nonsense": 1}, False]]),
        body(HELLO, [p.CALL, 1, "browse", ["q"]]),
        body(HELLO, [p.DONE, 1, 1, 1, 77, None, "", []]),
        body(HELLO, [p.PUBLISH, 1, "q", b"\1", False, 0, 0, None, None, None, True, False, None]),
        body(HELLO, [p.REPLY, 1, None]),
        body(HELLO, [p.WATCH, 1, bytes(5000)]),
    ],
)
async def test_hostile_records(sent: bytes) -> None:
    """A client that breaks the rules is cut off; others do not notice."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, Node(listen=False, serializer="raw") as stranger:
            await bus.queues.declare("q")
            lost: list[object] = []
            stranger.events.peer_lost = lambda _, error: lost.append(error)
            stranger.send(Message(sent, hub.hub.address), timeout=PATIENCE).add_done_callback(
                lambda each: each.exception()
            )
            await until(lambda: lost, "the end of the stranger's link")
            task = await bus.tasks.submit(1, queue="q", timeout=PATIENCE)
            assert await task.state() == "ready"


def test_records() -> None:
    """Records are packed into few messages, in order, and read again as they were."""
    records: list[list[Any]] = [[p.CREDIT, number, 1] for number in range(3000)] + [
        [p.TOLD, 1, 2, bytes(2**20)],
        [p.SETTLE],
    ]
    parts = list(p.pack(records))
    assert [len(part) for _, part in parts] == [1024, 1024, 953, 1]
    assert [each for _, part in parts for each in part] == records
    read = [each for data, _ in parts[:2] for each in p.unpack(data, p.FROM_CLIENTS)]
    assert read == records[:2048]


@pytest.mark.parametrize(
    "wrong",
    [[], {}, 1, [p.TOLD, 1, 2, b"x"], [p.CREDIT, 1, "2"], [p.CREDIT, 1], [str(p.CREDIT), 1, 2], [[], 1, 2]],
    ids=str,
)
def test_wrong_records(wrong: object) -> None:
    """A record of other types, of no kind, or that the other end says, is refused each time, whatever was right before."""
    right = [[p.CREDIT, 1, 2], [p.CREDIT, True, 2]]
    assert p.unpack(body(*right), p.FROM_CLIENTS) == right
    assert p.unpack(body([p.TOLD, 1, 2, b"x"]), p.FROM_HUB)
    for _ in range(2):
        with pytest.raises(ProtocolError):
            p.unpack(body([p.CREDIT, 1, 2], wrong), p.FROM_CLIENTS)


@pytest.mark.parametrize("error", [redpoll.NoRoute("q", "declare it"), redpoll.QueueFull(None, 3, "tasks", queue="q")])
def test_errors_travel(error: redpoll.RedpollError) -> None:
    """An error arrives as itself; one that is not known here as what the hub said."""
    made = p.rebuild_error(p.pack_error(error))
    assert (type(made), str(made), made.__dict__) == (type(error), str(error), error.__dict__)
    assert type(p.rebuild_error(["Exception", [], {}])) is ProtocolError
    assert type(p.rebuild_error([])) is ProtocolError


@pytest.mark.asyncio
async def test_cancelled_waits(tmp_path: Path) -> None:
    """Cancelling takes, publishes that wait for room, and closing leaves nothing behind."""
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        await bus.queues.declare(redpoll.bus.QueueSpec("q", max_length=1))
        await bus.tasks.submit(1, queue="q")
        waiting = asyncio.ensure_future(bus.tasks.submit(2, queue="q"))
        taking = asyncio.ensure_future(bus.tasks.next(queue="empty", timeout=None))
        await asyncio.sleep(0)
        for each in (waiting, taking):
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each
        assert (await bus.queues.inspect("q")).ready == 1


@pytest.mark.asyncio
async def test_calls_that_are_left_before_they_are_confirmed() -> None:
    """A call or stream whose caller leaves before the hub has confirmed it is not begun, or its handler is cancelled."""
    open_ = begun = 0

    class Endpoint:
        async def wait(self) -> None:
            async for _ in self.parts():
                pass

        async def parts(self) -> AsyncIterator[int]:
            nonlocal open_, begun
            open_ += 1
            begun += 1
            try:
                while True:
                    await asyncio.sleep(0)
                    yield begun
            finally:
                open_ -= 1

    async def first_of(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            pass

    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            server = other.rpc.serve("s", Endpoint())
            async with server:
                for count in range(24):
                    for call in (bus.rpc.call("s", "wait"), first_of(bus.rpc.stream("s", "parts"))):
                        calling = asyncio.ensure_future(call)
                        for _ in range(count):
                            await asyncio.sleep(0)
                        calling.cancel()
                        await asyncio.wait([calling])
                        del calling  # its traceback keeps the stream
                await until(lambda: begun > 0, "a call that was taken")
                await bus.queues.names()
                await until(lambda: open_ == 0, "the end of what was begun")


@pytest.mark.asyncio
async def test_a_call_that_is_left_in_the_turn_of_its_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of a call is cancelled also where its confirmation came in the turn in which its caller left."""
    begun, ended = asyncio.Event(), asyncio.Event()

    class Endpoint:
        async def wait(self) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async with asyncio.timeout(PATIENCE):
        with running() as hub:
            async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
                async with other.rpc.serve("s", Endpoint()):
                    take: Any = member._TAKE
                    replied = take[p.REPLY]

                    def leave(self: Any, number: int, value: Any) -> None:
                        if self is bus.engine:
                            calling.cancel()
                        replied(self, number, value)

                    monkeypatch.setitem(take, p.REPLY, leave)
                    calling = asyncio.ensure_future(bus.rpc.call("s", "wait"))
                    with suppress(asyncio.CancelledError):
                        await calling
                    await begun.wait()
                    await ended.wait()


@pytest.mark.asyncio
async def test_a_withdrawn_publish_is_forgotten() -> None:
    """A publish that was cancelled while it waited for room is settled, and is not sent again over a new link."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare(redpoll.bus.QueueSpec("q", max_length=1))
            first = await bus.tasks.submit(1, queue="q")
            waiting = asyncio.ensure_future(bus.tasks.submit(2, queue="q", dedup="second"))
            await asyncio.sleep(0)
            assert (await bus.queues.inspect("q")).waiting == 1
            waiting.cancel()
            await asyncio.wait([waiting])
            assert (await bus.queues.inspect("q")).waiting == 0
            await until(lambda: not bus.engine._requests, "the hub's answer")  # type: ignore[attr-defined]
            assert await first.state() == "ready"


@pytest.mark.asyncio
async def test_a_cancelled_watch_is_forgotten() -> None:
    """Watching a task keeps nothing where it is cancelled, sent or not, or before its answer is taken up."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            task = await other.tasks.submit(1, queue="q")
            engine: Any = bus.engine
            for count in range(4):
                watching = asyncio.ensure_future(engine.watch(task.id, OutcomeFuture()))
                for _ in range(count):
                    await asyncio.sleep(0)
                watching.cancel()
                await asyncio.wait([watching])
                assert not engine._watchers
            watching = asyncio.ensure_future(engine.watch(task.id, OutcomeFuture()))
            await until(lambda: watching._fut_waiter is None or watching._fut_waiter.done(), "the answer")
            watching.cancel()
            await asyncio.wait([watching])
            assert len(engine._watchers) == (not watching.cancelled())
            await until(lambda: not engine._requests, "the hub's answers")


@pytest.mark.asyncio
async def test_who_does_not_read_is_not_read() -> None:
    """Of a client that does not read what it is answered no more is taken over, until it does."""
    go = asyncio.Event()
    read = 0

    async def slow(_: object) -> None:
        nonlocal read
        read += 1
        await go.wait()

    with running() as hub:
        async with Node(slow, listen=False, serializer="raw", slots=1, window=1) as client:
            hello = body(HELLO, *([p.CALL, number, "queues", []] for number in range(1, 15_000)))
            await client.send(Message(body(HELLO), hub.hub.address), timeout=PATIENCE)
            first = client.send(Message(hello, hub.hub.address), timeout=PATIENCE)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(first), 0.2)
            assert read == 1
            go.set()
            await first
        assert read > 4


@pytest.mark.asyncio
async def test_outcomes_larger_than_the_queue_of_a_link() -> None:
    """Outcomes of one turn that are more bytes than may wait for a link all reach the hub: none is refused on the way."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            ready = asyncio.Barrier(8)

            async def handler(task: Any) -> bytes:
                await ready.wait()
                return bytes(12 * 2**20)

            async with bus.tasks.worker(handler, queue="large", concurrency=8):
                tasks = [await bus.tasks.submit(None, queue="large") for _ in range(8)]
                for task in tasks:
                    assert len(await task.result(timeout=PATIENCE)) == 12 * 2**20


@pytest.mark.asyncio
async def test_a_task_whose_input_cannot_be_read_does_not_begin() -> None:
    """It would begin with fewer outcomes than it comes after; as with an envelope that cannot be read, it is given up."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            engine: Any = bus.engine
            await bus.queues.declare("q")
            consumer = await engine.consume("q")
            good, bad = [bytes(16), 0, packed(Envelope("raw", b"1")), ""], [bytes(16), 0, b"\xc1", ""]
            for given in ([good, bad], [good]):
                engine._given(consumer.number, 7, given)
            with pytest.raises(DecodeError):
                engine._delivered(consumer.number, 7, bytes(16), 1, None, packed(Envelope("raw", b"2")))
            assert not engine._inputs


@pytest.mark.asyncio
async def test_consumers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has so many consumers and no more."""
    monkeypatch.setattr(requests, "_CONSUMERS", 2)
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            consumers = [await bus.engine.consume("q") for _ in range(2)]
            with pytest.raises(redpoll.QueueFull, match="2 consumers of a client"):
                await bus.engine.consume("q")
            await consumers[0].close()
            await bus.engine.consume("q")


@pytest.mark.asyncio
async def test_browsing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer has so many tasks, and bytes of them, and no more; one task always fits."""
    with running() as hub:
        async with redpoll.connect(hub.url, serializer="raw") as bus:
            for _ in range(5):
                await bus.tasks.submit(bytes(1_000), queue="q")
            monkeypatch.setattr(calls, "_BROWSED", 4)
            assert len(await bus.queues.browse("q", limit=10**9)) == 4
            for most, count in ((3_500, 3), (1, 1)):
                monkeypatch.setattr(calls, "_BROWSED_BYTES", most)
                assert len(await bus.queues.browse("q")) == count


@pytest.mark.asyncio
async def test_numbers_that_no_disk_takes(tmp_path: Path) -> None:
    """What a client asks for is bounded before it is stored: the hub goes on."""
    payload = packed(Envelope("raw", b"x"))
    async with Hub(tmp_path / "hub", port=0) as hub, redpoll.connect(hub.url) as bus:
        async with Node(listen=False, serializer="raw") as stranger:
            await stranger.send(Message(body(HELLO, [p.EVENT, 1, "s", payload, False, 2**63, None]), hub.address))
        await bus.queues.declare("q")
        assert await (await bus.tasks.submit(1, queue="q", timeout=PATIENCE)).state() == "ready"


@pytest.mark.asyncio
async def test_texts_that_cannot_be_sent() -> None:
    """Reasons that are no UTF-8 are sent escaped, such names are refused, and what is sent beside them is not lost."""

    async def handler(task: Any) -> Any:
        if task.data:
            raise DeadLettered(reason="\udcff")

    with running() as hub:
        async with redpoll.connect(hub.url) as bus, bus.tasks.worker(handler, queue="q"):
            given_up, done = await bus.tasks.submit_many([1, 0], queue="q")
            with pytest.raises(DeadLettered, match="udcff"):
                await given_up.result(timeout=PATIENCE)
            await done.result(timeout=PATIENCE)
            for verb in (bus.queues.inspect, bus.queues.purge, bus.queues.delete):
                beside = asyncio.ensure_future(bus.queues.names())
                with pytest.raises(ConfigError, match="cannot be sent as UTF-8"):
                    await verb("\udcff")
                assert "q" in await beside
            with pytest.raises(EncodeError):
                await bus.tasks.unschedule("\udcff")
            for name in ("\udcff", 5):
                for began in (bus.tasks.submit(1, queue=name), bus.tasks.next(queue=name).__aenter__()):  # type: ignore[arg-type]
                    with pytest.raises(ConfigError):
                        await began


@pytest.mark.asyncio
async def test_a_loss_that_the_hub_sees_first() -> None:
    """A client whose session is over at the hub, and not for itself, begins anew: its worker has tasks again."""
    with running(limits=Limits(grace=0.01)) as hub:
        async with redpoll.connect(hub.url) as bus, bus.tasks.worker(lambda task: task.data, queue="q"):
            assert await bus.tasks.run(1, queue="q", timeout=PATIENCE) == 1
            server = hub.hub
            (peer,) = server._clients
            hub.call(server.node.cut, peer, PeerLost(peer.address, "cut"))
            await until(lambda: not server._clients, "the end of its session")
            with suppress(NotConfirmed):  # it may have been under way
                await bus.tasks.run(2, queue="q", timeout=PATIENCE)
            assert await bus.tasks.run(3, queue="q", timeout=PATIENCE) == 3


def test_the_time_of_a_silent_worker(tmp_path: Path) -> None:
    """A hub loses a silent worker after four times 3.75 s, also with a config, unless that has a keepalive of its own."""
    for config, keepalive in ((None, 3.75), (Config(encryption=False), 3.75), (Config(keepalive=0.25), 0.25)):
        assert Hub(tmp_path, config=config)._config.keepalive == keepalive


@pytest.mark.asyncio
async def test_a_dropped_bus(caplog: pytest.LogCaptureFixture) -> None:
    """A bus that is dropped while it works and listens warns once, and its link and its signs of life end."""
    with running() as hub:
        bus = redpoll.connect(hub.url)
        await bus.__aenter__()
        await bus.tasks.worker(lambda task: task.data, queue="q").__aenter__()
        await bus.broadcast.subscribe(print, subject="a").__aenter__()
        await bus.broadcast.subscribe(print, durable="kept").__aenter__()
        assert await bus.tasks.run(1, queue="q", timeout=600) == 1
        await bus.tasks.submit(2, queue="other", timeout=600)
        assert len(hub.hub._clients) == len(life._members) == 1
        engine = weakref.ref(bus.engine)

        kept = [bus]
        del bus

        def collected() -> bool:
            kept.clear()
            gc.collect()
            return engine() is None

        with pytest.warns(ResourceWarning) as warned:
            # What is to be sent in this turn of the loop keeps it.
            await until(collected, "the end of what refers to it")
        assert [str(each.message) for each in warned] == [f"<HubEngine {hub.url} ready> was not closed"]
        assert not life._members
        await until(lambda: not hub.hub._clients, "the end of its link")
        await until(lambda: not member._released, "the end of the thread that gave its signs of life")
    assert not caplog.records


@pytest.mark.asyncio
@pytest.mark.parametrize("step", range(1, 7))
async def test_closing_that_is_cancelled(step: int) -> None:
    """A bus whose closing is cancelled, at whatever step, leaves no link, no sign of life and no task behind."""
    with running() as hub:
        bus = await redpoll.connect(hub.url).__aenter__()
        await bus.tasks.worker(lambda task: task.data, queue="q").__aenter__()
        closing = asyncio.ensure_future(bus.engine.close())
        await turns(step)
        closing.cancel()
        await asyncio.wait([closing])
        await until(lambda: bus.state is EngineState.CLOSED, "its end")
        await until(lambda: not hub.hub.node.is_connected, "the end of its links")
        await until(lambda: not member._released, "the end of what releases them")
        assert not life._members
        await bus.close()


def test_a_bus_that_is_dropped_with_its_loop() -> None:
    """A bus that is dropped when its loop is closed warns, and its signs of life end."""

    async def leave(url: str) -> None:
        bus = redpoll.connect(url)
        await bus.__aenter__()
        await bus.tasks.worker(lambda task: task.data, queue="q").__aenter__()

    def run(url: str) -> None:
        asyncio.run(leave(url))
        gc.collect()

    with running() as hub:
        with pytest.warns(ResourceWarning) as warned:
            run(hub.url)
        assert f"<HubEngine {hub.url} ready> was not closed" in [str(each.message) for each in warned]
        assert not life._members


@pytest.mark.asyncio
async def test_a_claim_is_held_over_a_lost_link_and_given_back_when_it_is_cancelled() -> None:
    """A task is claimed by its id, by one client; it stays so over a lost link, and not when the claim is cancelled."""
    with running() as hub:
        async with FaultProxy(hub.url.removeprefix("redpoll://")) as way:
            first, second = HubEngine([way.address]), HubEngine([Address.parse(hub.url.removeprefix("redpoll://"))])
            async with first, second:
                await first.declare(QueueSpec("q"))
                receipts = [await second.publish(Envelope("raw", b""), queue="q") for _ in range(2)]
                one, other = [await each.consume("q", credit=0, sink=bool) for each in (first, second)]
                delivery = await first.claim(one, receipts[0].id)
                assert isinstance(delivery, HubDelivery)
                assert (delivery.id, delivery.attempt, delivery.left) == (receipts[0].id, 1, None)
                assert await second.claim(other, receipts[0].id) == "busy"
                way.cut("rst")
                assert await delivery.ack()
                assert await second.claim(other, receipts[0].id) == "ended"
                assert await second.claim(other, "another-1-0000000000000000") == "unknown"
                claiming = asyncio.ensure_future(first.claim(one, receipts[1].id))
                await asyncio.sleep(0)
                claiming.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await claiming
                async with asyncio.timeout(PATIENCE):
                    while not isinstance(await second.claim(other, receipts[1].id), HubDelivery):  # noqa: ASYNC110  # nothing tells
                        await asyncio.sleep(0.01)
                assert (await second.lookup(receipts[1].id)).state == "taken"
