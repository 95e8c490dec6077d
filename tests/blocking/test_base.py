"""What both kinds of nodes for threads have: life, sending, looking."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from redpoll import (
    Abandoned,
    BatchError,
    Closed,
    ConfigError,
    DialFailed,
    EncodeError,
    Expired,
    Message,
    MessageTooLarge,
    Node,
    NotSent,
    UsageError,
)
from redpoll.blocking import PoolNode, QueueNode, Received
from redpoll.blocking.base import BlockingNode
from tests.blocking.support import PATIENCE, in_thread, interrupting, make, to, until
from tests.ports import free_port

NOBODY = f"127.0.0.1:{free_port()}"


def test_start_and_stop() -> None:
    """A node runs between `start` and `stop`, is started once, and may be stopped before and again."""
    node = make()
    assert not node.listening
    node.start()
    assert str(node.address).startswith("127.0.0.1:")
    assert repr(node).startswith("<QueueNode ")
    with pytest.raises(UsageError, match="is running: a node can be started only once"):
        node.start()
    assert node.listening
    node.stop()
    node.stop(0)
    with pytest.raises(UsageError, match="is stopped"):
        node.start()
    with pytest.raises(Closed):
        _ = node.address
    unstarted = make()
    unstarted.stop()
    with pytest.raises(UsageError, match="is stopped"):
        unstarted.start()


def test_two_threads_start_one_node() -> None:
    """Of two starts one succeeds, and the node runs."""
    node = make()
    starts = [in_thread(node.start) for _ in range(2)]
    errors = [each.exception(PATIENCE) for each in starts]
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "UsageError"]
    assert node.check(node.address)
    node.stop()


class SlowStart:
    """Holds the start of a node: when it runs and the thread that starts it does not know yet, or before it does anything.

    Attributes:
        begun: Set when it is held.
        gate: Lets it go on, set on the loop.
    """

    def __init__(self, node: QueueNode[Any] | PoolNode[Any], patch: pytest.MonkeyPatch, *, runs: bool = True) -> None:
        self._start = node._node._start
        self._runs = runs
        self.begun, self.gate = threading.Event(), asyncio.Event()
        patch.setattr(node._node, "_start", self)

    async def __call__(self) -> None:
        if self._runs:
            await self._start()
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            if not self._runs:
                raise
        if not self._runs:
            await self._start()


def test_what_arrives_at_once_may_be_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler whose message comes before `start` has returned sends with its node as any other."""

    def relay(message: Received[bytes]) -> bytes:
        return bytes(message.node.request(message.reply(b"?")).result(PATIENCE).data)

    node = PoolNode(relay, port=0)
    start = SlowStart(node, monkeypatch)
    starting = in_thread(node.start)
    assert start.begun.wait(PATIENCE)
    with PoolNode(lambda message: b"!", port=0) as sender:
        assert sender.request(to(node)).result(PATIENCE).data == b"!"
    node._handover().post(start.gate.set)
    starting.result(PATIENCE)
    node.stop()


def test_a_stop_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that another thread stops while it starts is not started, and gives and sends nothing meanwhile."""
    node = make()
    start = SlowStart(node, monkeypatch, runs=False)
    starting = in_thread(node.start)
    assert start.begun.wait(PATIENCE)
    for use in (node.get, node.take, node.serve_forever, lambda: node.send(Message(1, NOBODY))):
        with pytest.raises(Closed):
            use()
    handover = node._handover()
    stopping = in_thread(node.stop)
    until(lambda: node._node._state == "stopped", "the stop")
    handover.post(start.gate.set)
    assert isinstance(starting.exception(PATIENCE), Closed)
    stopping.result(PATIENCE)
    assert not node.listening


def test_ctrl_c_when_it_has_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption that comes too late to keep the node from running stops it."""
    node = make()
    start = SlowStart(node, monkeypatch)
    with make():  # keeps the loop
        with interrupting(start.begun.is_set), pytest.raises(KeyboardInterrupt):
            node.start()
        assert not node.listening


def test_a_stop_has_a_time() -> None:
    """What is no time for draining is refused, and the node goes on."""
    with make() as node:
        with pytest.raises(UsageError, match="drain"):
            node.stop(-1)
        assert node.listening


def test_a_stop_drains() -> None:
    """Sends that are open, and messages that threads work on, end before the node does; a second stop waits for the first."""
    begun, gate = threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        begun.set()
        gate.wait(PATIENCE)

    with PoolNode(handle, port=0) as node, make() as sender:
        sent = sender.send(to(node))
        assert begun.wait(PATIENCE)
        stops = [in_thread(each.stop, None) for each in (sender, node, sender)]
        until(lambda: sender._node._state == node._node._state == "stopping", "the stops to begin")
        assert not any(each.done() for each in stops)
        gate.set()
        for each in stops:
            each.result(PATIENCE)
        assert sent.result(0) is None


