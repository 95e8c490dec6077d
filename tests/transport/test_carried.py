"""The transport whose bytes something else carries: what is written is taken in order, what came is fed as it is read."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.transport.carried import CarriedTransport

pytestmark = pytest.mark.asyncio


class Reader(asyncio.BufferedProtocol):
    """Reads into a buffer of ten bytes, and notes what it is told."""

    def __init__(self) -> None:
        self.buffer = bytearray(10)
        self.got = b""
        self.told: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note it."""
        self.told.append(transport)

    def get_buffer(self, sizehint: int) -> bytearray:  # asyncio's signature
        """Always the same one."""
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Keep what came."""
        self.got += self.buffer[:nbytes]

    def pause_writing(self) -> None:
        """Note it."""
        self.told.append("pause")

    def resume_writing(self) -> None:
        """Note it."""
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note it."""
        self.told.append(exc)


class Carried:
    """A transport with its protocol, and how often who carries it was called."""

    def __init__(self) -> None:
        self.protocol = Reader()
        self.woken = 0
        self.eased = 0
        self.transport = CarriedTransport(
            asyncio.get_running_loop(), self.protocol, self._wake, self._ease, {"peername": "there"}
        )

    def _wake(self) -> None:
        self.woken += 1

    def _ease(self) -> None:
        self.eased += 1


async def test_a_lower_mark_counts_at_once() -> None:
    """A mark that is set below what waits pauses the writer, until that is taken."""
    carried = Carried()
    carried.transport.write(b"abc")
    assert carried.protocol.told == []
    carried.transport.set_write_buffer_limits(high=0)
    assert carried.protocol.told == ["pause"]
    carried.transport.take(2)
    await asyncio.sleep(0)
    assert carried.protocol.told == ["pause"]
    carried.transport.take(2)
    await asyncio.sleep(0)
    assert carried.protocol.told == ["pause", "resume"]


async def test_what_is_written_is_taken_in_order_and_in_pieces() -> None:
    """`take` gives at most as many bytes as asked for, and refers to what was written."""
    carried = Carried()
    body = bytearray(b"0123456789")
    carried.transport.write(b"ab")
    carried.transport.writelines([b"", body])
    assert carried.woken == 1
    assert carried.transport.get_write_buffer_size() == 12
    first = carried.transport.take(5)
    body[3:5] = b"xy"
    assert [bytes(each) for each in first] == [b"ab", b"012"]
    assert b"".join(carried.transport.take(100)) == b"xy56789"
    assert carried.transport.get_write_buffer_size() == 0
    carried.transport.write(b"c")
    assert carried.woken == 2


async def test_writing_pauses_above_the_mark_and_goes_on_below() -> None:
    """The protocol is told once of each."""
    carried = Carried()
    carried.transport.set_write_buffer_limits(high=4)
    carried.transport.write(b"12345")
    carried.transport.write(b"6")
    assert carried.protocol.told == ["pause"]
    carried.transport.take(4)
    assert carried.protocol.told == ["pause"]
    await asyncio.sleep(0)
    assert carried.protocol.told == ["pause", "resume"]


async def test_a_large_part_is_cut_where_its_own_size_says() -> None:
    """Whatever small parts stand before it; they count up to as many bytes, and what is left is gone on with."""
    carried = Carried()
    for part in (b"ab", b"c", b"0123456789", b"d", b"01234567", b"ef", b"gh", b"ij"):
        carried.transport.write(part)
    taken = []
    while parts := carried.transport.take_piece(2, 4):
        taken.append(b"|".join(parts))
    assert taken == [b"ab|c|0123", b"4567", b"89|d|0123", b"4567", b"ef|gh", b"ij"]
    assert carried.transport.get_write_buffer_size() == 0


async def test_what_comes_is_read_in_pieces_of_the_protocol() -> None:
    """A chunk larger than the protocol's buffer is handed over in several reads."""
    carried = Carried()
    carried.transport.feed(b"0123456789abcdef")
    assert carried.protocol.got == b"0123456789abcdef"
    assert carried.eased == 1


async def test_what_comes_waits_while_reading_is_paused() -> None:
    """It is counted as unread, and delivered when reading goes on."""
    carried = Carried()
    carried.transport.pause_reading()
    carried.transport.feed(b"abc")
    carried.transport.feed(memoryview(b"de"))
    assert (carried.protocol.got, carried.transport.unread, carried.eased) == (b"", 5, 0)
    carried.transport.resume_reading()
    await asyncio.sleep(0)
    assert (carried.protocol.got, carried.transport.unread, carried.eased) == (b"abcde", 0, 1)


async def test_closing_leaves_what_was_written_to_be_taken() -> None:
    """After `close` nothing more is written or read, and the end is told when who carries it says so."""
    carried = Carried()
    carried.transport.write(b"last")
    carried.transport.close()
    assert carried.woken == 2
    carried.transport.write(b"more")
    carried.transport.feed(b"late")
    assert carried.transport.is_closing()
    assert b"".join(carried.transport.take(100)) == b"last"
    carried.transport.end(None)
    carried.transport.end(OSError())
    assert carried.protocol.told == []
    await asyncio.sleep(0)
    assert carried.protocol.told == [None]
    assert carried.protocol.got == b""


async def test_aborting_drops_what_was_written() -> None:
    """Nothing is left to take."""
    carried = Carried()
    carried.transport.write(b"lost")
    before = carried.transport.aborted
    carried.transport.abort()
    assert (before, carried.transport.aborted) == (False, True)
    assert carried.transport.take(100) == []
    assert carried.transport.get_write_buffer_size() == 0


async def test_begin_tells_the_protocol_and_extra_info_is_known() -> None:
    """The protocol is given its transport; what the carrier knows can be asked for."""
    carried = Carried()
    carried.transport.begin()
    assert carried.protocol.told == [carried.transport]
    assert carried.transport.get_extra_info("peername") == "there"
    assert carried.transport.get_extra_info("socket") is None
