"""What is between a communicator and one peer: order, bounds, what is taken back and what is given back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redpoll.errors import (
    Busy,
    Expired,
    MessageTooLarge,
    NoHandler,
    NotConfirmed,
    NotSent,
    PeerLost,
    QueueFull,
    ShuttingDown,
    Undecodable,
)
from redpoll.nq.core.puts import REDELIVERED
from tests.nq.core.support import PEER, Pair, Put, ended
from tests.wire.linked import lose

LOST = PeerLost(None, "cut")


def bodies(pair: Pair) -> list[bytes]:
    return [data for _, data in pair.went()]


# Order


def test_puts_wait_for_a_hello() -> None:
    """What is put before the peer's process said hello goes to it then, in order, and what is put later behind."""
    pair = Pair()
    first = pair.put(b"1", b"2")
    assert pair.session.count == 2
    pair.hello()
    assert bodies(pair) == [b"1", b"2"]
    second = pair.put(b"3")
    assert bodies(pair) == [b"3"]
    pair.confirm(*first, *second)
    assert [put.end_of_it for put in (*first, *second)] == [None] * 3
    assert not pair.session.count
    assert pair.endpoint.eased_with[-1] == 0


def test_what_is_given_back_goes_first() -> None:
    """What the node gives back goes to the next process in the order of the puts, whatever the order it came back in."""
    pair = Pair()
    pair.hello()
    puts = pair.put(*(b"%d" % number for number in range(6)))
    assert len(bodies(pair)) == 6
    pair.confirm(puts[0])
    for number in (3, 1, 2):
        puts[number].settle(None, NotConfirmed(puts[number].message, "lost", None))
    assert pair.endpoint.unlinked_with == [pair.session]
    later = pair.put(b"6")
    for number in (5, 4):
        puts[number].settle(None, NotSent(puts[number].message, "lost", None))
    assert not any(put.ends for put in (*puts[1:], *later))
    pair.hello()
    assert pair.went() == [
        *((REDELIVERED, b"%d" % number) for number in (1, 2, 3)),
        (b"", b"4"),
        (b"", b"5"),
        (b"", b"6"),
    ]


def test_what_was_redelivered_stays_so() -> None:
    """A put that may have come to one process is marked for each later one, also if it did not get to that."""
    pair = Pair()
    pair.hello()
    (put,) = pair.put(b"x")
    put.settle(None, NotConfirmed(put.message, "lost", None))
    pair.hello()
    put.settle(None, NotSent(put.message, "lost", None))
    pair.hello()
    assert pair.went() == [(REDELIVERED, b"x")]


@pytest.mark.parametrize("error", [NoHandler, ShuttingDown])
def test_what_was_not_begun_goes_again(error: Any) -> None:
    """A process that takes nothing yet, or no more, does not end a put: the next hello gets it."""
    pair = Pair()
    pair.hello()
    (put,) = pair.put(b"x")
    put.settle(None, error(put.message, None, None))
    assert put.end_of_it == "open"
    pair.hello()
    assert pair.went() == [(b"", b"x")]


def test_another_node_is_there() -> None:
    """What one node has not confirmed is taken back from it, and goes to the other: what was sent marked, in order."""
    pair = Pair()
    pair.hello(window=64)
    puts = pair.put(b"1", b"2")
    former = pair.link
    assert len(bodies(pair)) == 2
    former.writable = False
    puts += pair.put(b"3")
    pair.confirm(puts[0])
    pair.session.reclaim()
    pair.hello()
    assert pair.went() == [(REDELIVERED, b"2"), (b"", b"3")]
    assert not former.peer or not len(former.peer.queue)
    pair.confirm(*puts[1:])
    assert [put.end_of_it for put in puts] == [None] * 3


# Bounds


def test_one_too_many_is_refused() -> None:
    """At `queue_size` the put that is one too many fails with QueueFull, at once; what ends makes room."""
    pair = Pair(queue_size=2)
    pair.hello()
    puts = pair.put(b"1", b"2", b"3")
    assert isinstance(puts[2].end_of_it, QueueFull)
    assert ended(puts[2])
    pair.confirm(puts[0])
    (fourth,) = pair.put(b"4")
    assert fourth.end_of_it == "open"
    assert pair.session.count == 2