def test_ctrl_c_ends_the_draining() -> None:
    """An interrupted stop closes the node at once, and then the interruption comes out."""
    with make() as node, make() as sender:
        sent = sender.send(to(node), timeout=None)
        until(lambda: node.stats().received == 1, "the message")
        with interrupting(lambda: sender._node._state == "stopping"), pytest.raises(KeyboardInterrupt):
            sender.stop(None)
        assert sent.exception(0) is not None
        assert sender.listening == ()
        with pytest.raises(Closed):
            sender.send(to(node))


def test_leaving_by_an_exception_does_not_drain() -> None:
    """A block that is left by an exception closes the node at once."""
    sent: list[Any] = []
    with make() as node:

        def work() -> None:
            with make(timeout=None) as sender:
                sent.append(sender.send(to(node)))
                until(lambda: node.stats().received == 1, "the message")
                raise KeyError

        with pytest.raises(KeyError):
            work()
        assert sent[0].exception(0) is not None


def test_serve_forever() -> None:
    """It waits until the node is stopped, if it was started, and Ctrl-C interrupts the waiting alone."""
    with pytest.raises(Closed):
        make().serve_forever()
    with PoolNode(lambda message: None, port=0) as node:
        serving = in_thread(node.serve_forever)
        with interrupting(lambda: len(node._handover()._open) == 2), pytest.raises(KeyboardInterrupt):
            node.serve_forever()
        assert not serving.done()
        node.stop()
        serving.result(PATIENCE)
        node.serve_forever()


def test_sending_raises_at_once() -> None:
    """What is wrong with a call raises in it: what is sent, its size, its options, a node that does not run."""
    with make(serializer="json", max_message_size=4096) as node:
        cases: list[tuple[type[Exception], Any, dict[str, Any]]] = [
            (UsageError, b"no message", {}),
            (UsageError, Message(1), {}),
            (EncodeError, Message(object(), NOBODY), {}),
            (MessageTooLarge, Message("x" * 5000, NOBODY), {}),
            (MessageTooLarge, Message("x", NOBODY, header=bytes(5000)), {}),
            (UsageError, Message(1, NOBODY), {"timeout": "1"}),
            (UsageError, Message(1, NOBODY), {"timeout": -1}),
            (UsageError, Message(1, NOBODY), {"dial": "never"}),
        ]
        for kind, message, options in cases:
            for method in (node.send, node.request):
                with pytest.raises(kind):
                    method(message, **options)
        for options in ({"retry": -1}, {"retry": True}, {"acknowledge": 1}):
            with pytest.raises(UsageError):
                node.send(Message(1, NOBODY), **options)
        cannot = node.send(Message(1, "127.0.0.1:0"))
        with pytest.raises(UsageError, match="cannot be dialled"):
            cannot.result(PATIENCE)
    for method in (node.send, node.request):
        with pytest.raises(Closed):
            method(Message(1, NOBODY))


def test_what_is_sent_is_read_at_once() -> None:
    """Data that changes after the call is sent as it was."""
    with make(serializer="json") as node, make(serializer="json") as sender:
        data = [1]
        sent = sender.send(to(node, data))
        data.append(2)
        with node.take() as message:
            assert message.data == [1]
        sent.result(PATIENCE)


class Noting:
    """A serializer of bytes that notes the threads it works in."""

    name, wants_buffer = "noting", False

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self.decoded: list[str] = []

    def encode(self, obj: Any, /) -> bytes:
        self.encoded.append(threading.current_thread().name)
        return bytes(obj)

    def decode(self, data: Any, /) -> bytes:
        self.decoded.append(threading.current_thread().name)
        return bytes(data)


def test_where_a_serializer_works() -> None:
    """What is sent and pulled passes it in the threads that do so, answers and a pool's messages on the loop thread."""
    here, loop = threading.current_thread().name, "redpoll loop"
    asks, serves, pulls = Noting(), Noting(), Noting()
    with PoolNode(lambda message: b"!", port=0, serializer=serves) as pool, make(serializer=asks) as sender:
        sender.request(to(pool)).result(PATIENCE)
        with make(serializer=pulls) as node:
            sent = sender.send(to(node))
            with node.take():
                pass
            sent.result(PATIENCE)
    assert (asks.encoded, asks.decoded) == ([here, here], [loop])
    assert (serves.encoded, serves.decoded) == ([loop], [loop])
    assert pulls.decoded == [here]


