"""The bus for code without asyncio; `redpoll.blocking.connect` makes one."""

from redpoll.bus.threads.bus import BlockingBus, BlockingEngine, BlockingQueues, BlockingStatus
from redpoll.bus.threads.messages import (
    BlockingBroadcasts,
    BlockingClient,
    BlockingListener,
    BlockingNotifications,
    BlockingNotifier,
    BlockingRoutingNotifier,
    BlockingRpc,
    BlockingServer,
    BlockingSubscription,
)
from redpoll.bus.threads.tasks import (
    BlockingChain,
    BlockingClaim,
    BlockingGroup,
    BlockingHandle,
    BlockingTasks,
    BlockingWorker,
)

__all__ = [
    "BlockingBroadcasts",
    "BlockingBus",
    "BlockingChain",
    "BlockingClaim",
    "BlockingClient",
    "BlockingEngine",
    "BlockingGroup",
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