def test_bytes_too_many_are_refused() -> None:
    """At `queue_bytes` as well; one of any size fits where nothing waits."""
    pair = Pair(queue_bytes=10)
    puts = pair.put(b"x" * 100, b"y", b"")
    assert [type(put.end_of_it) for put in puts[1:]] == [QueueFull, QueueFull]
    assert "10 bytes" in str(puts[1].end_of_it)
    assert pair.session.bytes == 100


def test_the_oldest_that_was_not_sent_is_dropped() -> None:
    """What waits gives way to what comes: with the node or not, but nothing that was sent."""
    pair = Pair(queue_size=3, full="drop")
    pair.hello()
    sent = pair.put(b"sent")
    assert bodies(pair) == [b"sent"]
    pair.link.writable = False
    waiting = pair.put(b"1", b"2", b"3")
    assert sent[0].end_of_it == "open"
    assert isinstance(waiting[0].end_of_it, QueueFull)
    pair.link.writable = True
    pair.peer.pump(0.0)
    assert bodies(pair) == [b"2", b"3"]
    (late,) = pair.put(b"4")
    assert isinstance(late.end_of_it, QueueFull)  # all others were sent


def test_what_may_have_arrived_is_not_dropped() -> None:
    """What was sent to a former process is not the oldest that was not sent."""
    pair = Pair(queue_size=2, full="drop")
    pair.hello()
    (sent,) = pair.put(b"sent")
    sent.settle(None, NotConfirmed(sent.message, "lost", None))
    puts = pair.put(b"1", b"2")
    assert sent.end_of_it == "open"
    assert isinstance(puts[0].end_of_it, QueueFull)
    pair.hello()
    assert pair.went() == [(REDELIVERED, b"sent"), (b"", b"2")]


def test_nothing_is_dropped_in_vain() -> None:
    """A put for which there is no room, whatever is dropped, fails itself, and nothing else does."""
    pair = Pair(queue_bytes=30, full="drop")
    pair.hello()
    (sent,) = pair.put(b"x" * 25)
    pair.link.writable = False
    small = pair.put(*[b"s"] * 5)
    (large,) = pair.put(b"l" * 6)
    assert isinstance(large.end_of_it, QueueFull)
    assert [put.end_of_it for put in (sent, *small)] == ["open"] * 6
    (fits,) = pair.put(b"f" * 3)
    assert [type(put.end_of_it) for put in small] == [QueueFull] * 3 + [str] * 2
    assert fits.end_of_it == "open"


def test_the_newest_is_dropped() -> None:
    """With `drop_oldest` False it is the put itself that fails."""
    pair = Pair(queue_size=1, full="drop", drop_oldest=False)
    first, second = pair.put(b"1", b"2")
    assert first.end_of_it == "open"
    assert isinstance(second.end_of_it, QueueFull)


def test_who_waited_for_room_is_taken() -> None:
    """With `full="wait"` the one that puts has waited: what it puts then is taken, also if another was faster."""
    pair = Pair(queue_size=1, full="wait")
    assert [put.end_of_it for put in pair.put(b"1", b"2")] == ["open", "open"]
    assert not pair.session.has_room(1)
    pair.session.end(LOST)
    assert pair.session.has_room(1)  # to be told so


# Taking back


def test_what_was_not_sent_is_taken_back() -> None:
    """It ends as such, is not sent, and makes room; with the node or not."""
    pair = Pair(queue_size=3)
    puts = pair.put(b"1", b"2", b"3")
    assert pair.session.take_back(puts[1])
    assert (puts[1].end_of_it, pair.session.count) == ("withdrawn", 2)
    pair.hello()
    assert bodies(pair) == [b"1", b"3"]
    assert not pair.session.take_back(puts[0])
    pair.link.writable = False
    (waiting,) = pair.put(b"4")
    assert pair.session.take_back(waiting)
    pair.link.writable = True
    pair.peer.pump(0.0)
    assert bodies(pair) == []
    assert not pair.session.take_back(waiting)