def test_options_of_a_send() -> None:
    """`acknowledge`, `retry`, `timeout` and `dial` do what they do for every node."""
    with make() as node, make(acknowledge=False) as sender:
        sender.send(to(node)).result(PATIENCE)
        acknowledged = sender.send(to(node), acknowledge=True, retry=2, timeout=None)
        until(lambda: node.stats().received == 2, "the messages")
        assert not acknowledged.done()
        for _ in range(2):
            with node.take():
                pass
        acknowledged.result(PATIENCE)
        with pytest.raises(NotSent) as caught:
            sender.send(Message(b"x", NOBODY), dial="once").result(PATIENCE)
        assert isinstance(caught.value.__cause__, DialFailed)
    with make(dial="once") as sender, pytest.raises(NotSent):
        sender.send(Message(b"x", NOBODY), timeout=None).result(PATIENCE)


def test_requests() -> None:
    """A request is a future of the answer; many threads may ask at the same time."""
    with PoolNode(lambda message: message.data + b"!", port=0, max_workers=3) as node, make() as sender:

        def ask(number: int) -> list[bytes]:
            return [sender.request(to(node, b"%d" % number)).result(PATIENCE).data for _ in range(20)]

        for number, each in enumerate([in_thread(ask, number) for number in range(4)]):
            assert each.result(PATIENCE) == [b"%d!" % number] * 20


def test_sends_of_one_thread_keep_their_order() -> None:
    """Messages arrive in the order of the calls."""
    got: list[bytes] = []
    with PoolNode(lambda message: got.append(message.data), port=0, max_workers=1) as node, make() as sender:
        sent = [sender.send(to(node, b"%d" % number)) for number in range(500)]
        for each in sent:
            each.result(PATIENCE)
    assert got == [b"%d" % number for number in range(500)]


def test_ready_and_check() -> None:
    """`ready` waits for a link, `check` looks whether somebody is there."""
    with make() as node, make() as sender:
        assert sender.check(node.address)
        sender.ready(str(node.address))
        assert not sender.check(NOBODY)
        with pytest.raises(Expired):
            sender.ready(NOBODY, timeout=0.01)
    for wait in (sender.ready, sender.check):
        with pytest.raises(Closed):
            wait(NOBODY)


def test_looking() -> None:
    """Identity, options, peers and counters can be read from any thread, before, meanwhile and after."""
    with make(identity=b"i" * 16) as node, make() as sender:
        sent = sender.send(to(node))
        with node.take():
            assert node.stats().slots_used == 1
        sent.result(PATIENCE)
        (peer,) = node.peers
        assert peer.identity == sender.identity
        assert in_thread(node.stats).result(PATIENCE).received == 1
    assert node.identity == b"i" * 16
    assert node.config.port == 0
    assert node.stats().received == 1
    assert make().stats().received == 0
    assert make().peers == ()


def test_hooks_run_on_the_loop_thread() -> None:
    """`events` are those of every node, set from any thread."""
    told: list[tuple[Any, str]] = []
    with make() as node, make() as sender:
        node.events.peer_connected = lambda peer: told.append((peer.identity, threading.current_thread().name))
        sender.check(node.address)
        until(lambda: told, "the hook")
    assert told == [(sender.identity, "redpoll loop")]


def test_certificates_are_reloaded_where_there_are_any() -> None:
    """A node that encrypts nothing says so."""
    with make() as node, pytest.raises(UsageError, match="does not encrypt"):
        node.reload_certificates()


def test_errors_are_those_of_nodes() -> None:
    """A refusal that a thread caused is told as every refusal is, in `send_many` with the index."""
    with make() as node, make() as sender:
        sending = in_thread(sender.send_many, [to(node)])
        node.get(timeout=PATIENCE)
        node._mine.held.abandon()
        error = sending.exception(PATIENCE)
        assert isinstance(error, BatchError)
        assert isinstance(error.error, Abandoned)


def _promises(method: Callable[..., object]) -> tuple[list[inspect.Parameter], list[str]]:
    """What a method takes, and the errors that its docstring names."""
    _, _, raises = (inspect.getdoc(method) or "").partition("Raises:\n")
    taken = [each.replace(annotation=None) for each in inspect.signature(method).parameters.values()]
    return taken, re.findall(r"^    (\w+): ", raises, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["start", "stop", "send", "request", "send_many", "ready", "check", "reload_certificates"]
)
def test_it_is_called_as_a_node_is(name: str) -> None:
    """What both kinds of nodes can do takes the same, and says that it raises the same."""
    assert _promises(getattr(BlockingNode, name)) == _promises(getattr(Node, name))


def test_options_that_cannot_be() -> None:
    """A bad option is named."""
    with pytest.raises(ConfigError, match="slots=0"):
        QueueNode(slots=0)
    with pytest.raises(ConfigError, match="slots=0"):
        PoolNode(print, slots=0)
