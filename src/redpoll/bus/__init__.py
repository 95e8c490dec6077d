"""Tasks, calls, broadcasts and notifications between programs, on any engine: only the URL changes."""

from redpoll.bus.broadcast import Broadcast, Broadcasts, BroadcastSubscription
from redpoll.bus.bus import Bus, Queues, connect
from redpoll.bus.context import Context, current_context, use_headers
from redpoll.bus.engine import (
    Clock,
    Consumer,
    Delivery,
    DeliverySink,
    Engine,
    EventSink,
    Listener,
    Observer,
    Subscription,
    Timer,
    Watcher,
)
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind, Payloads
from redpoll.bus.records import (
    AtLimit,
    Capabilities,
    Event,
    Publication,
    QueueInfo,
    QueueKind,
    QueueSpec,
    Receipt,
    ScheduleInfo,
    TaskInfo,
    TaskState,
)
from redpoll.bus.state import EngineState, Status
from redpoll.bus.tasks import Claim, Handle, Requeue, Retry, Task, Tasks, Worker
from redpoll.bus.urls import EngineURL

__all__ = [
    "AtLimit",
    "Broadcast",
    "BroadcastSubscription",
    "Broadcasts",
    "Bus",
    "Capabilities",
    "Claim",
    "Clock",
    "Consumer",
    "Context",
    "Delivery",
    "DeliverySink",
    "Engine",
    "EngineState",
    "EngineURL",
    "Envelope",
    "Event",
    "EventSink",
    "Handle",
    "Listener",
    "Observer",
    "Outcome",
    "OutcomeKind",
    "Payloads",
    "Publication",
    "QueueInfo",
    "QueueKind",
    "QueueSpec",
    "Queues",
    "Receipt",
    "Requeue",
    "Retry",
    "ScheduleInfo",
    "Status",
    "Subscription",
    "Task",
    "TaskInfo",
    "TaskState",
    "Tasks",
    "Timer",
    "Watcher",
    "Worker",
    "connect",
    "current_context",
    "use_headers",
]
