"""What a hub answers to requests that it cannot carry out, and what it says to clients that break the rules."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

import redpoll
from redpoll import Config, Message, Node
from redpoll.bus import OutcomeKind, QueueSpec
from redpoll.bus.broker import Limits
from redpoll.bus.broker.admin import Admin
from redpoll.bus.broker.outputs import Write
from redpoll.bus.broker.queues import Queues
from redpoll.bus.broker.work import Work
from redpoll.bus.engines.hub import clients
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.bodies import File
from redpoll.bus.engines.hub.disk import DiskStore
from redpoll.bus.engines.hub.handles import packed
from redpoll.bus.engines.hub.opening import open_store
from redpoll.bus.engines.hub.server import HubServer
from redpoll.bus.envelope import Envelope
from redpoll.errors import BusError, QueueFull, StoreError
from redpoll.wire.handshake import Handshake
from tests.bus.engines.hub.memory_store import MemoryStore
from tests.bus.engines.hub.support import Running, running
from tests.bus.engines.hub.test_hub import HELLO, body
from tests.node.support import PATIENCE, elapse, turns, until

PAYLOAD = packed(Envelope("raw", b"x"))
PLAIN = (0, 0.0, None, None, None, True, False, None)


class Client:
    """A client that says what it likes, and keeps what it is answered."""

    def __init__(self, hub: Running) -> None:
        self.heard: list[Any] = []
        self.node: Node[Any] = Node(self._take, listen=False, serializer="raw")
        self._address = hub.hub.address

    def _take(self, message: Message[Any]) -> None:
        self.heard += p.unpack(message.data, p.FROM_HUB)

    async def say(self, *records: object) -> None:
        """Send records."""
        await self.node.send(Message(body(*records), self._address), timeout=PATIENCE)

    async def answer(self, request: int) -> tuple[int, Any]:
        """Wait for the answer to a request: its kind, and the value or the error."""
        await until(lambda: self._answers(request), "an answer")
        (kind, _, value), *_ = self._answers(request)
        return kind, p.rebuild_error(value) if kind == p.FAILED else value

    def _answers(self, request: int) -> list[Any]:
        return [each for each in self.heard if each[0] in {p.REPLY, p.FAILED} and each[1] == request]


@pytest.mark.asyncio
async def test_a_goodbye_does_not_look_at_all_tasks() -> None:
    """A client that leaves while it watches a task costs the hub no look at each task; nobody is told of its end."""

    class Tasks(dict[int, Any]):
        def values(self) -> Any:
            raise AssertionError("all tasks are looked at")

    with running() as hub:
        async with redpoll.connect(hub.url) as other:
            async with redpoll.connect(hub.url) as bus:
                handle = await bus.tasks.submit(1, queue="q")
            broker = hub.hub.broker
            broker.tasks.found = Tasks(broker.tasks.found)
            async with redpoll.connect(hub.url) as bus:
                watched = bus.tasks.handle((await bus.tasks.submit(2, queue="q")).id)
                with pytest.raises(TimeoutError):
                    await watched.result(timeout=0.01)
            await until(lambda: len(broker.peers.found) == 1, "the end of the second client")
            assert await other.tasks.handle(watched.id).cancel() == "withdrawn"
            assert await other.tasks.handle(handle.id).cancel() == "withdrawn"


@pytest.mark.asyncio
@pytest.mark.parametrize(("grace", "sent"), [(0.5, 3), (0.25, 1)])
async def test_nothing_is_sent_ahead_with_a_short_grace(grace: float, sent: int) -> None:
    """A hub that gives tasks of a lost worker away before that has to stop beginning them sends it none ahead."""
    with running(limits=Limits(grace=grace)) as hub:
        client = Client(hub)
        async with client.node:
            await client.say(HELLO, [p.CALL, 1, "declare", [{"name": "q"}, False]])
            await client.say([p.CONSUME, 2, 9, "q", 1, False, False, True], [p.AHEAD, 9, 4])
            for request in (3, 4, 5):
                await client.say([p.PUBLISH, request, "q", PAYLOAD, False, *PLAIN])
            await client.answer(5)
            assert sum(each[0] == p.DELIVER for each in client.heard) == sent


@pytest.mark.asyncio
async def test_what_was_handed_out_comes_before_the_answer_that_tasks_are_back() -> None:
    """Tasks that a hub sent ahead before it took tasks back go back too: a worker knows it by that, and keeps the order."""
    with running() as hub:
        client = Client(hub)
        async with client.node:
            await client.say(HELLO, [p.CALL, 1, "declare", [{"name": "q"}, False]])
            await client.say([p.CONSUME, 2, 9, "q", 1, False, False, True], [p.AHEAD, 9, 1])
            for request in (3, 4, 5):
                await client.say([p.PUBLISH, request, "q", PAYLOAD, False, *PLAIN])
            await client.answer(5)
            first, second = (each[2] for each in client.heard if each[0] == p.DELIVER)
            await client.say([p.DONE, 6, 9, first, int(OutcomeKind.RESULT), None, "", []], [p.BACK, 7, 9, [second]])
            await client.answer(7)
            said = [each[:2] for each in client.heard if each[:2] in ([p.DELIVER, 9], [p.REPLY, 7])]
            assert said[2:4] == [[p.DELIVER, 9], [p.REPLY, 7]]


@pytest.mark.asyncio
async def test_what_nobody_waits_for_is_said_with_the_next_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirmations of a worker that goes on, and of calls, are said with what comes next, or soon; others at once."""
    spec, call = {"name": "c", "durable": False}, (0, 0.0, None, None, None, False, False, None)
    with running() as hub:
        client = Client(hub)
        async with client.node:
            await client.say(
                HELLO, [p.CALL, 1, "declare", [{"name": "q"}, False]], [p.CALL, 2, "declare", [spec, False]]
            )
            await client.say(
                [p.CONSUME, 3, 7, "q", 2, False, False, True], [p.CONSUME, 4, 8, "c", 1, False, False, False]
            )
            for request, queue in ((5, "q"), (6, "c"), (7, "q")):
                await client.say([p.PUBLISH, request, queue, PAYLOAD, False, *PLAIN])
            await client.answer(7)
            await until(lambda: sum(each[0] == p.DELIVER for each in client.heard) == 3, "the tasks")
            tokens = {7: [each[2] for each in client.heard if each[:2] == [p.DELIVER, 7]]}
            tokens[8] = [each[2] for each in client.heard if each[:2] == [p.DELIVER, 8]]
            monkeypatch.setattr("redpoll.bus.engines.hub.clients._LATE", 600.0)
            await client.say([p.DONE, 8, 7, tokens[7][0], 0, None, "", []])
            await client.say([p.PUBLISH, 9, "c", PAYLOAD, True, *call])
            await turns(200)
            assert not client._answers(8)
            assert not client._answers(9)
            await client.say([p.DONE, 10, 8, tokens[8][0], 0, None, "", []])
            assert await client.answer(10) == (p.REPLY, True)
            assert [each[1] for each in client.heard[-4:] if each[0] == p.REPLY][-3:] == [8, 9, 10]
            await client.say([p.PUBLISH, 11, "c", PAYLOAD, True, *call])
            (there,) = hub.hub._clients.values()
            left: list[int] = []

            def fire() -> None:
                # As the timer does, first the one that was set for 8.
                there._flush_late()
                left.append(len(there._waiting))

            hub.call(fire)
            await until(lambda: left, "the timer")
            hub.call(fire)
            assert await client.answer(11) == (p.REPLY, [ANY, False])
            # The answer may be here before the hub's thread goes on.
            await until(lambda: len(left) > 1, "the timer")
            assert left == [1, 0]
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, bus.tasks.worker(lambda _: None, "q"):
            await bus.tasks.run(1, "q")
            engine: Any = bus.engine
            await until(lambda: not engine._requests, "the confirmation, which comes by itself")


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [TypeError("a defect"), ValueError("a defect"), KeyError("a defect")])
async def test_a_defect_of_the_hub(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its traceback, and answered as an internal error; the client goes on, and so does the hub."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    async def fail_later(*_: Any) -> None:
        raise error

    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            monkeypatch.setattr(Queues, "pause", fail)
            monkeypatch.setattr(Work, "consume", fail)
            monkeypatch.setattr(MemoryStore, "check", fail_later)
            engine: Any = bus.engine
            for verb, what in (
                (lambda: bus.queues.pause("q"), "'pause'"),
                (lambda: engine.consume("q"), f"{p.CONSUME}"),
                (engine.check, "'check'"),
            ):
                with pytest.raises(BusError, match=f"internal error of the hub at {what}"):
                    await verb()
            assert caplog.text.count(repr(error)[:4]) >= 3
            assert caplog.text.count("Traceback") == 3
            assert await bus.healthy()


@pytest.mark.asyncio
async def test_defects_of_the_hub_do_not_fill_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect is logged once for a time and kind of request, and the rest is counted; each request is answered."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("redpoll.node.reports._WARN_EVERY", 1_000.0)
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            monkeypatch.setattr(Queues, "pause", fail)
            monkeypatch.setattr(Work, "consume", fail)
            for _ in range(20):
                with pytest.raises(BusError, match="internal error"):
                    await bus.queues.pause("q")
                with pytest.raises(BusError, match="internal error"):
                    await bus.engine.consume("q")
            assert caplog.text.count("Traceback") == 2
    assert caplog.text.count("Traceback") == 4
    assert caplog.text.count("(19 times since the last report)") == 2


@pytest.mark.asyncio
async def test_what_breaks_the_rules_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for which the hub expels its client fails with the reason; the client is back, and does not repeat it."""
    expelled: list[object] = []
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            server = hub.hub
            expel = server._expel

            def count(*each: Any) -> None:
                expelled.append(each)
                expel(*each)

            monkeypatch.setattr(server, "_expel", count)
            engine: Any = bus.engine
            with pytest.raises(redpoll.NotConfirmed, match="expected the settings of a queue, not \\['nonsense'\\]"):
                await engine._call("declare", {"nonsense": 1}, False)
            await bus.queues.declare("q")
            assert len(expelled) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["broadcast", "notification", "task"])
async def test_what_may_have_been_sent_is_not_sent_again(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broadcast or task, or a notification without retries, whose confirmation is lost fails so, and is there once."""
    heard: list[object] = []
    with running() as hub:
        async with redpoll.connect(hub.url) as bus, redpoll.connect(hub.url) as other:
            await other.queues.declare("q")
            verbs: dict[str, Any] = {
                "broadcast": lambda: bus.broadcast.send(1, subject="s"),
                "notification": lambda: bus.notifier("p", topics=["t"], retry=0).info("e", 1),
                "task": lambda: bus.tasks.submit(1, queue="q"),
            }

            class Endpoint:
                def info(self, notification: Any) -> None:
                    """Take one."""
                    heard.append(notification)

            async with (
                other.broadcast.subscribe(heard.append, subject="s"),
                other.notifications.listen(Endpoint(), topics=["t"]),
                other.tasks.worker(heard.append, queue="q"),
            ):
                turns_ = hub.hub._turns
                reply = turns_.reply

                def lose(client: Any, *answer: Any, **how: Any) -> None:
                    if client.member.owner is client and not client.consumers and not client.subscriptions:
                        monkeypatch.undo()
                        hub.hub._forget(client, goodbye=False)
                        hub.hub._dismiss(client.peer, BusError("the link is lost"))
                    else:
                        reply(client, *answer, **how)

                monkeypatch.setattr(turns_, "reply", lose)
                with pytest.raises(redpoll.NotConfirmed):
                    await asyncio.wait_for(verbs[what](), PATIENCE)
                await bus.queues.declare("later")
                await until(lambda: heard, "what was sent")
                await bus.broadcast.send(2, subject="other")
                await turns()
            assert len(heard) == 1


@pytest.mark.asyncio
async def test_numbers_of_publishes() -> None:
    """Two publishes that wait for room are not taken for each other: each has a number, and none is used twice."""
    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare(QueueSpec("q", max_length=1, topics=("s",)))
            await bus.tasks.submit(1, queue="q")
            for number, again in (
                (7, [p.PUBLISH, 7, "q", PAYLOAD, False, *PLAIN]),
                (8, [p.EVENT, 8, "s", PAYLOAD, False, 0, None]),
                (0, [p.PUBLISH, 0, "q", PAYLOAD, False, *PLAIN]),
            ):
                client = Client(hub)
                async with client.node:
                    await client.say([p.HELLO, p.VERSION, f"client {number}", ""])
                    if number:
                        await client.say([p.PUBLISH, number, "q", PAYLOAD, False, *PLAIN])
                    await client.say(again)
                    kind, error = await client.answer(0)
                    assert (kind, type(error)) == (p.FAILED, redpoll.ProtocolError)
                    assert str(error).startswith(f"protocol error: request {number} ")
            assert (await bus.queues.inspect("q")).waiting == 0


@pytest.mark.asyncio
async def test_a_client_is_told_what_it_did() -> None:
    """A client whose call has wrong arguments is told which, before its link is closed."""
    with running() as hub:
        for arguments, problem in (
            (["q"], "call 'browse' has 1 arguments, 3 expected"),
            ([5, "ready", 1], "argument 1 of call 'browse' has the wrong type int: 5"),
        ):
            client = Client(hub)
            async with client.node:
                await client.say(HELLO, [p.CALL, 1, "browse", arguments])
                _, error = await client.answer(0)
                assert (type(error), str(error)) == (redpoll.ProtocolError, f"protocol error: {problem}")
        async with redpoll.connect(hub.url) as bus:
            with pytest.raises(redpoll.UsageError, match="argument 2 of call 'pause' has the wrong type str: 'yes'"):
                await bus.engine.pause("q", "yes")  # type: ignore[arg-type]
            assert await bus.healthy()


class Deaf(Client):
    """A client that reads nothing until it is told to."""

    def __init__(self, hub: Running, window: int) -> None:
        super().__init__(hub)
        self.go = asyncio.Event()
        self.node = Node(self._wait, listen=False, serializer="raw", slots=1, window=window)

    async def _wait(self, message: Message[Any]) -> None:
        await self.go.wait()
        self._take(message)


@pytest.mark.asyncio
async def test_answers_of_one_message_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls one message has, no more are begun, or encoded, than the client reads; all are answered in order."""
    monkeypatch.setattr(clients, "_WAITING_BYTES", 200_000)
    browsed: list[int] = []
    browse = Admin.browse

    def count(self: Admin, *arguments: Any) -> Any:
        browsed.append(1)
        return browse(self, *arguments)

    monkeypatch.setattr(Admin, "browse", count)
    with running() as hub:
        async with redpoll.connect(hub.url, serializer="raw") as bus:
            await bus.tasks.submit(bytes(50_000), queue="q")
        client = Deaf(hub, 1)
        async with client.node:
            await client.say(HELLO)
            calls = [[p.CALL, number, "browse", ["q", "ready", 1]] for number in range(1, 31)]
            said = asyncio.ensure_future(client.say(*calls))
            later = asyncio.ensure_future(client.say([p.CALL, 31, "queues", []]))
            await until(lambda: len(browsed) >= 4, "calls")
            await turns(50)
            assert len(browsed) < 10
            client.go.set()
            await said
            await later
            await client.answer(31)
            assert [each[1] for each in client.heard if each[0] == p.REPLY] == [*range(1, 32)]
            assert len(browsed) == 30


@pytest.mark.asyncio
async def test_no_more_is_encoded_than_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes that a client asks for in one message are encoded as it reads them."""
    sent: list[int] = []
    with running() as hub:
        async with redpoll.connect(hub.url, serializer="raw") as bus:
            async with bus.tasks.worker(lambda task: task.data, queue="q"):
                tasks = [await bus.tasks.submit(bytes(2**20), queue="q") for _ in range(6)]
                for task in tasks:
                    await task.result(timeout=PATIENCE)
            numbers = [bus.engine._number(each.id) for each in tasks]  # type: ignore[attr-defined]
        client = Deaf(hub, 4)
        async with client.node:
            await client.say(HELLO)
            node = hub.hub.node
            post = node.post

            def count(peer: Any, body: Any, ended: Any) -> None:
                sent.append(len(body))
                post(peer, body, ended)

            monkeypatch.setattr(node, "post", count)
            said = asyncio.ensure_future(
                client.say(*([p.WATCH, at, p.id_bytes(number)] for at, number in enumerate(numbers, 1)))
            )
            await until(lambda: sent, "an outcome")
            await turns(50)
            # Its window takes the greeting and the welcome too.
            assert len(sent) <= 3
            client.go.set()
            await said
            await until(lambda: sum(each[0] == p.OUTCOME for each in client.heard) == 6, "all outcomes")


@pytest.mark.asyncio
async def test_calls_that_take_a_while_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that wait for the store so many are begun, and no more; what is behind them waits for its turn."""
    begun: list[int] = []
    go = threading.Event()

    async def check(self: MemoryStore) -> list[str]:
        begun.append(1)
        while not go.is_set():  # noqa: ASYNC110  # of another thread
            await asyncio.sleep(0.001)
        return []

    monkeypatch.setattr(MemoryStore, "check", check)
    with running() as hub:
        client = Client(hub)
        async with client.node:
            await client.say(HELLO)
            said = asyncio.ensure_future(client.say(*([p.CALL, number, "check", []] for number in range(1, 41))))
            await until(lambda: begun, "the first")
            await turns(50)
            assert len(begun) == 16
            go.set()
            await said
            await client.answer(40)
            assert len(begun) == 40


class Closing(MemoryStore):
    """A store that takes its time to close, and counts what is written meanwhile."""

    def __init__(self, kept: list[Write]) -> None:
        super().__init__(kept)
        self.closing = threading.Event()
        self.go = threading.Event()
        self.late: list[Write] = []

    def write(self, writes: list[Write], done: Any, *rest: Any, soon: bool = True) -> None:
        """Write."""
        if self.closing.is_set():
            self.late += writes
        super().write(writes, done, *rest, soon=soon)

    async def close(self) -> None:
        """Close, when told to."""
        self.closing.set()
        while not self.go.is_set():  # noqa: ASYNC110  # of another thread
            await asyncio.sleep(0.001)


class Patient(MemoryStore):
    """A store that leaves alone what nobody waits for until somebody does."""

    def __init__(self) -> None:
        super().__init__([])
        self.left: list[Any] = []
        self.sizes: list[int] = []

    def write(self, writes: list[Write], done: Any, *rest: Any, soon: bool = True) -> None:
        """Write."""
        self.left.append((writes, done))
        if soon:
            left, self.left = self.left, []
            self.sizes.append(len(left))
            for each in left:
                super().write(*each, *rest)


@pytest.mark.asyncio
async def test_the_end_of_a_task_waits_for_the_next_confirmation() -> None:
    """Nobody waits for the end of a task without an outcome; a confirmation of another one, or of what is known, takes it."""
    store = Patient()
    again = (*PLAIN[:4], "key", *PLAIN[5:])
    with running(store) as hub:
        client = Client(hub)
        async with client.node:
            await client.say(HELLO, [p.CALL, 1, "declare", [{"name": "q"}, False]])
            await client.say([p.CONSUME, 2, 9, "q", 4, False, False, True])
            for request, how in ((3, PLAIN), (4, again)):
                await client.say([p.PUBLISH, request, "q", PAYLOAD, False, *how])
            await client.answer(4)
            await until(lambda: sum(each[0] == p.DELIVER for each in client.heard) == 2, "the tasks")
            first, second = (each[2] for each in client.heard if each[0] == p.DELIVER)
            store.sizes.clear()
            for request, token, how in ((5, first, PLAIN), (7, second, again)):
                await client.say([p.DONE, request, 9, token, int(OutcomeKind.RESULT), None, "", []])
                await until(lambda: store.left, "the end of a task")
                assert not client._answers(request)
                await client.say([p.PUBLISH, request + 1, "q", PAYLOAD, False, *how])
                assert (await client.answer(request + 1))[0] == p.REPLY
                assert await client.answer(request) == (p.REPLY, True)
            assert store.sizes == [2, 2]


@pytest.mark.asyncio
async def test_nothing_is_taken_over_while_the_store_closes() -> None:
    """What comes then is refused as not begun, so that its client says it again to the hub after the restart."""
    kept: list[Write] = []
    store = Closing(kept)
    hub = Running(store)
    port = hub.hub.address.port
    async with redpoll.connect(hub.url) as bus:
        await bus.queues.declare(QueueSpec("q", ttl=0.05))
        await bus.tasks.submit(1, queue="q")
        stopping = asyncio.ensure_future(asyncio.to_thread(hub.stop))
        await until(store.closing.is_set, "the end")
        submitting = asyncio.ensure_future(bus.tasks.submit(2, queue="q", timeout=PATIENCE))
        # The first one's time is over by then.
        await elapse(0.1)
        assert not submitting.done()
        store.go.set()
        await stopping
        assert not store.late
        hub = Running(MemoryStore(kept, store.name, 2), port=port)
        await submitting
        await until(lambda: bus.state is redpoll.bus.EngineState.READY, "the restart")
    await asyncio.to_thread(hub.stop)


@pytest.mark.asyncio
async def test_clients_are_told_of_a_failed_disk() -> None:
    """A hub that ends because its disk failed says so to its clients, not that it is restarting."""
    store = MemoryStore()
    server = HubServer(store, Config(port=0, serializer="raw"))
    await server.start()
    async with redpoll.connect(f"redpoll://{server.address}") as bus:
        assert store.failed is not None
        store.failed(StoreError("hub", "cannot be written"))
        await server.close()
        await until(lambda: bus.state is redpoll.bus.EngineState.RECONNECTING, "the end")
        assert bus.status.reason == "the hub ends, as its disk failed: its log says how"


@pytest.mark.asyncio
async def test_a_burst_without_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more tasks at once than the disk has room for some are refused as never sent; the hub continues with the others."""
    go, commit, write = threading.Event(), DiskStore._commit, File.write
    files = [tmp_path / name for name in ("hub.bodies", "hub.reserve")]

    def free() -> int:
        return 3 * 2**20 - sum(each.stat().st_size for each in files if each.exists())

    def slow(store: DiskStore, statements: list[Any]) -> None:
        assert go.wait(PATIENCE)
        commit(store, statements)

    def write_to_disk(file: File, offset: int, data: Any) -> None:
        if len(data) > free():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, offset, data)

    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": free()}))
    monkeypatch.setattr(File, "write", write_to_disk)
    hub = HubServer(open_store(tmp_path, reserve=2**20), Config(port=0, serializer="raw"))
    await hub.start()
    async with redpoll.connect(f"redpoll://{hub.address}", serializer="raw") as bus:
        await bus.tasks.submit(b"first", queue="q")
        with monkeypatch.context() as context:
            context.setattr(DiskStore, "_commit", slow)
            submits = [asyncio.ensure_future(bus.tasks.submit(bytes(100_000), queue="q")) for _ in range(60)]
            found = hub.broker.tasks.found
            await until(lambda: len(found) + sum(each.done() for each in submits) == 61, "what the hub says to all")
            go.set()
            answers = await asyncio.gather(*submits, return_exceptions=True)
        refused = [each for each in answers if isinstance(each, QueueFull)]
        taken = [each for each in answers if not isinstance(each, BaseException)]
        assert len(refused) + len(taken) == 60
        assert min(len(refused), len(taken)) > 9
        assert {(each.sent, "the disk of the hub is full" in str(each)) for each in refused} == {(False, True)}
        await bus.tasks.submit(b"last", queue="q")
        assert not hub.failed.done()
    await hub.close()
    store = open_store(tmp_path, reserve=2**20)
    assert len(list(store.load_tasks())) == len(taken) + 2
    await store.close()


