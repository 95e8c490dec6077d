from __future__ import annotations

import pytest

from redpoll.errors import PeerLost
from redpoll.wire.link_timers import next_deadline, tick
from redpoll.wire.liveness import MIN_PROGRESS, StallDetector
from tests.wire.support import CONTINUED, REQ_ACK, add_link, feed, frame, make_peer, peer_of, plain_link


def looks(*looks: tuple[float, object, int, bool]) -> list[bool]:
    """The results of checks: time, what is in transfer, bytes received, whether this end does not read."""
    detector = StallDetector(10.0)
    detector.watch("a body", 0, 0.0)
    return [detector.stalled(what, received, now, excused=excused) for now, what, received, excused in looks]


def test_who_hardly_sends_is_stalled() -> None:
    """Less than the minimum progress in time is none."""
    assert looks((9.9, "a body", 5, False), (10.0, "a body", MIN_PROGRESS - 1, False)) == [False, True]


def test_who_sends_enough_is_not() -> None:
    """The minimum progress restarts the timeout from when it was seen."""
    assert looks((10.0, "a body", MIN_PROGRESS, False), (19.9, "a body", MIN_PROGRESS, False)) == [False, False]
    assert looks((10.0, "a body", MIN_PROGRESS, False), (20.0, "a body", MIN_PROGRESS, False)) == [False, True]


def test_another_message_is_another_time() -> None:
    """Another message in transfer has a timeout of its own."""
    assert looks((10.0, "another", 5, False), (19.9, "another", 5, False)) == [False, False]
    assert looks((10.0, "another", 5, False), (20.0, "another", 5, False)) == [False, True]


def test_who_does_not_read_excuses_the_other_end() -> None:
    """The time that this end did not read does not count."""
    assert looks((10.0, "a body", 5, True), (19.9, "a body", 5, False)) == [False, False]


def test_a_process_that_was_busy_looks_twice() -> None:
    """A late check closes nothing: pending bytes may be unread. The next one does."""
    assert looks((15.0, "a body", 5, False), (15.2, "a body", 5, False)) == [False, True]


def test_nothing_under_way_is_not_watched() -> None:
    """With nothing to wait for there is nothing to look at."""
    detector = StallDetector(10.0)
    detector.watch("a body", 0, 0.0)
    assert not detector.stalled(None, 0, 10.0, excused=False)
    assert detector.at is None


LARGE = frame(REQ_ACK, 1, bytes(1000), size=1_000_000)


def test_a_link_that_brings_a_byte_a_second_is_lost() -> None:
    """A large body without progress ends its link at the timeout, is counted, and reported; the owner gets the time."""
    link = plain_link(transfer_timeout=30.0, reuse_time=600.0)
    feed(link, LARGE)
    assert link.arrived.attention
    assert next_deadline(link) == 30.0
    for second in range(1, 30):
        feed(link, b"x", now=float(second))
        assert not isinstance(tick(link, float(second)), PeerLost)
    lost = tick(link, 30.0)
    assert isinstance(lost, PeerLost)
    assert str(lost).endswith("transfer of a message stalled: less than 16384 bytes in 30 s")
    assert link.memory.tally.slow_senders == 1


def test_a_small_message_in_part_is_watched_too() -> None:
    """An incomplete small frame closes the link as well, counted from when it was first seen."""
    link = plain_link(transfer_timeout=30.0, reuse_time=600.0)
    feed(link, frame(REQ_ACK, 1, bytes(5), size=50))
    assert not isinstance(tick(link, 5.0), PeerLost)
    assert next_deadline(link) == 35.0
    feed(link, b"x", now=20.0)
    assert isinstance(tick(link, 35.0), PeerLost)


def test_a_slow_link_is_not_lost() -> None:
    """A link with enough progress lasts as long as its body takes."""
    link = plain_link(transfer_timeout=30.0, reuse_time=600.0)
    feed(link, LARGE)
    for second in range(30, 300, 30):
        feed(link, bytes(MIN_PROGRESS), now=float(second))
        assert not isinstance(tick(link, float(second)), PeerLost)


def test_a_link_without_a_limit_may_be_slow() -> None:
    """With no time set nothing is looked at."""
    link = plain_link(transfer_timeout=None, reuse_time=600.0)
    feed(link, LARGE)
    assert not link.arrived.attention
    feed(link, b"x", now=500.0)
    assert not isinstance(tick(link, 500.0), PeerLost)


@pytest.mark.parametrize("transfer_timeout", [30.0, None])
def test_who_is_not_read_is_not_silent(transfer_timeout: float | None) -> None:
    """A link that this end has stopped reading, as too much waits, does not end because a message is incomplete."""
    link = plain_link(transfer_timeout=transfer_timeout, reuse_time=40.0, lookahead=0)
    feed(link, frame(REQ_ACK, 1, b"waits") + frame(REQ_ACK, 2, b"waits too") + frame(REQ_ACK, 3, b"", size=7))
    assert peer_of(link).slots.inbox.add(link)
    for now in (40.0, 80.0, 120.0):
        assert not isinstance(tick(link, now), PeerLost)


def test_what_comes_in_fragments_is_watched() -> None:
    """Between two fragments nothing is half read, and their message is under way all the same."""
    link = add_link(make_peer(transfer_timeout=30.0, reuse_time=600.0, keepalive=None))
    feed(link, frame(REQ_ACK | CONTINUED, 5, (500_000).to_bytes(8, "big") + bytes(100_000)))
    assert not isinstance(tick(link, 10.0), PeerLost)
    assert not isinstance(tick(link, 39.9), PeerLost)
    assert isinstance(tick(link, 40.0), PeerLost)
