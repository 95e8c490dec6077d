from __future__ import annotations

from collections.abc import Iterator

import pytest

from redpoll.address import Address
from redpoll.message import Message
from redpoll.wire.bodies import LARGE
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Body
from redpoll.wire.output import OUTPUT_LIMIT
from redpoll.wire.peer import Peer
from redpoll.wire.runs import transmit_run
from tests.wire.support import (
    REQ_ACK,
    THERE,
    Sent,
    add_link,
    announcement,
    begin_all,
    feed,
    frame,
    linked,
    make_peer,
    peer_of,
    sent,
    taken,
)


def run(
    link: Link[Peer], messages: Iterator[Message[bytes]], limit: int = 1000
) -> tuple[int, Message[bytes] | None, bool]:
    count, leftover, _, ended = transmit_run(peer_of(link), link, messages, THERE, bytes, limit, raw=True)
    return count, leftover, ended


def many(count: int, size: int = 3) -> list[Message[bytes]]:
    return [Message(bytes([number]) * size, THERE) for number in range(count)]


@pytest.mark.parametrize("size", [0, 3, 512, 513, 5000])
def test_a_run_writes_what_single_sends_write(size: int) -> None:
    """A run's bytes, serials and window are those of as many unacknowledged messages sent one by one."""
    messages = many(20, size)
    one, other = add_link(make_peer(serial=0xFFFFFFF8)), add_link(make_peer(serial=0xFFFFFFF8))
    assert run(one, iter(messages)) == (20, None, True)
    for message in messages:
        other.transmit(Sent(message.data, 0, message=message), peer_of(other), 0.0)
    assert taken(one) == taken(other)
    assert (one.window.used, one.window.used_bytes) == (other.window.used, other.window.used_bytes)
    assert peer_of(one).serial == peer_of(other).serial
    assert peer_of(one).counters.sent == 20


def test_a_run_of_many_sizes_writes_what_single_sends_write() -> None:
    """Also where sizes change, serials wrap around in between, and the limit is reached."""
    messages = [Message(bytes([size % 251]) * size, THERE) for size in (0, 0, 3, 3, 700, 3, 512, 513, 513, 0)]
    one, other = add_link(make_peer(serial=0xFFFFFFFA)), add_link(make_peer(serial=0xFFFFFFFA))
    assert run(one, iter(messages), limit=9) == (9, None, False)
    for message in messages[:9]:
        other.transmit(Sent(message.data, 0, message=message), peer_of(other), 0.0)
    assert one.output_size == other.output_size
    assert taken(one) == taken(other)
    assert (one.window.used, one.window.used_bytes) == (other.window.used, other.window.used_bytes)
    assert peer_of(one).serial == peer_of(other).serial == 3


def test_a_run_of_many_sizes_keeps_to_the_window() -> None:
    """Only the last message may exceed the window in bytes, whatever the sizes before it."""
    link = add_link(make_peer(), announced=announcement(units=1))
    messages = iter([*many(2, 30_000), *many(20, 1_000)])
    assert run(link, messages) == (8, None, False)
    assert len(list(messages)) == 14
    assert link.window.used_bytes == 66_000


def test_a_run_ends_at_what_is_no_part_of_it() -> None:
    """A message for elsewhere, with a header, too large, or that continues another ends the run and is handed back."""
    link = add_link(make_peer(), announced=announcement(kib=4))
    feed(link, frame(REQ_ACK, 3, b"x"))
    (received,) = begin_all(link)
    for odd in (
        Message(b"x", Address("tcp", "127.0.0.1", 9)),
        Message(b"x", THERE, header=b"h"),
        Message(bytes(4097), THERE),
        received.reply(b"x"),
    ):
        messages = iter([*many(2), odd, *many(2)])
        assert run(link, messages) == (2, odd, False)
        assert len(list(messages)) == 2
        assert [len(data) for *_, data in sent(link)] == [3, 3]