@pytest.mark.asyncio
async def test_what_a_full_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose disk is full refuses what it would store: tasks, chains, and events; what is not stored passes."""
    event, heard = Envelope("raw", b"x"), list[Any]()
    async with redpoll.Hub(tmp_path, port=0) as hub, redpoll.connect(hub.url) as bus:
        await bus.queues.declare("q")
        await bus.queues.declare(QueueSpec("bound", topics=("a.*",)))
        await bus.queues.declare(QueueSpec("passing", durable=False, topics=("b.*",)))
        await bus.engine.subscribe(["a.*", "b.*"], sink=heard.append)
        with monkeypatch.context() as context:
            context.setattr(DiskStore, "has_room", lambda *_: False)
            for refused in (
                bus.engine.publish(event, queue="q"),
                bus.tasks.chain("x", "q").then("y", "q").submit(),
                bus.engine.publish(event, subject="a.b"),
                bus.engine.publish(event, subject="b.c", last=1),
            ):
                with pytest.raises(QueueFull, match="as the disk of the hub is full"):
                    await refused
            await bus.engine.publish(event, queue="passing")
            await bus.engine.publish(event, subject="b.c")
            await until(lambda: heard, "the event")
        await bus.engine.publish(event, queue="q")
        await bus.engine.publish(event, subject="a.b")
        ready = [(await bus.queues.inspect(name)).ready for name in ("q", "bound", "passing")]
        await until(lambda: len(heard) == 2, "the other event")
    assert ready == [1, 1, 2]
    assert [each.subject for each in heard] == ["b.c", "a.b"]


@pytest.mark.asyncio
async def test_a_schedule_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a schedule are left out while the disk is full, except for a queue that is not stored; then they come."""
    asked: list[int] = []

    def full(_: DiskStore, size: int) -> bool:
        asked.append(size)
        return False

    async with redpoll.Hub(tmp_path, port=0) as hub, redpoll.connect(hub.url) as bus:
        await bus.queues.declare("q")
        await bus.queues.declare(QueueSpec("passing", durable=False))
        for name in ("q", "passing"):
            await bus.tasks.schedule(name, "x", queue=name, every=0.1)
        found = hub._running().broker.queues.found
        with monkeypatch.context() as context:
            context.setattr(DiskStore, "has_room", full)
            before = found["q"].count
            await until(lambda: len(asked) > 2, "three times")
            assert found["q"].count == before
            await until(lambda: found["passing"].count, "the task that is not stored")
        await until(lambda: found["q"].count > before, "the next time")


