"""A connection in memory: a perfect one unless told otherwise, in a time that stands still."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import ConfigError, UsageError
from redpoll.testing import FaultyPipe, VirtualClock


def test_clock() -> None:
    """Time goes by when it is told to, and not backwards."""
    clock = VirtualClock(5.0)
    assert (clock(), clock.advance(2.5), clock.advance_to(7.0), clock.advance_to(9.0), clock.now) == (5, 7.5, 7.5, 9, 9)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ConfigError):
            clock.advance(wrong)
    assert repr(clock) == "<VirtualClock 9 s>"


@given(st.lists(st.binary()), st.lists(st.integers(1, 10)), st.one_of(st.none(), st.integers(1, 5)))
def test_perfect_unless_told(writes: list[bytes], reads: list[int], piece: int | None) -> None:
    """All that is written is read, in order, however it is written and read."""
    pipe = FaultyPipe()
    pipe.forward.piece = piece
    for data in writes:
        pipe.forward.write(data)
    found = b"".join(pipe.forward.read(size) for size in reads)
    while data := pipe.forward.read():
        assert piece is None or len(data) <= piece
        found += data
    assert found == b"".join(writes)
    assert (len(pipe.forward), pipe.forward.written, pipe.back.written) == (0, len(found), 0)


def test_delay() -> None:
    """Delayed bytes are under way until their time, and none overtakes another."""
    pipe = FaultyPipe()
    stream = pipe.forward
    stream.delay = 2.0
    stream.write(b"slow")
    stream.delay = 0.0
    stream.write(b"fast")
    assert (bool(stream), len(stream), stream.read(), pipe.next_due()) == (False, 8, b"", 2.0)
    pipe.clock.advance(2.0)
    assert (stream.readable, stream.read(6), stream.read(), pipe.next_due()) == (8, b"slowfa", b"st", None)


def test_hold() -> None:
    """Held, nothing can be read, not even the end; the other direction goes on."""
    pipe = FaultyPipe()
    pipe.forward.write(b"x")
    pipe.forward.held = True
    pipe.forward.close()
    pipe.back.write(b"y")
    assert (pipe.forward.read(), pipe.forward.ended, pipe.forward.next_due(), pipe.back.read()) == (
        b"",
        False,
        None,
        b"y",
    )
    pipe.forward.held = False
    assert (pipe.forward.ended, pipe.forward.read(), pipe.forward.ended) == (False, b"x", True)


def test_cut() -> None:
    """A cut loses what is under way, and both see the end."""
    pipe = FaultyPipe()
    pipe.forward.write(b"abc")
    pipe.back.write(b"de")
    pipe.back.held = True
    assert pipe.cut() == 5
    assert [(stream.ended, stream.lost, len(stream)) for stream in pipe.streams] == [(True, 3, 0), (True, 2, 0)]
    with pytest.raises(UsageError):
        pipe.forward.write(b"more")


def test_silence() -> None:
    """Silenced, everything is lost and nobody sees an end."""
    pipe = FaultyPipe()
    pipe.back.write(b"before")
    pipe.silence()
    pipe.back.write(b"after")
    pipe.back.close()
    assert (pipe.back.read(), pipe.back.ended, pipe.back.lost) == (b"", False, 11)
    assert "silent, closed" in repr(pipe)
