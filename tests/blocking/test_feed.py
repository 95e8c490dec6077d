"""Messages on their way to threads: in bursts, in order, none lost, none held that nobody comes for."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import Any

import pytest

from redpoll import Expired, Message, NoHandler, ShuttingDown, Undecodable
from redpoll.blocking import PoolNode, QueueNode
from redpoll.blocking import feed as module
from redpoll.blocking.feed import BURST, Feed
from redpoll.serializers import RawSerializer
from tests.blocking.support import PATIENCE, in_thread, interrupting, make, run_program, to, until, waits


def feed_of(node: QueueNode[Any]) -> Feed:
    """The one of a node that is pulled from."""
    feed = node._node.feed
    assert feed is not None
    return feed


def burst(node: QueueNode[Any], sender: QueueNode[Any], count: int, **options: Any) -> list[Future[None]]:
    """Send so many, and wait until they are there."""
    before = node.stats().received
    sent = [sender.send(to(node, b"%d" % number), **options) for number in range(count)]
    until(lambda: node.stats().received == before + count, "the messages")
    return sent


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes back by itself while a test looks."""
    monkeypatch.setattr(module, "GIVE_BACK", 100.0)


def test_as_many_as_slots_allow_come_at_once(patient: None) -> None:
    """One wake-up brings a burst, in order; no more than slots allow."""
    with make(slots=10, window=40) as node, make() as sender:
        sent = burst(node, sender, 30)
        assert node.get(timeout=PATIENCE).data == b"0"
        assert len(feed_of(node)._ready) == 9
        assert node.stats().slots_used == 10
        got = [node.get(timeout=PATIENCE) for _ in range(29)]
        assert [message.data for message in got] == [b"%d" % number for number in range(1, 30)]
        got[-1].release()
        assert [each.result(PATIENCE) for each in sent] == [None] * 30


def test_a_burst_is_bounded(patient: None) -> None:
    """However many slots there are, no more than so many messages wait for threads outside of the inbox."""
    with make(slots=2 * BURST, window=2 * BURST) as node, make() as sender:
        sent = burst(node, sender, BURST + 10)
        node.get(timeout=PATIENCE)
        assert len(feed_of(node)._ready) == BURST - 1
        assert node.stats().slots_used == BURST
        for _ in range(BURST + 9):
            node.get(timeout=PATIENCE)
        node._mine.held.release()
        assert [each.result(PATIENCE) for each in sent] == [None] * len(sent)


def test_what_nobody_comes_for_goes_back() -> None:
    """A burst that no thread takes further is not begun: it is refused as NoHandler in its time, and slots are free."""
    with make(slots=10, unclaimed_timeout=0.5) as node, make() as sender:
        sent = burst(node, sender, 5)
        node.get(timeout=PATIENCE).release()
        sent[0].result(PATIENCE)
        for each in sent[1:]:
            error = each.exception(PATIENCE)
            assert isinstance(error, NoHandler)
            assert not error.sent
        assert node.stats().slots_used == 0


def test_what_went_back_comes_in_order() -> None:
    """Messages that went back wait before those that came later, and nothing is lost or doubled."""
    with make(slots=5, window=20) as node, make() as sender:
        sent = burst(node, sender, 10)
        got = [node.get(timeout=PATIENCE).data]
        until(lambda: node.stats().slots_used == 1, "the burst to go back")
        got += [node.get(timeout=PATIENCE).data for _ in range(9)]
        node._mine.held.release()
        assert got == [b"%d" % number for number in range(10)]
        assert [each.result(PATIENCE) for each in sent] == [None] * 10


def test_what_is_withdrawn_is_not_pulled(patient: None) -> None:
    """A message that its sender withdraws while no thread has it was not begun, and never is."""
    with make(slots=3) as node, make() as sender:
        sent = burst(node, sender, 3)
        first = node.get(timeout=PATIENCE)
        assert len(feed_of(node)._ready) == 2
        sent[1].cancel()
        until(lambda: len(feed_of(node)._ready) == 1, "the message to be withdrawn")
        assert node.get(timeout=PATIENCE).data == b"2"
        node._mine.held.release()
        assert first.ended
        assert node.stats().refused == 1
        assert sent[2].result(PATIENCE) is None


