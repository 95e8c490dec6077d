from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory import resident_bytes
from redpoll.transport.mapped_memory import map_memory
from redpoll.wire.assembly import EAGER_ALLOCATION, KEPT_BODIES, KEPT_SIZE, MAPPED_ABOVE, Assembly, BodyPool
from tests.wire.support import (
    NAME,
    REQ_ACK,
    arrived,
    feed,
    frame,
    linked,
    reader_of,
)

MIB = 1024 * 1024


def assembly(total: int, first: int | None = None) -> Assembly:
    return Assembly(NAME, 1, 0, b"", total, total if first is None else first, None, BodyPool(map_memory))


@given(st.data(), st.binary(min_size=1, max_size=5000))
def test_any_pieces(data: st.DataObject, body: bytes) -> None:
    """A body is assembled from any mixture of copied pieces and pieces read into its own memory."""
    first = data.draw(st.integers(0, len(body)))
    whole = assembly(len(body), first)
    while not whole.complete:
        size = data.draw(st.integers(1, len(body) - whole.filled))
        piece = body[whole.filled : whole.filled + size]
        if data.draw(st.booleans()):
            whole.append(memoryview(piece))
        else:
            room = whole.room(size)
            count = min(len(room), size)
            assert count > 0
            room[:count] = piece[:count]
            del room
            whole.filled += count
    assert bytes(whole.buffer) == body


@given(st.integers(1, 2**62), st.integers(0, 2**62))
def test_announced_bytes_cost_nothing(total: int, first: int) -> None:
    """Whatever length a frame declares, at most `EAGER_ALLOCATION` is allocated before a byte of it arrives."""
    assert len(assembly(total, min(first, total)).buffer) == min(total, first, EAGER_ALLOCATION)


def test_grows_with_what_arrived() -> None:
    """A body of 64 MiB never has more than twice the memory of what arrived, beyond the first allocation."""
    total = 64 * MIB
    whole = assembly(total)
    piece = memoryview(bytes(256 * 1024))
    while not whole.complete:
        room = whole.room(total - whole.filled)
        count = min(len(room), len(piece))
        del room
        whole.filled += count
        assert len(whole.buffer) <= max(EAGER_ALLOCATION, 2 * whole.filled)
    assert len(whole.buffer) == total