@pytest.mark.asyncio
async def test_what_takes_no_room_on_the_disk() -> None:
    """What a hub refuses, and events that it does not store, leave the room on its disk to the tasks of the same turn."""

    class Small(MemoryStore):
        def has_room(self, size: int) -> bool:
            return size <= 10_000

    large = packed(Envelope("raw", bytes(9_900)))
    with running(Small()) as hub:
        client = Client(hub)
        async with redpoll.connect(hub.url) as bus, client.node:
            await bus.queues.declare("q")
            await client.say(HELLO)
            await client.say(
                *([p.EVENT, number, "s", large, False, 0, None] for number in (1, 2)),
                *([p.PUBLISH, number, "q", large, False, *PLAIN] for number in (3, 4)),
                *([p.PUBLISH, number, "q", PAYLOAD, False, *PLAIN] for number in (5, 6)),
            )
            answers = [await client.answer(number) for number in range(1, 7)]
            assert [kind for kind, _ in answers] == [p.REPLY] * 2 + [p.FAILED] * 2 + [p.REPLY] * 2
            assert (await bus.queues.inspect("q")).ready == 2


@pytest.mark.asyncio
async def test_many_watches_of_stored_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many stored outcomes that are asked for at once sixteen are read at a time, and each is told."""
    open_ = most = 0
    read = DiskStore.outcome

    async def outcome(self: DiskStore, number: int) -> Any:
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        await until(lambda: most >= 16, "sixteen of them")
        found = await read(self, number)
        open_ -= 1
        return found

    monkeypatch.setattr(DiskStore, "outcome", outcome)
    async with redpoll.Hub(tmp_path, port=0) as hub, redpoll.connect(hub.url) as bus:
        async with bus.tasks.worker(lambda task: task.data, queue="q"):
            made = await bus.tasks.submit_many(range(100), queue="q")
            for each in made:
                await each.result(timeout=PATIENCE)
    async with redpoll.Hub(tmp_path, port=0) as hub, redpoll.connect(hub.url) as bus:
        found = [bus.tasks.handle(each.id, queue="q").result(timeout=PATIENCE) for each in made]
        assert await asyncio.gather(*found) == list(range(100))
    assert most == 16


@pytest.mark.asyncio
async def test_a_store_that_does_not_close() -> None:
    """The node is stopped, and clients are told, also where the store fails at its end; the failure is raised."""

    class Failing(MemoryStore):
        async def close(self) -> None:
            raise StoreError("hub", "is full")

    server = HubServer(Failing(), Config(port=0, serializer="raw"))
    await server.start()
    async with redpoll.connect(f"redpoll://{server.address}") as bus:
        with pytest.raises(StoreError, match="is full"):
            await server.close()
        assert not server.node.listening
        await until(lambda: "restarting" in (bus.status.reason or ""), "the reason")


@pytest.mark.asyncio
async def test_tasks_of_a_client_that_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing is given so many bytes of tasks and no more; all come when it reads, each once."""
    monkeypatch.setattr(clients, "_DELIVERED", 100_000)
    go = asyncio.Event()
    tokens: list[int] = []

    async def slow(message: Message[Any]) -> None:
        for record in p.unpack(message.data, p.FROM_HUB):
            if record[0] == p.DELIVER:
                tokens.append(record[2])
                await go.wait()

    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            await bus.tasks.submit_many([bytes(10_000)] * 300, queue="q")
            async with Node(slow, listen=False, serializer="raw", slots=1, window=1) as client:
                hello = body([p.HELLO, p.VERSION, "w", ""], [p.CONSUME, 1, 7, "q", 1_000, False, False, True])
                await client.send(Message(hello, hub.hub.address), timeout=PATIENCE)
                await until(lambda: tokens, "a task")
                taken = (await bus.queues.inspect("q")).taken
                # One message that is written, and as much behind it.
                assert 10 <= taken <= 25
                go.set()
                await until(lambda: len(tokens) == 300, "the other tasks")
            assert len(set(tokens)) == 300


