"""Messages of one exchange on their way to the loop: order, one wake-up a burst, room, large ones, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from redpoll import Closed, UsageError
from redpoll.blocking.handover import Handover
from redpoll.blocking.loop_thread import LoopThread, enter
from redpoll.wiring.zmq.outbox import BURST, LARGE, LARGE_BYTES, Outbox, as_bytes
from tests.blocking.support import PATIENCE, in_thread, interrupting, until


class Exchange:
    """Takes what it has room for."""

    max_size = 2**62

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[bytes] = []
        self.bursts: list[int] = []
        self.waiting = 0
        self.changed: asyncio.Event
        self.closed = False

    def send_some(self, messages: list[bytes]) -> int:
        count = min(self.room, len(messages))
        self.sent += messages[:count]
        self.room -= count
        self.bursts.append(count)
        return count

    def send_nowait(self, message: bytes) -> bool:
        return bool(self.send_some([message]))

    async def send(self, message: bytes) -> None:
        self.waiting += 1
        try:
            while not self.send_nowait(message):
                if self.closed:
                    raise Closed("exchange")
                self.changed = asyncio.Event()
                await self.changed.wait()
        finally:
            self.waiting -= 1

    def grow(self, room: int) -> None:
        self.room += room
        if self.waiting:
            self.changed.set()


class Resident:
    async def evict(self, patience: float) -> None:
        """Nothing runs."""

    def stop(self, drain: float | None = 0) -> None:
        """Nothing runs."""

    def inherit(self) -> None:
        """Nothing is open."""


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    resident = Resident()
    thread = enter(resident)
    yield thread
    thread.see_off(resident, lambda: resident.evict(0))


@pytest.fixture
def handover(thread: LoopThread) -> Handover:
    return thread.handover


def hold(handover: Handover) -> threading.Event:
    """Keep the loop busy until an event is set."""
    gate, held = threading.Event(), threading.Event()

    def wait() -> None:
        held.set()
        gate.wait(PATIENCE)

    handover.post(wait)
    assert held.wait(PATIENCE)
    return gate


def outbox_of(exchange: Exchange, handover: Handover) -> Outbox:
    outbox = Outbox(exchange, handover)  # type: ignore[arg-type]
    handover.run(outbox.sent)
    return outbox


def test_a_burst_is_one_call(handover: Handover) -> None:
    """What threads append while the loop is busy reaches the exchange at once, in order."""
    exchange = Exchange(10**6)
    outbox = outbox_of(exchange, handover)
    assert outbox.room == BURST
    gate = hold(handover)
    messages = [b"%d" % number for number in range(1000)]
    assert all(outbox.put(message) for message in messages)
    gate.set()
    handover.run(outbox.sent)
    assert exchange.sent == messages
    assert max(exchange.bursts) == 1000


def test_no_more_than_there_is_room_for(handover: Handover) -> None:
    """Nothing is handed over for which the exchange had no room when the loop looked last."""
    exchange = Exchange(3)
    outbox = outbox_of(exchange, handover)
    assert outbox.room == 3
    assert outbox.try_send(b"1")
    assert outbox.room == 2
    assert outbox.try_send(b"2")
    assert outbox.try_send(b"3")
    assert outbox.room == 0
    assert not outbox.put(b"4")
    assert not outbox.try_send(b"4")
    assert exchange.sent == [b"1", b"2", b"3"]
    exchange.room = 1
    assert outbox.try_send(b"4")
    assert exchange.sent[3:] == [b"4"]


def test_a_burst_is_bounded(handover: Handover) -> None:
    """However much room there is, so many messages are on their way and no more."""
    outbox = outbox_of(Exchange(10**6), handover)
    gate = hold(handover)
    assert [outbox.put(b"x") for _ in range(BURST + 1)] == [True] * BURST + [False]
    gate.set()


def test_send_waits_for_room(handover: Handover) -> None:
    """A thread waits until the exchange has its message, and another one's message waits behind it."""
    exchange = Exchange(0)
    outbox = outbox_of(exchange, handover)
    first = in_thread(outbox.send, b"1")
    until(lambda: exchange.waiting == 1, "the first")
    assert not outbox.try_send(b"2") or exchange.sent
    handover.post(exchange.grow, (1,))
    first.result(PATIENCE)
    assert exchange.sent == [b"1"]