def test_a_body_that_grows_keeps_what_it_has() -> None:
    """Memory that moves as it grows keeps its contents, mapped or not; its view is writable."""
    total = MAPPED_ABOVE + 100_001
    body = bytes(range(251)) * (total // 251 + 1)
    whole = assembly(total, 1000)
    while not whole.complete:
        room = whole.room(total - whole.filled)
        room[:] = body[whole.filled : whole.filled + len(room)]
        whole.filled += len(room)
        del room
    assert bytes(whole.buffer) == body[:total]
    memoryview(whole.buffer)[0] = 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a map cannot grow, and a body grows by steps")
def test_memory_that_nothing_arrived_in_is_not_used() -> None:
    """A body whose bytes are only counted, and not written, takes no more than is populated for them."""
    whole = assembly(1024 * MIB)
    before = resident_bytes()
    while whole.filled < 512 * MIB:
        whole.filled += len(whole.room(1024 * MIB))
    assert resident_bytes() - before < 64 * MIB


def test_room_is_never_empty() -> None:
    """There is room for the next byte even if the first frame had none, or almost none."""
    for first in (0, 1):
        whole = assembly(10 * MIB, first)
        whole.filled = first
        assert len(whole.room(10 * MIB - first)) > 0


def test_discarded_keeps_nothing() -> None:
    """A discarded body is counted to its end, and nothing of it or its header is kept."""
    whole = Assembly(NAME, 1, 0, b"header", 10 * MIB, 10 * MIB, None)
    whole.discard()
    assert (whole.header, whole.size) == (b"", 10 * MIB + 6)
    while not whole.complete:
        room = whole.room(whole.total - whole.filled)
        assert 0 < len(room) <= 64 * 1024
        whole.filled += len(room)
        assert len(whole.buffer) == 0
    whole = assembly(1000)
    whole.discard()
    whole.append(memoryview(bytes(1000)))
    assert whole.complete


# In a link


@pytest.mark.parametrize("size", [EAGER_ALLOCATION + 1, 2 * EAGER_ALLOCATION, 2 * EAGER_ALLOCATION + 1, 3 * MIB])
@pytest.mark.parametrize("here", [27, 28, 60_000])
def test_large_body(size: int, here: int) -> None:
    """A large body arrives whole, whatever part of it arrives with its preamble, and then the next frame."""
    link = linked()
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    feed(link, frame(REQ_ACK, 1, body, header=b"h") + frame(0, 2, b"next"), (here, size))
    assert arrived(link) == [(REQ_ACK, 1, NAME, b"h", body), (0, 2, NAME, b"", b"next")]


def test_large_body_is_not_copied() -> None:
    """The handler gets the memory that a large body was read into."""
    link = linked()
    body = bytes(300_000)
    feed(link, frame(REQ_ACK, 1, body)[: 27 + 1000])
    room = reader_of(link).get_buffer(memoryview(bytearray(1)))
    owner = room.obj
    while not link.arrived.messages:
        count = len(room)
        room[:] = bytes(count)
        del room
        reader_of(link).received(memoryview(bytearray(1)), count, 0.0)
        room = reader_of(link).get_buffer(memoryview(bytearray(1)))
    assert isinstance(link.arrived.messages[0].data, memoryview)
    assert link.arrived.messages[0].data.obj is owner
    assert not link.arrived.messages[0].data.readonly


def test_large_body_as_bytes() -> None:
    """Where bytes are wanted, a large body arrives as bytes."""
    link = linked(flat=True)
    feed(link, frame(REQ_ACK, 1, bytes(100_000)))
    assert type(link.arrived.messages[0].data) is bytes


def test_preambles_allocate_little() -> None:
    """A hundred links that were each promised 100 MB hold a hundred first allocations and no more."""
    tracemalloc.start()
    try:
        links = [linked() for _ in range(100)]
        before = tracemalloc.get_traced_memory()[0]
        for link in links:
            feed(link, frame(REQ_ACK, 1, size=100_000_000) + bytes(10))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100 * (EAGER_ALLOCATION + 10_000)


# Memory that is used again


def test_memory_is_used_again_when_nobody_has_it() -> None:
    """The memory of a body is reused for the next of its size once nothing refers to it, and not before."""
    pool = BodyPool()
    first = Assembly(NAME, 1, 0, b"", 1000, 1000, None, pool)
    pool.keep(first.buffer)
    data = memoryview(first.buffer)
    place = id(first.buffer)
    del first
    assert pool.take(1000) is None
    part = data[10:20]
    del data
    assert pool.take(1000) is None
    del part
    assert (id(pool.take(1000)), pool.take(999)) == (place, None)


def test_memory_is_not_used_twice_at_a_time() -> None:
    """Two bodies that arrive side by side never share memory."""
    pool = BodyPool()
    pool.keep(bytearray(1000))
    first, second = (Assembly(NAME, serial, 0, b"", 1000, 1000, None, pool) for serial in (1, 2))
    assert first.buffer is not second.buffer


def test_memory_kept_is_bounded() -> None:
    """A pool keeps few bodies, and none that is very large."""
    pool = BodyPool()
    for _ in range(3 * KEPT_BODIES):
        pool.keep(bytearray(1000))
    pool.keep(bytearray(KEPT_SIZE + 1))
    taken = []
    while (buffer := pool.take(1000)) is not None:
        taken.append(buffer)
    assert len(taken) == KEPT_BODIES
    assert pool.take(KEPT_SIZE + 1) is None


def test_a_body_in_used_memory_is_its_own() -> None:
    """A body that arrives in memory that was used before shows nothing of what was there."""
    pool = BodyPool()
    link = linked()
    link.body_pool = pool
    bodies = [bytes([number]) * 100_000 for number in range(1, 7)]
    for serial, body in enumerate(bodies):
        feed(link, frame(0, serial, body), (60_000,))
        assert arrived(link)[0][4] == body
    kept = []
    for serial, body in enumerate(bodies):
        feed(link, frame(0, serial, body), (60_000,))
        kept.append(link.arrived.messages.pop().data)
    assert [bytes(data) for data in kept] == bodies
