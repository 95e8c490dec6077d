"""``memory://``: a broker in this process."""

from redpoll.bus.engines.memory.engine import LIMITS, MAX_BODY, MemoryEngine, open_engine

__all__ = ["LIMITS", "MAX_BODY", "MemoryEngine", "open_engine"]