def test_what_expires_is_not_pulled(patient: None) -> None:
    """A message whose deadline passed before a thread came for it is passed over, and said not to have begun."""
    with make(slots=2) as node, make() as sender:
        late = sender.send(to(node, b"first"))
        expiring = sender.send(to(node, b"second"), timeout=1000)
        until(lambda: node.stats().received == 2, "the messages")
        node.get(timeout=PATIENCE)
        (waiting,) = feed_of(node)._ready
        waiting.frame = (*waiting.frame[:6], time.monotonic())
        with pytest.raises(TimeoutError), node.take(timeout=0.001):
            pass
        error = expiring.exception(PATIENCE)
        assert isinstance(error, Expired)
        assert not error.sent
        node._mine.held.release()
        late.result(PATIENCE)


def test_what_cannot_be_read_is_passed_over() -> None:
    """Data that the serializer cannot read refuses its message, tells the hook, and the next one comes."""
    told: list[BaseException] = []
    with make(serializer="json") as node, make(serializer=RawSerializer("any")) as sender:
        node.events.handler_failed = lambda message, error: told.append(error)
        bad, good = sender.send(to(node, b"{")), sender.send(to(node, b"[1]"))
        with node.take(timeout=PATIENCE) as message:
            assert message.data == [1]
        assert isinstance(bad.exception(PATIENCE), Undecodable)
        assert good.result(PATIENCE) is None
        assert len(told) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()])
def test_a_serializer_that_raises_what_ends_coroutines(error: BaseException) -> None:
    """Of a message it refuses the message, once, and of an answer it fails the request: nothing waits or is lost."""

    class Breaking(RawSerializer):
        def decode(self, data: Any, /) -> bytes:
            if bytes(data) == b"bad":
                raise error
            return bytes(data)

    with make(serializer=Breaking("any")) as node, make(serializer=RawSerializer("any")) as sender:
        bad, good = sender.send(to(node, b"bad")), sender.send(to(node, b"good"))
        with node.take(timeout=PATIENCE) as message:
            assert message.data == b"good"
        assert isinstance(bad.exception(PATIENCE), Undecodable)
        assert good.result(PATIENCE) is None
    with PoolNode(lambda message: message.data, port=0, serializer=RawSerializer("any")) as server:
        with make(serializer=Breaking("any")) as sender:
            failed = sender.request(Message(b"bad", server.address), timeout=None).exception(PATIENCE)
            assert isinstance(failed, RuntimeError)
            assert failed.__cause__ is error
            assert sender.request(Message(b"good", server.address)).result(PATIENCE).data == b"good"
            assert sender.stats().reconnects == 0


def test_what_went_back_is_decoded_once() -> None:
    """A message is decoded when a thread pulls it, so one that went back comes as it should."""
    with make(serializer="json", slots=3) as node, make(serializer="json") as sender:
        sent = [sender.send(to(node, [number])) for number in range(3)]
        until(lambda: node.stats().received == 3, "the messages")
        assert node.get(timeout=PATIENCE).data == [0]
        until(lambda: node.stats().slots_used == 1, "the burst to go back")
        assert [node.get(timeout=PATIENCE).data for _ in range(2)] == [[1], [2]]
        node._mine.held.release()
        assert [each.result(PATIENCE) for each in sent] == [None] * 3


def test_ctrl_c_in_a_get_loses_nothing() -> None:
    """A thread that is interrupted while it waits took no message: the next one that comes is whole."""
    with make() as node, make() as sender:
        with interrupting(lambda: waits(node)), pytest.raises(KeyboardInterrupt):
            node.get()
        until(lambda: not waits(node, 0), "the loop to know that nobody waits")
        sent = sender.send(to(node))
        with node.take() as message:
            assert message.data == b"x"
        sent.result(PATIENCE)


def test_ctrl_c_while_a_message_is_decoded_loses_nothing() -> None:
    """A message that was pulled and not seen is the next one, before and after it was decoded."""

    class Interrupting:
        name, wants_buffer, interrupts = "interrupting", False, True

        def encode(self, obj: Any, /) -> bytes:
            return bytes(obj)

        def decode(self, data: Any, /) -> Any:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            return data.upper()

    with make(serializer=Interrupting()) as node, make() as sender:
        sent = sender.send(to(node, b"a"))
        with pytest.raises(KeyboardInterrupt):
            node.get(timeout=PATIENCE)
        assert node.get(timeout=PATIENCE).data == b"A"
        node._mine.held.release()
        sent.result(PATIENCE)


