"""PoolNode: a handler in threads, how many at a time, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from redpoll import Abandoned, Busy, Cancelled, Config, HandlerFailed, Message, ShuttingDown, Undecodable, UsageError
from redpoll.blocking import PoolNode, Received
from redpoll.serializers import RawSerializer, pickle
from tests.blocking.support import PATIENCE, in_thread, make, to, until
from tests.serializers.pickling.attacks import ARRAYS, ATTACKS


class Gate:
    """A handler that holds each message until it is opened.

    Attributes:
        most: The most that were held at a time.
        threads: Who held them.
    """

    def __init__(self) -> None:
        self.held: list[Received[bytes]] = []
        self.running = self.most = 0
        self.threads: set[str] = set()
        self._open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, message: Received[bytes]) -> bytes:
        with self._lock:
            self.held.append(message)
            self.running += 1
            self.most = max(self.most, self.running)
            self.threads.add(threading.current_thread().name)
        self._open.wait(PATIENCE)
        with self._lock:
            self.running -= 1
        return b"done"

    def open(self) -> None:
        """Let them go."""
        self._open.set()


@pytest.mark.parametrize("name", ["arrays of objects in one another", "deques in deques, and an end that fails"])
def test_what_is_nested_too_deeply(name: str) -> None:
    """A pickle that would overflow the stack of a thread is refused before the handler gets it."""
    with PoolNode(str, port=0, serializer="pickle") as node, make(serializer=RawSerializer("hostile")) as sender:
        with pytest.raises(Undecodable):
            sender.send(Message({**ATTACKS, **ARRAYS}[name], node.address)).result(PATIENCE)
        assert sender.send(Message(bytes(pickle.encode("next")), node.address)).result(PATIENCE) is None


def test_what_it_returns_answers() -> None:
    """The message is released when the handler returns, in a thread of the pool; an answer that is wanted goes back."""
    gate = Gate()
    gate.open()
    with PoolNode(gate, port=0) as node, make() as sender:
        assert sender.send(to(node)).result(PATIENCE) is None
        assert sender.request(to(node)).result(PATIENCE).data == b"done"
        assert all(name.startswith("redpoll pool") for name in gate.threads)
        assert all(message.node is node for message in gate.held)


def test_what_it_raises_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """The sender learns what the handler raised, the hook and the log do too, and the node goes on."""
    told: list[BaseException] = []
    errors: list[BaseException] = [KeyError("k"), StopIteration(), SystemExit(1), KeyboardInterrupt()]

    def handle(message: Received[bytes]) -> None:
        raise errors[int(message.data)]

    with PoolNode(handle, port=0) as node, make() as sender:
        node.events.handler_failed = lambda message, error: told.append(error)
        for number, error in enumerate(errors):
            with pytest.raises(HandlerFailed, match=type(error).__name__):
                sender.send(to(node, b"%d" % number)).result(PATIENCE)
        assert told[0] is errors[0]
        assert len(told) == 4
    lines = re.findall(r"the handler failed on (?:(\d+) )?message", caplog.text)
    assert sum(int(count or 1) for count in lines) == 4


def test_as_many_at_a_time_as_threads() -> None:
    """One peer's messages are handled by all threads side by side; the others wait in the inbox, not begun."""
    gate = Gate()
    with PoolNode(gate, port=0, max_workers=3) as node, make() as sender:
        sent = [sender.send(to(node)) for _ in range(10)]
        until(lambda: gate.running == 3, "all threads to work")
        assert node.config.slots == 3
        assert node.stats().slots_used == 3
        sent[9].cancel()
        until(lambda: node.stats().refused == 1, "the last one to be withdrawn")
        gate.open()
        for each in sent[:9]:
            each.result(PATIENCE)
    assert gate.most == 3
    assert len(gate.held) == 9