def test_what_found_less_room_is_sent_when_there_is_more(handover: Handover) -> None:
    """Messages that were handed over, and for which the exchange has no room after all, are sent in order, before others."""
    exchange = Exchange(10)
    outbox = outbox_of(exchange, handover)
    handover.run(setattr, exchange, "room", 2)
    for number in range(5):
        assert outbox.put(b"%d" % number)
    last = in_thread(outbox.send, b"last")
    until(lambda: exchange.waiting, "the exchange to be full")
    assert exchange.sent == [b"0", b"1"]
    assert not outbox.try_send(b"x")
    for _ in range(10):
        handover.run(exchange.grow, 1)
    last.result(PATIENCE)
    assert exchange.sent == [b"0", b"1", b"2", b"3", b"4", b"last"]
    handover.run(outbox.sent)
    assert outbox.room == exchange.room > 0


def test_large_messages_are_bounded_by_their_bytes(handover: Handover) -> None:
    """However many messages there is room for, large ones are handed over up to so many bytes, and one of any size."""
    exchange = Exchange(10**6)
    outbox = outbox_of(exchange, handover)
    large = bytes(LARGE_BYTES // 2)
    gate = hold(handover)
    assert outbox.put(large)
    assert outbox.put(large)
    assert not outbox.put(bytes(LARGE + 1))
    assert outbox.put(bytes(LARGE))
    gate.set()
    handover.run(outbox.sent)
    assert outbox.put(bytes(LARGE_BYTES + 1))
    handover.run(outbox.sent)
    assert outbox.put(large)
    handover.run(outbox.sent)
    assert len(exchange.sent) == 5


def test_an_interruption_sends_nothing(handover: Handover) -> None:
    """Ctrl-C ends the waiting for room, and the message is not sent later."""
    exchange = Exchange(0)
    outbox = outbox_of(exchange, handover)
    with pytest.raises(KeyboardInterrupt), interrupting(lambda: exchange.waiting):
        outbox.send(b"1")
    assert exchange.waiting == 0
    handover.run(exchange.grow, 1)
    outbox.send(b"2")
    assert exchange.sent == [b"2"]


def test_forgotten_room(handover: Handover) -> None:
    """After that threads ask the loop before they hand over more."""
    exchange = Exchange(5)
    outbox = outbox_of(exchange, handover)
    handover.run(outbox.forget_room)
    assert not outbox.put(b"1")
    assert outbox.try_send(b"1")
    assert outbox.room == 4


def test_the_end(handover: Handover) -> None:
    """What the exchange has not taken when it is closed is dropped, and nothing is taken after it."""
    exchange = Exchange(10)
    outbox = outbox_of(exchange, handover)
    handover.run(setattr, exchange, "room", 0)
    assert outbox.put(b"1")
    until(lambda: exchange.waiting, "the exchange to be full")
    handover.run(outbox.close)
    assert not outbox.waiting
    assert not outbox.put(b"2")
    assert not exchange.sent


def test_a_closed_exchange_drops_what_waits(handover: Handover) -> None:
    """What waits when the exchange ends is gone, and who waits is told."""
    exchange = Exchange(10)
    outbox = outbox_of(exchange, handover)
    handover.run(setattr, exchange, "room", 0)
    assert outbox.put(b"1")
    until(lambda: exchange.waiting, "the exchange to be full")
    exchange.closed = True
    handover.run(exchange.grow, 0)
    with pytest.raises(Closed):
        outbox.send(b"2")
    assert not outbox.waiting
    assert outbox.room == 0


def test_what_is_bytes() -> None:
    """Anything that can be looked at as bytes is copied, and bytes are not; text is told what it lacks."""
    data = b"abc"
    assert as_bytes(data) is data
    assert as_bytes(bytearray(b"abc")) == as_bytes(memoryview(b"abc")) == b"abc"
    with pytest.raises(UsageError, match=r"bytes, not str \(encode it"):
        as_bytes("abc")
    with pytest.raises(UsageError, match="bytes, not int"):
        as_bytes(3)
