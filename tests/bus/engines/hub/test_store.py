"""A store without a disk."""

from __future__ import annotations

import pytest

from redpoll.bus.broker.outputs import Deleted, Forgotten, Write
from tests.bus.engines.hub.memory_store import MemoryStore


@pytest.mark.asyncio
async def test_memory_store_keeps_order() -> None:
    """What is written is done in order, before the store is closed, and is there in the next one with the same list."""
    kept: list[Write] = []
    store = MemoryStore(kept)
    done: list[int] = []
    store.write([Forgotten(1)], lambda: done.append(1))
    store.write([Deleted("q"), Forgotten(2)], lambda: done.append(2))
    assert done == []
    await store.close()
    assert done == [1, 2]
    again = MemoryStore(kept, store.name, store.epoch + 1)
    assert (again.name, list(again.load())) == (store.name, [Forgotten(1), Deleted("q"), Forgotten(2)])


@pytest.mark.asyncio
async def test_memory_store_keeps_nothing_unasked() -> None:
    """Without a list nothing is kept, and each has a name of its own."""
    store = MemoryStore()
    store.write([Forgotten(1)], lambda: None)
    await store.close()
    assert list(store.load()) == []
    assert len(bytes.fromhex(store.name)) == 4
    assert store.name != MemoryStore().name
