from __future__ import annotations

import mmap
import sys

import pytest

from benchmarks.memory import resident_bytes
from redpoll.transport import mapped_memory
from redpoll.transport.mapped_memory import AHEAD, MappedMemory, map_memory

MIB = 1024 * 1024

pytestmark = pytest.mark.skipif(map_memory is None, reason="elsewhere a map cannot grow, and bodies are not mapped")


def test_where_memory_is_mapped() -> None:
    """Linux has maps that grow."""
    assert (sys.platform == "linux") is (map_memory is not None)


def test_grows_and_keeps_what_it_has() -> None:
    """Bytes stay where they were written as it grows, behind them are zeros, and all of it can be written to."""
    memory = MappedMemory(10, 3 * MIB)
    memory[:10] = b"0123456789"
    for length in (11, 5_000, MIB, MIB + 1, 3 * MIB):
        memory.grow(length)
        assert len(memory) == length
        assert memory[:11] == b"0123456789\0"
    view = memoryview(memory)
    view[-1] = 7
    assert (len(view), view[3 * MIB - 1]) == (3 * MIB, 7)


def test_it_moves_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing step by step uses addresses up a few times alone, and never has more of them than it may grow to."""
    resized = []

    def resize(memory: MappedMemory, size: int) -> None:
        resized.append(size)
        mmap.mmap.resize(memory, size)

    monkeypatch.setattr(MappedMemory, "resize", resize)
    memory = MappedMemory(MIB, 1000 * MIB)
    for length in range(2 * MIB, 1001 * MIB, MIB):
        memory.grow(length)
    assert resized == [*(MIB << power for power in range(1, 10)), 1000 * MIB]


def test_only_what_is_about_to_be_filled_is_there() -> None:
    """A map of 1 GiB takes memory for what was populated, `AHEAD` bytes at a time, and for nothing else."""
    memory = MappedMemory(1024 * MIB, 1024 * MIB)
    before = resident_bytes()
    for filled in range(0, 16 * MIB, 1000):
        memory.populate(filled)
    grown = resident_bytes() - before
    assert 15 * MIB < grown < 16 * MIB + AHEAD + 2 * MIB
    memory.populate(1024 * MIB - 1)
    assert resident_bytes() - before - grown < 2 * MIB


def test_without_the_call_pages_are_made_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that cannot make pages ahead is asked once, and the memory works all the same."""
    monkeypatch.setattr(mapped_memory, "_MADV_POPULATE_WRITE", 9999)
    memory = MappedMemory(MIB, MIB)
    memory.populate(0)
    assert memory.populated == sys.maxsize
    memory.populate(mmap.PAGESIZE)
    memory[MIB - 1] = 1
    assert memory[MIB - 1] == 1
