from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.wire.capabilities import VERSION, Announcement
from tests.wire.support import (
    ANNOUNCE,
    NOOP,
    THEIRS,
    Feeding,
    announcement,
    bare_link,
    feed_as,
    frame,
    frames,
    handshake,
    linked,
    taken,
)

KIB = 1024


def test_golden_bytes() -> None:
    """An announcement is a NOOP whose identity holds magic, version, flags, slots, windows and largest message."""
    encoded = Announcement(
        slots=16, window=64, window_bytes=4096 * KIB, max_message_size=100 * 1024 * KIB, epoch=0x01020304
    ).encode()
    assert encoded.hex() == "f27201000010000000400040000190000102030400000000000004"


def test_is_a_noop_libchirp_ignores() -> None:
    """It has no header and no data and requests no acknowledgement: libchirp ignores it (chirp.md 1.7)."""
    ((kind, _, _, header, data),) = frames(Announcement(1, 1, 1, 1, 1).encode())
    assert (kind, header, data) == (NOOP, b"", b"")


@given(
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.integers(1, 0xFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
)
def test_round_trip(slots: int, window: int, units: int, kib: int, epoch: int) -> None:
    """Multiples of the units are decoded exactly."""
    told = Announcement(slots, window, units * 64 * KIB, kib * KIB, epoch)
    ((_, serial, identity, _, _),) = frames(told.encode())
    assert Announcement.decode(identity, serial) == told


@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**40))
def test_never_more_than_is_there(window_bytes: int, largest: int, window: int) -> None:
    """Other values are rounded down, but at least one unit of the window in bytes is granted."""
    ((_, serial, identity, _, _),) = frames(Announcement(1, window, window_bytes, largest, 0).encode())
    read = Announcement.decode(identity, serial)
    assert read is not None
    assert read.window == min(window, 0xFFFFFFFF)
    assert read.window_bytes <= max(window_bytes, 64 * KIB)
    assert window_bytes - read.window_bytes < 64 * KIB or read.window_bytes == 0xFFFF * 64 * KIB
    assert read.max_message_size <= largest
    assert largest - read.max_message_size < KIB or read.max_message_size == 0xFFFFFFFF * KIB


@pytest.mark.parametrize("identity", [bytes(16), b"\xf2s\x01" + bytes(13), b"r\xf2\x01" + bytes(13)])
def test_probe_is_none(identity: bytes) -> None:
    """A NOOP without the magic is libchirp's probe and announces nothing."""
    assert Announcement.decode(identity, 1) is None


def test_version_nought_is_none() -> None:
    """There is no version 0."""
    assert Announcement.decode(b"\xf2r\x00" + bytes(13), 1) is None


def test_higher_version_speaks_ours() -> None:
    """A node of a later version is spoken to in this one, its flags and numbers read as they are."""
    read = Announcement.decode(b"\xf2r\x09\xff" + bytes(12), 1)
    assert read is not None
    assert (read.version, read.flags) == (VERSION, 0xFF)


def test_received(feeding: Feeding) -> None:
    """A link knows what the other end can do however the announcement's bytes arrive."""
    link = bare_link()
    feed_as(link, handshake(1, THEIRS) + announcement(slots=3, window=5, units=2, kib=7, epoch=11), feeding)
    assert link.announced == Announcement(3, 5, 128 * KIB, 7 * KIB, 11)
    assert (link.window.limit, link.window.limit_bytes) == (5, 128 * KIB)


def test_later_one_replaces(feeding: Feeding) -> None:
    """A later announcement replaces the window; a NOOP without the magic changes nothing."""
    link = linked()
    feed_as(link, announcement(window=2) + frame(ANNOUNCE, 3, identity=bytes(16)), feeding)
    assert link.window.limit == 2
    assert not link.libchirp


def test_nobody_is_told_more_than_once() -> None:
    """An announcement is not answered: libchirp would not understand, a redpoll node needs none."""
    link = bare_link()
    feed_as(link, handshake(1, THEIRS) + announcement(), Feeding.WHOLE)
    assert taken(link) == b""
