"""Code without asyncio: nodes that are pulled from (`QueueNode`) or have a handler (`PoolNode`), and a bus (`connect`)."""

from redpoll.blocking.base import Received
from redpoll.blocking.connecting import connect
from redpoll.blocking.pool_node import PoolNode
from redpoll.blocking.queue_node import QueueNode

__all__ = ["PoolNode", "QueueNode", "Received", "connect"]
