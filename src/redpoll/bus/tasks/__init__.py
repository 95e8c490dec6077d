"""Tasks: one sender, one of many workers, an outcome."""

from redpoll.bus.tasks.ending import Requeue, Unfit
from redpoll.bus.tasks.handle import Handle
from redpoll.bus.tasks.retry import Retry
from redpoll.bus.tasks.task import Claim, Task
from redpoll.bus.tasks.tasks import Tasks
from redpoll.bus.tasks.worker import Plan, Worker

__all__ = ["Claim", "Handle", "Plan", "Requeue", "Retry", "Task", "Tasks", "Unfit", "Worker"]
