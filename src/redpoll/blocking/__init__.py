"""Nodes for code without asyncio: `QueueNode` is pulled from, `PoolNode` has a handler that runs in threads."""

from redpoll.blocking.pool_node import PoolNode
from redpoll.blocking.queue_node import QueueNode
from redpoll.blocking.received import Received

__all__ = ["PoolNode", "QueueNode", "Received"]
