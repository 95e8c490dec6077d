"""The window of a link: what fits, and how places are returned."""

from __future__ import annotations

import pytest

from redpoll.wire.output import OUTPUT_LIMIT
from redpoll.wire.states import SENDING, LinkState
from tests.wire.linked import transmit
from tests.wire.support import (
    ACK,
    CANCEL,
    CREDIT,
    Sent,
    add_link,
    announcement,
    feed,
    frame,
    linked,
    make_peer,
    sent,
    taken,
)


def test_window_in_messages() -> None:
    """No more messages are admitted than the other end announced, acknowledged or not; an ACK admits one more."""
    link = add_link(make_peer(), announced=announcement(window=3))
    first = transmit(link)
    transmit(link, kind=0)
    transmit(link)
    assert not link.admits(Sent())
    assert not link.admits(Sent(kind=0))
    feed(link, frame(ACK, first.serial, identity=first.identity))
    assert link.admits(Sent())


def test_window_in_bytes() -> None:
    """Bytes are limited too."""
    link = add_link(make_peer(), announced=announcement(units=1))
    transmit(link, bytes(60_000))
    assert link.admits(Sent(bytes(5536)))
    assert not link.admits(Sent(bytes(5537)))


def test_a_message_larger_than_the_window() -> None:
    """One message that is larger than the window goes beside the others: they count without it, and it without them."""
    link = add_link(make_peer(), announced=announcement(units=1))
    transmit(link, bytes(60_000))
    large = transmit(link, bytes(200_000))
    assert [link.admits(Sent(bytes(size))) for size in (5536, 5537, 65_537)] == [True, False, False]
    transmit(link, bytes(5000))
    taken(link)
    feed(link, frame(ACK, large.serial, identity=large.identity))
    assert [link.admits(Sent(bytes(size))) for size in (536, 537, 65_537)] == [True, False, True]


def test_a_message_just_larger_than_the_window() -> None:
    """When it has ended the others have the window and no more, though they may be as large together as it was."""
    link = add_link(make_peer(), announced=announcement(units=1))
    transmit(link, bytes(16_384))
    large = transmit(link, bytes(65_537))
    assert not link.admits(Sent(bytes(65_536)))
    transmit(link, bytes(49_152))
    taken(link)
    feed(link, frame(ACK, large.serial, identity=large.identity))
    assert link.window.free_bytes() == 0
    assert not link.admits(Sent(b"x"))


def test_a_message_larger_than_a_window_that_grows() -> None:
    """It counts like the others once the window holds it, and leaves no allowance behind when it ends."""
    link = add_link(make_peer(), announced=announcement(units=1))
    large = transmit(link, bytes(100_000))
    feed(link, announcement(units=4))
    assert link.window.free_bytes() == 4 * 65_536 - 100_000
    transmit(link, bytes(150_000))
    taken(link)
    feed(link, frame(ACK, large.serial, identity=large.identity))
    assert [link.admits(Sent(bytes(size))) for size in (112_144, 112_145)] == [True, False]


def test_a_message_that_is_answered_while_it_is_written() -> None:
    """A resend that the other end recognized by its first piece is not fully written; the other end is told so."""
    link = add_link(make_peer(fragment_size=100))
    out = transmit(link, bytes(500))
    link.take_fragment(0.0)
    feed(link, frame(ACK, out.serial, identity=out.identity))
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(CANCEL, out.serial)]
    assert not link.transfers


def test_a_message_larger_than_the_window_that_is_not_acknowledged() -> None:
    """Its bytes are returned by credit, like the others'; after that the window is as before."""
    link = add_link(make_peer(), announced=announcement(units=1))
    transmit(link, bytes(100), 0)
    transmit(link, bytes(70_000), 0)
    transmit(link, bytes(60_000), 0)
    taken(link)
    assert not link.admits(Sent(bytes(70_000)))
    feed(link, frame(CREDIT, 0, (2).to_bytes(4, "big") + (70_100).to_bytes(8, "big") + bytes(4)))
    assert [link.admits(Sent(bytes(size))) for size in (5536, 5537, 70_000)] == [True, False, True]
    transmit(link, bytes(5536), 0)
    assert link.window.free_bytes() == 0
    assert not link.admits(Sent(b"x"))


def test_credit_that_is_kept_back_stops_nothing() -> None:
    """The other end may keep credit for less than a quarter of the window: a large message is admitted all the same."""
    link = add_link(make_peer(), announced=announcement(units=4))
    transmit(link, bytes(65_535), 0)
    assert link.admits(Sent(bytes(256 * 1024)))
    transmit(link, bytes(2), 0)
    assert not link.admits(Sent(bytes(256 * 1024)))


def test_window_of_nothing() -> None:
    """A window of 0 stops messages until a later announcement opens it."""
    link = add_link(make_peer(), announced=announcement(window=0))
    assert not link.admits(Sent())
    feed(link, announcement(window=1))
    assert link.admits(Sent())


def test_transport_and_output_hold_messages_back() -> None:
    """No message is admitted while the transport is full, or more than `OUTPUT_LIMIT` waits to be taken."""
    link = add_link(make_peer(), announced=announcement(window=1000))
    link.writable = False
    assert not link.admits(Sent())
    link.writable = True
    while link.output_size <= OUTPUT_LIMIT:
        transmit(link, bytes(60_000), 0)
    assert not link.admits(Sent())
    taken(link)
    assert link.admits(Sent())


@pytest.mark.parametrize("state", list(LinkState))
def test_states_admit(state: LinkState) -> None:
    """Messages are admitted in the states in which the table allows sending."""
    link = linked()
    link.state = state
    link.sending = state in SENDING
    assert link.admits(Sent()) == (state is LinkState.OPEN)