def test_no_further_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message for which there is no thread is refused as not begun, and is not handled later all the same."""
    gate = Gate()
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("redpoll pool") and gate.running:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with PoolNode(gate, port=0, max_workers=4) as node, make() as sender:
        first = sender.send(to(node, b"first"))
        until(lambda: gate.running == 1, "the first one")
        refused = sender.send(to(node, b"second")).exception(PATIENCE)
        assert isinstance(refused, Busy)
        assert not refused.sent
        gate.open()
        first.result(PATIENCE)
        sender.send(to(node, b"third")).result(PATIENCE)
    assert [message.data for message in gate.held] == [b"first", b"third"]


def test_a_second_start_leaves_the_pool_alone() -> None:
    """Starting a node that runs is refused, and its threads go on."""
    with PoolNode(lambda message: b"pong", port=0) as node, make() as sender:
        with pytest.raises(UsageError, match="started only once"):
            node.start()
        assert sender.request(to(node)).result(PATIENCE).data == b"pong"


def test_peers_share_the_threads() -> None:
    """However many peers there are, no more messages are begun than there are threads."""
    gate = Gate()
    with PoolNode(gate, port=0, max_workers=2) as node, make() as one, make() as other:
        sent = [sender.send(to(node)) for sender in (one, other) for _ in range(5)]
        until(lambda: gate.running == 2, "all threads to work")
        until(lambda: node.stats().received == 10, "the messages")
        assert node.stats().slots_used == 2
        gate.open()
        for each in sent:
            each.result(PATIENCE)
    assert gate.most == 2


def test_slots_may_be_fewer() -> None:
    """With one slot a peer's messages are handled one after another, whatever the pool has."""
    gate = Gate()
    gate.open()
    with PoolNode(gate, Config(slots=1), port=0, max_workers=4) as node, make() as sender:
        assert sender.send_many(to(node) for _ in range(50)) == 50
    assert gate.most == 1


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are as many as a ThreadPoolExecutor's unless told; slots follow them, unless they are given."""
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    if hasattr(os, "process_cpu_count"):  # since 3.13, where an executor asks it
        monkeypatch.setattr(os, "process_cpu_count", lambda: 2)
    with ThreadPoolExecutor() as executor:
        default = PoolNode(print).config
        assert default.slots == default.node_slots == executor._max_workers
    assert PoolNode(print, max_workers=7).config.slots == 7
    given = PoolNode(print, max_workers=7, slots=3, node_slots=2).config
    assert (given.slots, given.node_slots) == (3, 2)


async def _coroutine_function(message: Any) -> None:
    """No handler for threads."""


def _generator_function(message: Any) -> Any:
    yield message


def test_what_is_no_handler() -> None:
    """A handler is a plain function, and threads are counted from one."""
    bad: list[Callable[[], object]] = [
        lambda: PoolNode(None),  # type: ignore[arg-type]
        lambda: PoolNode(Config()),  # type: ignore[arg-type]
        lambda: PoolNode(_coroutine_function),
        lambda: PoolNode(_generator_function),
        lambda: PoolNode(print, max_workers=0),
        lambda: PoolNode(print, max_workers=True),
        lambda: PoolNode(print, max_workers="4"),  # type: ignore[arg-type]
    ]
    for make_one in bad:
        with pytest.raises(UsageError):
            make_one()


def test_a_handler_may_end_its_message_early() -> None:
    """`release` in the handler acknowledges at once, and `respond` answers while it works."""
    gate = threading.Event()

    def handle(message: Received[bytes]) -> None:
        if message.wanted:
            message.respond(b"early")
        message.release()
        gate.wait(PATIENCE)

    with PoolNode(handle, port=0, max_workers=2) as node, make() as sender:
        sender.send(to(node)).result(PATIENCE)
        assert sender.request(to(node)).result(PATIENCE).data == b"early"
        gate.set()


def test_a_handler_may_send_and_ask() -> None:
    """A handler calls back the peer that it serves, and waits for it."""

    def relay(message: Received[bytes]) -> bytes:
        return bytes(message.node.request(message.reply(b"?")).result(PATIENCE).data)

    with PoolNode(relay, port=0, max_workers=1) as node, PoolNode(lambda message: b"!", port=0) as sender:
        assert sender.request(to(node)).result(PATIENCE).data == b"!"


def test_the_context_is_that_of_the_start() -> None:
    """Each handler runs in its own copy of the context that the node was started in."""
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen: list[str] = []

    def handle(message: Received[bytes]) -> None:
        seen.append(variable.get())
        variable.set("of a handler")

    token = variable.set("of the start")
    with PoolNode(handle, port=0, max_workers=1) as node, make() as sender:
        variable.reset(token)
        assert sender.send_many(to(node) for _ in range(3)) == 3
    assert seen == ["of the start"] * 3