def test_a_run_keeps_to_its_limit() -> None:
    """No message is asked for beyond the limit, nor beyond the window in bytes."""
    link = add_link(make_peer(), announced=announcement(units=1))
    messages = iter(many(50))
    assert run(link, messages, limit=7) == (7, None, False)
    assert len(list(messages)) == 43
    messages = iter(many(50, 30_000))
    assert run(link, messages) == (3, None, False)
    assert len(list(messages)) == 47
    assert peer_of(link).free_window == 0


def test_output_taken_amid_a_run_is_half_of_it() -> None:
    """Output that is taken while a run is written, as a send in between may do, is followed by the rest."""
    link = linked()
    before = link.bytes_sent
    early: list[Body] = []

    def generate() -> Iterator[Message[bytes]]:
        for number, message in enumerate(many(6)):
            if number == 3:
                early.extend(link.take_output())
            yield message

    assert run(link, generate()) == (6, None, True)
    assert sum(map(len, early)) == sum(map(len, link.take_output())) > 0
    assert link.bytes_sent - before == 2 * sum(map(len, early))


def test_output_taken_at_the_end_of_a_run_is_not_counted_as_waiting() -> None:
    """After the code that creates the messages had all of them written, there is no output, so a message is admitted."""
    link = linked()

    def generate() -> Iterator[Message[bytes]]:
        yield from many(10, OUTPUT_LIMIT // 8)
        link.take_output()

    assert run(link, generate()) == (10, None, True)
    assert (link.output, link.output_size) == ([], 0)
    assert link.admits(Sent(b"next", 0))


def test_what_makes_the_messages_may_send() -> None:
    """Messages that a generator itself sends to the same peer end the run: they come before the next one."""
    link = add_link(make_peer(), announced=announcement(window=4))
    peer = peer_of(link)
    messages = many(4)
    inner = [Sent(b"inner") for _ in range(3)]

    def generate() -> Iterator[Message[bytes]]:
        yield from messages[:2]
        for out in inner:
            peer.submit(out, 0.0)
        yield from messages[2:]

    assert run(link, generate(), limit=4) == (2, messages[2], False)
    assert (link.window.used, link.window.used_bytes, link.in_flight) == (2, 6, {})
    peer.pump(0.0)
    assert [(serial, data) for _, serial, _, _, data in sent(link)] == [
        (1, messages[0].data),
        (2, messages[1].data),
        (3, b"inner"),
        (4, b"inner"),
    ]
    assert list(peer.queue) == inner[2:]


def test_a_run_that_raises() -> None:
    """Messages written before the generator raised are written and counted."""
    link = linked()

    def generate() -> Iterator[Message[bytes]]:
        yield from many(2)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        run(link, generate())
    assert len(sent(link)) == 2
    assert (link.window.used, link.window.used_bytes, peer_of(link).counters.sent) == (2, 6, 2)


def test_data_of_a_run_is_encoded() -> None:
    """Data that is not bytes goes through the serializer."""
    link = linked()
    transmit_run(
        peer_of(link), link, iter([Message("text", THERE)]), THERE, lambda data: str(data).encode(), 5, raw=True
    )
    assert [data for *_, data in sent(link)] == [b"text"]


def test_bytes_are_encoded_too_unless_raw() -> None:
    """Only a serializer that leaves bytes as they are is passed over for them."""
    link = linked()
    for raw in (False, True):
        transmit_run(
            peer_of(link), link, iter([Message(b"x", THERE)]), THERE, lambda data: b"<" + data + b">", 5, raw=raw
        )
    assert [data for *_, data in sent(link)] == [b"<x>", b"x"]


def test_what_was_encoded_of_the_one_left_over_is_handed_back() -> None:
    """A message that turns out to be too large once it is encoded need not be encoded again."""
    link = linked()
    large = Message("x" * (LARGE + 1), THERE)
    made: list[bytes] = []

    def encode(data: str) -> bytes:
        made.append(data.encode())
        return made[-1]

    count, leftover, encoded, ended = transmit_run(peer_of(link), link, iter([large]), THERE, encode, 5, raw=True)
    assert (count, ended) == (0, False)
    assert leftover is large
    assert encoded is made[0]
    assert len(made) == 1