def test_what_was_sent_once_is_not_taken_back() -> None:
    """A put that goes again, over another link or to another process, may have arrived."""
    pair = Pair()
    pair.hello(resume=10.0)
    (put,) = pair.put(b"x")
    assert bodies(pair) == [b"x"]
    lose(pair.link)
    assert put.end_of_it == "open"
    assert not pair.session.take_back(put)
    put.settle(None, NotConfirmed(put.message, "lost", None))
    assert not pair.session.take_back(put)


def test_what_is_taken_back_does_not_heap_up() -> None:
    """Ten thousand that are put and taken back leave nothing behind."""
    pair = Pair()
    pair.put(b"kept")
    for _ in range(10_000):
        (put,) = pair.put(b"x")
        pair.session.take_back(put)
    assert pair.session.count == 1
    assert len(pair.session._waiting) == 1
    pair.hello()
    assert bodies(pair) == [b"kept"]


def test_what_ended_is_not_taken() -> None:
    """A put that ended before it came here is passed over."""
    pair = Pair()
    put = Put(pair.session)
    put.end(None)
    pair.session.submit(put)
    assert pair.session.count == 0


# Errors


def test_errors_in_the_words_of_users() -> None:
    """A full peer is QueueFull, what the peer refused stays what it is, and all else is ConnectionResetError(peer)."""
    pair = Pair()
    pair.hello()
    puts = pair.put(*(b"x",) * 5)
    causes = [
        Busy(puts[0].message, "full", None),
        MessageTooLarge("message", 2, 1),
        Undecodable(puts[2].message, "what is this", None),
        Expired(puts[3].message, 1.0, "waiting", None),
    ]
    for put, cause in zip(puts, causes, strict=False):
        put.settle(None, cause)
    full, large, unread, expired = (put.end_of_it for put in puts[:4])
    assert isinstance(full, QueueFull)
    assert full.__cause__ is causes[0]
    assert large is causes[1]
    assert unread is causes[2]
    assert isinstance(expired, ConnectionResetError)
    assert expired.args == (PEER,)
    assert expired.__cause__ is causes[3]
    assert pair.session.count == 1
    assert pair.session.linked


@pytest.mark.parametrize(("cause", "told"), [(Busy, QueueFull), (Undecodable, Undecodable), (NoHandler, None)])
def test_what_was_refused_when_it_was_sent_again(cause: Any, told: Any) -> None:
    """Over a link that is back the peer's word counts as well, though the node cannot say what the first attempt did."""
    pair = Pair()
    pair.hello()
    (put,) = pair.put(b"x")
    error = NotConfirmed(put.message, "when it was sent again it was refused", None)
    error.__cause__ = cause(put.message, "why", None)
    put.settle(None, error)
    if told is None:
        assert put.end_of_it == "open"
        assert not pair.session.linked
    else:
        assert isinstance(put.end_of_it, told)
        assert pair.session.linked


def test_a_session_that_is_over() -> None:
    """What waits ends with its error, what the node has when that gives it back, and what is put later at once."""
    pair = Pair()
    pair.hello()
    sent, confirmed = pair.put(b"1", b"2")
    sent.settle(None, NotConfirmed(sent.message, "lost", None))
    (waiting,) = pair.put(b"3")
    pair.session.end(error := ConnectionResetError(PEER))
    pair.session.end(ConnectionResetError("another"))
    assert sent.end_of_it is error
    assert waiting.end_of_it is error
    assert confirmed.end_of_it == "open"
    confirmed.settle(None, None)
    assert confirmed.ends == [None]
    (late,) = pair.put(b"4")
    assert late.end_of_it is error
    assert pair.session.count == 0


def test_a_session_that_finishes() -> None:
    """Once a FIN is to be said what is put fails with ConnectionResetError(peer)."""
    pair = Pair()
    pair.session.finishing = True
    (put,) = pair.put(b"x")
    assert isinstance(put.end_of_it, ConnectionResetError)
    assert put.ends[0].args == (PEER,)