def test_what_an_interrupted_thread_had_goes_to_another() -> None:
    """Where several wait, the message of an interrupted one wakes the next."""
    with make() as node, make() as sender:
        feed = feed_of(node)
        sent = sender.send(to(node))
        until(lambda: node.stats().received == 1, "the message")
        held = feed.hold()
        assert feed.pull(held, PATIENCE) is not None
        other = in_thread(lambda: node.get(timeout=PATIENCE).release())
        until(lambda: waits(node), "the other thread to wait")
        feed.put_back(held)
        other.result(PATIENCE)
        sent.result(PATIENCE)


def test_what_an_interrupted_thread_had_goes_back() -> None:
    """Where nobody waits, the message of an interrupted thread waits with the others after a moment."""
    with make() as node, make() as sender:
        feed = feed_of(node)
        sent = sender.send(to(node))
        held = feed.hold()
        assert feed.pull(held, PATIENCE) is not None
        until(lambda: feed._timer is None, "the first look")
        feed.put_back(held)
        until(lambda: node.stats().slots_used == 0, "the message to go back")
        with node.take():
            pass
        sent.result(PATIENCE)


def test_what_an_interrupted_thread_refused_does_not_go_back() -> None:
    """A message that expired in the hands of an interrupted thread has ended: it does not wait again, and frees one slot."""
    with make(slots=2) as node, make() as sender:
        feed = feed_of(node)
        held = feed.hold()
        sent = sender.send(to(node))
        message = feed.pull(held, PATIENCE)
        assert message is not None
        message._refuse(Undecodable.code, "as for one that expired")
        feed.put_back(held)
        assert isinstance(sent.exception(PATIENCE), Undecodable)
        until(lambda: not feed._ready and feed._timer is None, "the last look")
        assert node.stats().slots_used == 0


def test_many_threads_get_each_message_once() -> None:
    """Threads that pull at the same time share the messages, and all of them are handled."""
    with make(slots=20, window=100) as node, make() as sender:

        def work() -> list[bytes]:
            return [message.data for message in node]

        threads = [in_thread(work) for _ in range(4)]
        assert sender.send_many(to(node, b"%d" % number) for number in range(1000)) == 1000
        node.stop()
        got = [data for each in threads for data in each.result(PATIENCE)]
        assert sorted(got, key=int) == [b"%d" % number for number in range(1000)]


def test_stopping_refuses_what_no_thread_has(patient: None) -> None:
    """What waits for a thread when the node closes was not begun, and its sender is told so."""
    with make(slots=3, auto_release=False) as node, make() as sender:
        sent = burst(node, sender, 3)
        node.get(timeout=PATIENCE).release()
        sent[0].result(PATIENCE)
        node.stop(0)
        for each in sent[1:]:
            error = each.exception(PATIENCE)
            assert isinstance(error, ShuttingDown)
            assert not error.sent


def test_draining_does_not_wait_for_what_no_thread_has() -> None:
    """A stop that drains without limit ends when all that threads have has ended."""
    with make(slots=3) as node, make() as sender:
        sent = burst(node, sender, 3)
        node.get(timeout=PATIENCE).release()
        node.stop(None)
        assert [type(each.exception(PATIENCE)) for each in sent] == [type(None), ShuttingDown, ShuttingDown]


INTERRUPTED = """
import signal
from redpoll import Message
from redpoll.blocking import QueueNode

inside, interruptions, got = False, 0, []

def interrupt(number, frame):
    global inside, interruptions
    if inside:  # behind the call what was got is the program's
        inside = False
        interruptions += 1
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
with QueueNode(port=0, slots=SLOTS, window=3000) as node, QueueNode(timeout=None) as sender:
    sent = [sender.send(Message(b"%d" % number, node.address)) for number in range(3000)]
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.00031)
    while len(got) < 3000:
        try:
            inside = True
            message = node.get()
            inside = False
        except KeyboardInterrupt:
            continue
        got.append(int(message.data))
    signal.setitimer(signal.ITIMER_REAL, 0)
    message.release()
    for each in sent:
        each.result()
print(got == list(range(3000)), interruptions > 0)
"""


@pytest.mark.parametrize("slots", ["1", "64"])
def test_ctrl_c_at_any_moment_loses_nothing(slots: str) -> None:
    """Interrupted hundreds of times, wherever it is, a thread gets each message once and in order."""
    done = run_program(INTERRUPTED.replace("SLOTS", slots))
    assert done.stdout == "True True\n", done.stderr
