from __future__ import annotations

from redpoll.wire.memory import Memory
from redpoll.wire.slots import SlotPool


def test_slots_are_counted_down() -> None:
    """So many slots are free as there are and none holds; what a node holds in memory is its own unless it is given."""
    memory = Memory(1000)
    pool = SlotPool(3, memory)
    pool.used += 2
    assert (pool.free, pool.memory) == (1, memory)
    assert SlotPool(1).memory is not SlotPool(1).memory
