"""Goodbyes, and the messages that cross them."""

from __future__ import annotations

from typing import Any

import pytest

from redpoll.wire.bodies import LARGE
from redpoll.wire.frames import ACK_ANSWER, Goodbye
from redpoll.wire.inbound import Inbound
from redpoll.wire.states import LinkState
from tests.wire.linked import transmit
from tests.wire.support import (
    ACK,
    FRAGMENT,
    GOODBYE,
    REQ_ACK,
    RETRY,
    WANTED,
    Sent,
    add_link,
    announcement,
    bare_link,
    feed,
    frame,
    handshake,
    linked,
    make_peer,
    peer_of,
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
    """If no message was accepted, the goodbye says so: no serial could."""
    link = linked()
    link.leave()
    assert taken(link) == frame(GOODBYE, 0, b"\x01", identity=bytes(16))


def test_goodbye_that_takes_all() -> None:
    """A node that only leaves a link accepts messages that cross its goodbye: only those not begun are returned."""
    link = linked()
    feed(link, frame(REQ_ACK, 8))
    link.leave(accept_all=True)
    link.leave()
    assert taken(link) == frame(GOODBYE, 8, b"\2", identity=bytes(16))
    feed(link, frame(REQ_ACK, 9) + frame(0, 10) + frame(REQ_ACK, 11, bytes(LARGE + 1)))
    assert [message.serial for message in link.arrived.messages] == [8, 9, 10, 11]
    assert not link.admits(Sent())
    other = linked(fragment_size=4)
    transmit(other)
    waits = transmit(other, b"not begun")
    assert other.goodbye_received(Goodbye.ALL, 0, peer_of(other).serial) == [waits]


def test_a_resend_is_not_the_last_message() -> None:
    """A resent message has an old serial, which would move the last one back."""
    link = linked()
    feed(link, frame(REQ_ACK | RETRY, 3))
    assert link.last_serial is None
    feed(link, frame(REQ_ACK, 9) + frame(REQ_ACK | RETRY, 4, bytes(LARGE + 1)))
    assert link.last_serial == 9


def test_goodbye_before_the_announcement() -> None:
    """A node that leaves before the other end announced itself says goodbye when it has."""
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
    """Messages after the last serial of a goodbye are returned in order, also across the wrap of serials."""
    link = add_link(make_peer(serial=serial))
    sendings = [transmit(link) for _ in range(6)]
    assert link.goodbye_received(Goodbye.UP_TO, sendings[1].serial, peer_of(link).serial) == sendings[2:]
    assert list(link.in_flight.values()) == sendings[:2]
    assert (link.window.used, link.window.used_bytes) == (2, 8)


@pytest.mark.parametrize("ago", [5, 0x7FFFFFFF, 0x80000001, 0xFFFFFF00])
def test_what_is_handled_for_long_is_not_late(ago: int) -> None:
    """A message accepted before the last one is not late, however many serials ago."""
    link = linked()
    peer = peer_of(link)
    handled = transmit(link)
    peer.serial = (handled.serial + ago) & 0xFFFFFFFF
    taken_last, late = transmit(link), transmit(link)
    assert link.goodbye_received(Goodbye.UP_TO, taken_last.serial, peer_of(link).serial) == [late]
    assert link.in_flight == {handled.serial: handled, taken_last.serial: taken_last}


def test_goodbye_that_took_nothing() -> None:
    """A goodbye without a serial gives everything back."""
    link = linked()
    sendings = [transmit(link) for _ in range(3)]
    assert link.goodbye_received(Goodbye.NONE, 0, peer_of(link).serial) == sendings
    assert (link.in_flight, link.window.used, link.window.used_bytes) == ({}, 0, 0)


def test_a_large_message_that_waits_is_late() -> None:
    """A large message of which nothing is written is returned by a goodbye, one that began in time continues."""
    link = linked(fragment_size=4)
    begun, waits = transmit(link, b"begun in time"), transmit(link, b"not begun", 0)
    link.take_fragment(0.0)
    assert link.goodbye_received(Goodbye.UP_TO, begun.serial, peer_of(link).serial) == [waits]
    assert [transfer.out for transfer in link.transfers] == [begun]
    assert (link.window.used, link.window.used_bytes) == (1, 13)


def test_serials_are_in_the_order_of_the_wire() -> None:
    """A large message gets its serial when it begins, so small ones that pass it have smaller ones."""
    link = linked(fragment_size=4)
    large = transmit(link, b"large body")
    small = transmit(link)
    serials = [serial for kind, serial, *_ in sent(link) if kind != FRAGMENT]
    assert serials == [small.serial, large.serial] == [1, 2]


class _Leaves(Sent):
    """A sending whose end makes its link be left at once, as an eager task may."""

    __slots__ = ()

    def settle(self, answer: Inbound[Any] | None, error: BaseException | None) -> None:
        super().settle(answer, error)
        self.link.leave()


@pytest.mark.parametrize("kind", [0, WANTED])
def test_goodbye_within_a_read(kind: int) -> None:
    """Messages behind an end that made the link be left are not accepted, as its goodbye says."""
    peer = make_peer()
    link = add_link(peer)
    peer.submit(out := _Leaves(kind=REQ_ACK | kind), 0.0)
    taken(link)
    ends = frame(ACK_ANSWER if kind else ACK, out.serial, identity=out.identity)
    feed(link, frame(REQ_ACK, 8) + ends + frame(REQ_ACK, 9))
    assert out.settled
    assert [message.serial for message in link.arrived.messages] == [8]
    assert sent(link)[-1][:2] == (GOODBYE, 8)
