"""What a goodbye says, and what becomes of what crosses it."""

from __future__ import annotations

import pytest

from redpoll.wire.bodies import LARGE
from redpoll.wire.frames import Goodbye
from redpoll.wire.states import LinkState
from tests.wire.linked import transmit
from tests.wire.support import (
    FRAGMENT,
    GOODBYE,
    REQ_ACK,
    RETRY,
    Sent,
    add_link,
    announcement,
    bare_link,
    feed,
    frame,
    handshake,
    linked,
    make_peer,
    sent,
    taken,
)


def test_goodbye_names_the_last_message_taken() -> None:
    """A goodbye has the serial of the last message that will be handled; saying it again does nothing."""
    link = linked()
    feed(link, frame(REQ_ACK, 8) + frame(0, 0xFFFFFFFF))
    link.leave()
    link.leave()
    assert taken(link) == frame(GOODBYE, 0xFFFFFFFF, b"\0", identity=bytes(16))
    assert link.state is LinkState.LEAVING


def test_goodbye_before_any_message() -> None:
    """Where no message was taken the goodbye says so: no serial could."""
    link = linked()
    link.leave()
    assert taken(link) == frame(GOODBYE, 0, b"\x01", identity=bytes(16))


def test_goodbye_that_takes_all() -> None:
    """A node that only gives up a link takes what crosses its goodbye: nothing comes back but what was not begun."""
    link = linked()
    feed(link, frame(REQ_ACK, 8))
    link.leave(take_all=True)
    link.leave()
    assert taken(link) == frame(GOODBYE, 8, b"\2", identity=bytes(16))
    feed(link, frame(REQ_ACK, 9) + frame(0, 10) + frame(REQ_ACK, 11, bytes(LARGE + 1)))
    assert [message.serial for message in link.arrived] == [8, 9, 10, 11]
    assert not link.admits(Sent())
    other = linked(fragment_size=4)
    transmit(other)
    waits = transmit(other, b"not begun")
    assert other.left(Goodbye.ALL, 0) == [waits]


def test_a_resend_is_not_the_last_message() -> None:
    """A message sent again has an old serial, which would turn the last one back."""
    link = linked()
    feed(link, frame(REQ_ACK | RETRY, 3))
    assert link.last_serial is None
    feed(link, frame(REQ_ACK, 9) + frame(REQ_ACK | RETRY, 4, bytes(LARGE + 1)))
    assert link.last_serial == 9


def test_goodbye_before_the_announcement() -> None:
    """Who leaves before the other end announced itself says goodbye when it has."""
    link = bare_link()
    feed(link, handshake())
    link.leave()
    assert taken(link) == b""
    feed(link, announcement())
    assert [kind for kind, *_ in sent(link)] == [GOODBYE]


def test_no_goodbye_before_the_handshake() -> None:
    """A link without a handshake is not left: it is closed."""
    link = bare_link()
    link.leave()
    assert (link.state, link.take_output()) == (LinkState.HANDSHAKE, [])


@pytest.mark.parametrize("serial", [0, 0xFFFFFFFB, 0x7FFFFFFD])
def test_late_messages(serial: int) -> None:
    """What was sent behind the last serial of a goodbye comes back in order, also over the end of the serials."""
    link = add_link(make_peer(serial=serial))
    sendings = [transmit(link) for _ in range(6)]
    assert link.left(Goodbye.UP_TO, sendings[1].serial) == sendings[2:]
    assert list(link.in_flight.values()) == sendings[:2]
    assert (link.window_used, link.window_bytes_used) == (2, 8)


def test_goodbye_that_took_nothing() -> None:
    """A goodbye without a serial gives everything back."""
    link = linked()
    sendings = [transmit(link) for _ in range(3)]
    assert link.left(Goodbye.NONE, 0) == sendings
    assert (link.in_flight, link.window_used, link.window_bytes_used) == ({}, 0, 0)


def test_a_large_message_that_waits_is_late() -> None:
    """A large message none of which was written comes back with a goodbye, one begun in time goes on."""
    link = linked(fragment_size=4)
    begun, waits = transmit(link, b"begun in time"), transmit(link, b"not begun", 0)
    link.take_fragment(0.0)
    assert link.left(Goodbye.UP_TO, begun.serial) == [waits]
    assert [transfer.out for transfer in link.transfers] == [begun]
    assert (link.window_used, link.window_bytes_used) == (1, 13)


def test_serials_are_in_the_order_of_the_wire() -> None:
    """A large message gets its serial when it is begun, so small ones that pass it have the smaller ones."""
    link = linked(fragment_size=4)
    large = transmit(link, b"large body")
    small = transmit(link)
    serials = [serial for kind, serial, *_ in sent(link) if kind != FRAGMENT]
    assert serials == [small.serial, large.serial] == [1, 2]