def test_stopping_drains() -> None:
    """A stop waits for handlers, and what they return is still answered."""
    gate = Gate()
    with PoolNode(gate, port=0) as node, make() as sender:
        request = sender.request(to(node))
        until(lambda: gate.running, "the handler")
        stopping = in_thread(node.stop, None)
        until(lambda: node._node._state == "stopping", "the stop to begin")
        gate.open()
        assert request.result(PATIENCE).data == b"done"
        stopping.result(PATIENCE)


def test_after_the_draining_handlers_are_told() -> None:
    """A handler that still runs then has `cancelled` set; its message is refused; the stop waits for its thread."""
    told = threading.Event()

    def handle(message: Received[bytes]) -> None:
        if message.cancelled.wait(PATIENCE):
            told.set()

    with PoolNode(handle, port=0, max_workers=1) as node, make() as sender:
        sent = [sender.send(to(node)) for _ in range(2)]
        until(lambda: node.stats().received == 2, "the messages")
        node.stop(0)
        assert told.is_set()
        assert isinstance(sent[0].exception(PATIENCE), Cancelled)
        assert isinstance(sent[1].exception(PATIENCE), ShuttingDown)


def test_a_sender_that_gives_up_is_seen() -> None:
    """`cancelled` is set when the sender cancels, and the handler goes on as it likes."""
    seen: list[bool] = []
    begun = threading.Event()

    def handle(message: Received[bytes]) -> None:
        begun.set()
        seen.append(message.cancelled.wait(PATIENCE))

    with PoolNode(handle, port=0) as node, make() as sender:
        sent = sender.send(to(node))
        assert begun.wait(PATIENCE)
        sent.cancel()
    assert seen == [True]


def test_a_handler_cannot_stop_its_own_node() -> None:
    """It would wait for itself, so it raises; another node it may stop."""
    other = make()
    other.start()

    def handle(message: Received[bytes]) -> None:
        other.stop()
        message.node.stop()

    with PoolNode(handle, port=0) as node, make() as sender:
        with pytest.raises(HandlerFailed, match="cannot stop its own node"):
            sender.send(to(node)).result(PATIENCE)
        assert not other.listening
        assert node.listening


def test_it_works_beside_a_loop_of_the_callers() -> None:
    """It may be started, used and stopped where an event loop runs."""

    async def main() -> None:
        with PoolNode(lambda message: b"pong", port=0) as node, make() as sender:
            assert (await asyncio.wrap_future(sender.request(to(node)))).data == b"pong"

    asyncio.run(main())


def test_a_pool_that_was_closed_refuses() -> None:
    """When the interpreter, which ends, has closed all pools, a message is refused as not begun, and not left open."""
    with PoolNode(print, port=0) as node, make() as sender:
        node._executor.shutdown()
        error = sender.send(to(node)).exception(PATIENCE)
        assert isinstance(error, ShuttingDown)
        assert not error.sent


def test_without_auto_release_a_dropped_message_is_abandoned(recwarn: pytest.WarningsRecorder) -> None:
    """With auto_release=False what its handler drops is refused, with a warning, behind its answer; others have its slot."""
    with PoolNode(_own_data, port=0, auto_release=False, max_workers=1) as node, make() as sender:
        for _ in range(2):
            with pytest.raises(Abandoned):
                sender.send(to(node, b"")).result(PATIENCE)
            assert sender.request(to(node, b"data")).result(PATIENCE).data == b"data"
            until(lambda: not node.stats().slots_used, "the slot")
    assert sum("was dropped before it ended" in str(each.message) for each in recwarn) == 4


def test_without_auto_release_its_end_may_come_later() -> None:
    """With auto_release=False a message that a handler passed on goes on until it is released; one that fails is refused."""
    held: list[Received[bytes]] = []

    def handler(message: Received[bytes]) -> None:
        if not message.data:
            raise ValueError("no")
        held.append(message)

    with PoolNode(handler, port=0, auto_release=False, max_workers=1) as node, make() as sender:
        with pytest.raises(HandlerFailed, match="no"):
            sender.send(to(node, b"")).result(PATIENCE)
        sent = sender.send(to(node, b"kept"))
        until(lambda: held, "the handler")
        assert not sent.done()
        held.pop().release()
        assert sent.result(PATIENCE) is None


def _own_data(message: Received[bytes]) -> bytes | None:
    return message.data or None
