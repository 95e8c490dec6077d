"""The bus for code without asyncio; `redpoll.blocking.connect` makes one."""

from redpoll.bus.threads.broadcast import BlockingBroadcasts, BlockingSubscription
from redpoll.bus.threads.bus import BlockingBus, BlockingQueues, BlockingStatus
from redpoll.bus.threads.notifications import (
    BlockingListener,
    BlockingNotifications,
    BlockingNotifier,
    BlockingRoutingNotifier,
)
from redpoll.bus.threads.rpc import BlockingClient, BlockingRpc, BlockingServer
from redpoll.bus.threads.tasks import BlockingClaim, BlockingHandle, BlockingTasks, BlockingWorker

__all__ = [
    "BlockingBroadcasts",
    "BlockingBus",
    "BlockingClaim",
    "BlockingClient",
    "BlockingHandle",
    "BlockingListener",
    "BlockingNotifications",
    "BlockingNotifier",
    "BlockingQueues",
    "BlockingRoutingNotifier",
    "BlockingRpc",
    "BlockingServer",
    "BlockingStatus",
    "BlockingSubscription",
    "BlockingTasks",
    "BlockingWorker",
]
