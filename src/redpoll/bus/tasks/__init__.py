"""Tasks: one sender, one of many workers, an outcome."""

from redpoll.bus.tasks.chains import Chain, ChainOptions, Group, Parts, TaskChain, TaskGroup
from redpoll.bus.tasks.ending import Died, Requeue, Unfit
from redpoll.bus.tasks.handle import Handle
from redpoll.bus.tasks.retry import Retry
from redpoll.bus.tasks.task import Claim, Task
from redpoll.bus.tasks.tasks import Tasks
from redpoll.bus.tasks.worker import Plan, Worker

__all__ = [
    "Chain",
    "ChainOptions",
    "Claim",
    "Died",
    "Group",
    "Handle",
    "Parts",
    "Plan",
    "Requeue",
    "Retry",
    "Task",
    "TaskChain",
    "TaskGroup",
    "Tasks",
    "Unfit",
    "Worker",
]
