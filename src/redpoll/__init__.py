"""redpoll: messages between processes with one `await node.send(message)`, and no broker."""

from typing import TYPE_CHECKING

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import (
    Abandoned,
    BadPayload,
    BatchError,
    Busy,
    Cancelled,
    Closed,
    ConfigError,
    DeadLettered,
    DecodeError,
    DialFailed,
    EncodeError,
    Expired,
    HandlerFailed,
    LinkError,
    MessageTooLarge,
    NoAnswer,
    NoHandler,
    NoRoute,
    NotConfirmed,
    NotSent,
    PayloadTooLarge,
    PeerLost,
    ProtocolError,
    QueueEmpty,
    QueueFull,
    RedpollError,
    Refused,
    RemoteError,
    ResultExpired,
    ResultTooLarge,
    SendError,
    ShuttingDown,
    SpecConflict,
    StaleHub,
    TaskCancelled,
    TaskExpired,
    TaskRejected,
    TimeLimit,
    TLSError,
    Undecodable,
    UnknownTask,
    Unsupported,
    UsageError,
)
from redpoll.later import import_later
from redpoll.message import Message
from redpoll.node import Node, NodeEvents, PeerInfo, Received
from redpoll.runner import run
from redpoll.stats import NodeStats, PeerStats
from redpoll.tls import TLS

if TYPE_CHECKING:
    from redpoll import blocking, nq
    from redpoll.bus import Bus, Requeue, Retry, connect
    from redpoll.bus.app import GIVEN, App, Middleware
    from redpoll.bus.bridge import Bridge
    from redpoll.bus.engines.hub.hub import Hub
    from redpoll.wiring import GLOBAL, LOCAL, PROCESS, Wiring
else:
    __getattr__, __dir__ = import_later(
        __name__,
        {
            "blocking": "blocking",
            "nq": "nq",
            **dict.fromkeys(("Bus", "Requeue", "Retry", "connect"), "bus"),
            **dict.fromkeys(("GIVEN", "App", "Middleware"), "bus.app"),
            "Bridge": "bus.bridge",
            "Hub": "bus.engines.hub.hub",
            **dict.fromkeys(("GLOBAL", "LOCAL", "PROCESS", "Wiring"), "wiring"),
        },
    )

__version__ = "0.1.0"

__all__ = [
    "GIVEN",
    "GLOBAL",
    "LOCAL",
    "PROCESS",
    "TLS",
    "Abandoned",
    "Address",
    "App",
    "BadPayload",
    "BatchError",
    "Bridge",
    "Bus",
    "Busy",
    "Cancelled",
    "Closed",
    "Config",
    "ConfigError",
    "DeadLettered",
    "DecodeError",
    "DialFailed",
    "EncodeError",
    "Expired",
    "HandlerFailed",
    "Hub",
    "LinkError",
    "Message",
    "MessageTooLarge",
    "Middleware",
    "NoAnswer",
    "NoHandler",
    "NoRoute",
    "Node",
    "NodeEvents",
    "NodeStats",
    "NotConfirmed",
    "NotSent",
    "PayloadTooLarge",
    "PeerInfo",
    "PeerLost",
    "PeerStats",
    "ProtocolError",
    "QueueEmpty",
    "QueueFull",
    "Received",
    "RedpollError",
    "Refused",
    "RemoteError",
    "Requeue",
    "ResultExpired",
    "ResultTooLarge",
    "Retry",
    "SendError",
    "ShuttingDown",
    "SpecConflict",
    "StaleHub",
    "TLSError",
    "TaskCancelled",
    "TaskExpired",
    "TaskRejected",
    "TimeLimit",
    "Undecodable",
    "UnknownTask",
    "Unsupported",
    "UsageError",
    "Wiring",
    "__version__",
    "blocking",
    "connect",
    "nq",
    "run",
]