@pytest.mark.asyncio
async def test_a_client_that_is_always_behind_gets_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was given as many bytes as it may be gets further tasks when half of them are sent to it."""
    monkeypatch.setattr(clients, "_DELIVERED", 200_000)
    monkeypatch.setattr(p, "_FULL", 1)

    class Reads(asyncio.Semaphore):
        given = 0

        def release(self) -> None:
            self.given += 1
            super().release()

    reads = Reads(0)
    tokens: list[int] = []

    async def slow(message: Message[Any]) -> None:
        for record in p.unpack(message.data, p.FROM_HUB):
            if record[0] == p.DELIVER:
                tokens.append(record[2])
                await reads.acquire()

    with running() as hub:
        async with redpoll.connect(hub.url) as bus:
            await bus.queues.declare("q")
            await bus.tasks.submit_many([bytes(10_000)] * 100, queue="q")
            async with Node(slow, listen=False, serializer="raw", slots=1, window=1) as client:
                hello = body([p.HELLO, p.VERSION, "w", ""], [p.CONSUME, 1, 7, "q", 1_000, False, False, True])
                await client.send(Message(hello, hub.hub.address), timeout=PATIENCE)
                for read in range(1, 100):
                    await until(lambda: len(tokens) > reads.given, "a task")
                    # Of the 20 or so that may wait, more than a few do, always.
                    async with asyncio.timeout(PATIENCE):
                        taken = 0
                        while taken < min(read + 7, 100):
                            taken = (await bus.queues.inspect("q")).taken
                    assert taken <= read + 25
                    reads.release()
            assert len(set(tokens)) == 99


@pytest.mark.asyncio
async def test_a_client_that_is_always_behind_gets_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that lost events, as too many bytes waited for it, gets new ones once it has read some, not all."""
    monkeypatch.setattr(clients, "_WAITING_BYTES", 200_000)
    monkeypatch.setattr(p, "_FULL", 1)
    reads = asyncio.Semaphore(0)
    events: list[int] = []

    async def slow(message: Message[Any]) -> None:
        for record in p.unpack(message.data, p.FROM_HUB):
            if record[0] == p.EVENTS:
                events.append(record[3][-1])
                await reads.acquire()

    with running() as hub:
        async with redpoll.connect(hub.url) as bus:

            async def publish(numbers: range) -> None:
                for number in numbers:
                    await bus.engine.publish(Envelope("raw", bytes(10_000) + bytes([number])), subject="s")

            async with Node(slow, listen=False, serializer="raw", slots=1, window=1) as client:
                hello = body([p.HELLO, p.VERSION, "w", ""], [p.SUBSCRIBE, 1, 7, ["s"], False])
                # The answer to a call waits, too.
                call = body([p.CALL, 2, "queues", []])
                await client.send(Message(hello, hub.hub.address), timeout=PATIENCE)
                await publish(range(1))
                await until(lambda: events, "the first event")
                await client.send(Message(call, hub.hub.address), timeout=PATIENCE)
                await publish(range(1, 40))
                (said,) = [each for each in hub.hub._clients.values() if each.subscriptions]
                assert said.full
                for _ in range(10):
                    reads.release()
                await until(lambda: len(events) == 11, "ten events")
                assert said._waiting
                await publish(range(40, 45))
                for _ in range(60):
                    reads.release()
                await until(lambda: 44 in events, "the last event")
                assert events == [*range(len(events) - 5), *range(40, 45)]
                assert 20 < len(events) < 30
                await until(lambda: not said._waiting and not said._bytes, "all to be sent")
                assert not said._owed


@pytest.mark.asyncio
async def test_a_handshake_alone_is_no_client() -> None:
    """Links that never announce a client are closed when their time is over, and count at the bound until then."""
    config = Config(port=0, serializer="raw", handshake_timeout=1.0, max_connections=3, reuse_time=600)
    server = HubServer(MemoryStore(), config)
    await server.start()
    opened: list[asyncio.StreamWriter] = []
    try:
        host, port = str(server.address.host), server.address.port
        ends: list[asyncio.Task[bytes]] = []
        for number in range(5):
            reader, writer = await asyncio.open_connection(host, port)
            opened.append(writer)
            writer.write(Handshake(0, number.to_bytes(16, "big")).encode())
            ends.append(asyncio.create_task(reader.read()))
        await until(lambda: server.node.stats().turned_away.connections == 2, "the bound")
        assert len(server.node.stats().peers) <= 3
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*ends, return_exceptions=True)
        assert server.node.stats().turned_away.connections == 2
        async with redpoll.connect(f"redpoll://{server.address}") as bus:
            await bus.queues.declare("q")
    finally:
        for writer in opened:
            writer.close()
        await server.close()