def test_what_is_dropped() -> None:
    """All puts end with an error, and what was not sent is not; what was sent ends when nothing reads it any more."""
    pair = Pair()
    pair.hello()
    sent = pair.put(b"sent")
    assert bodies(pair) == [b"sent"]
    pair.link.writable = False
    waiting = pair.put(b"1", b"2")
    pair.session.drop(error := ConnectionAbortedError(PEER))
    assert [put.end_of_it for put in (*sent, *waiting)] == ["open", error, error]
    assert (pair.session.count, pair.session.bytes) == (0, 0)
    pair.link.writable = True
    pair.peer.pump(0.0)
    assert b"1" not in bodies(pair)
    (later,) = pair.put(b"later")
    assert later.end_of_it == "open"
    pair.session.end_dropped()
    assert sent[0].end_of_it is error
    assert (later.end_of_it, pair.session.count) == ("open", 1)


# All of it


@example([("hello", None), ("put", 0), ("crash", False), ("hello", None), ("confirm", 0)], "refuse")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 40)),
            st.tuples(st.just("take back"), st.integers(0, 30)),
            st.tuples(st.just("confirm"), st.integers(0, 30)),
            st.tuples(st.just("refuse"), st.integers(0, 30)),
            st.tuples(st.just("block"), st.booleans()),
            st.tuples(st.just("crash"), st.booleans()),
            st.tuples(st.just("hello"), st.none()),
        ),
        max_size=60,
    ),
    st.sampled_from(["refuse", "drop"]),
)
def test_in_order_and_once(steps: list[tuple[str, Any]], full: str) -> None:
    """Whatever happens to puts, each ends once, what one process gets is in order and no put twice, and counts are true."""
    pair = Pair(queue_size=8, queue_bytes=100, full=full)
    puts: list[Put] = []
    numbers: dict[bytes, int] = {}
    sizes: list[int] = []
    linked = False
    got: list[int] = []

    def look() -> None:
        if linked:
            got.extend(numbers[data] for data in bodies(pair))
        assert got == sorted(set(got))
        open_puts = [put for put in puts if not put.ends]
        assert pair.session.count == len(open_puts)
        assert pair.session.bytes == sum(sizes[puts.index(put)] for put in open_puts)
        assert all(len(put.ends) < 2 for put in puts)

    for step, value in steps:
        if step == "put":
            body = b"%d" % len(puts) + b"." * value
            numbers[body] = len(puts)
            put = Put(pair.session, body)
            sizes.append(len(body))
            before = [each for each in puts if not each.ends]
            puts.append(put)
            pair.session.submit(put)
            if put.ends:
                assert not any(each.ends for each in before)
        elif step == "hello":
            if not pair.session.linked:
                got.clear()
                pair.hello()
                linked = True
        elif step == "block":
            if linked:
                pair.link.writable = value
                if not value:
                    continue
                pair.peer.pump(0.0)
        elif step == "crash":
            if pair.session.linked:
                bodies(pair)
                for delivery in pair.session.node_deliveries():
                    kind = NotConfirmed if delivery.stage else NotSent
                    delivery.settle(None, kind(delivery.message, "lost", None))
                linked = False
        elif value < len(puts) and not puts[value].ends:
            put = puts[value]
            if step == "take back":
                pair.session.take_back(put)
            elif put.on_node and put.stage == 1:
                bodies_now = bodies(pair)
                got.extend(numbers[data] for data in bodies_now)
                if step == "confirm":
                    pair.confirm(put)
                else:
                    pair.link.in_flight.pop(put.serial)
                    pair.link.window.used -= 1
                    pair.link.window.used_bytes -= put.size
                    put.settle(None, Busy(put.message, "full", None))
        look()
    pair.session.end(LOST)
    for delivery in pair.session.node_deliveries():
        delivery.settle(None, NotConfirmed(delivery.message, "lost", None))
    assert [len(put.ends) for put in puts] == [1] * len(puts)
    assert pair.session.count == 0


@pytest.mark.parametrize(
    ("bound", "limit"), [({"queue_size": 2}, (2, "messages")), ({"queue_bytes": 2}, (2, "bytes"))], ids=str
)
def test_what_is_dropped_names_the_bound(bound: dict[str, int], limit: tuple[int, str]) -> None:
    """The error of the oldest says which bound the queue was at."""
    oldest, _, _ = Pair(full="drop", **bound).put(b"1", b"2", b"3")
    assert isinstance(oldest.end_of_it, QueueFull)
    assert (oldest.end_of_it.limit, oldest.end_of_it.unit) == limit
