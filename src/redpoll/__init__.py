"""redpoll: messages between processes with one `await node.send(message)`, and no broker."""

from typing import TYPE_CHECKING

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import (
    Abandoned,
    BatchError,
    Busy,
    Cancelled,
    Closed,
    ConfigError,
    DecodeError,
    DialFailed,
    EncodeError,
    Expired,
    HandlerFailed,
    LinkError,
    MessageTooLarge,
    NoAnswer,
    NoHandler,
    NotConfirmed,
    NotSent,
    PeerLost,
    ProtocolError,
    QueueFull,
    RedpollError,
    Refused,
    SendError,
    ShuttingDown,
    TLSError,
    Undecodable,
    UsageError,
)
from redpoll.later import import_later
from redpoll.message import Message
from redpoll.node import Node, NodeEvents, PeerInfo, Received
from redpoll.runner import run
from redpoll.stats import NodeStats, PeerStats
from redpoll.tls import TLS

if TYPE_CHECKING:
    from redpoll.bus import Bus, connect
    from redpoll.wiring import GLOBAL, LOCAL, PROCESS, Wiring
else:
    __getattr__ = import_later(
        __name__,
        {"Bus": "bus", "connect": "bus", **dict.fromkeys(("GLOBAL", "LOCAL", "PROCESS", "Wiring"), "wiring")},
    )

__version__ = "0.1.0"

__all__ = [
    "GLOBAL",
    "LOCAL",
    "PROCESS",
    "TLS",
    "Abandoned",
    "Address",
    "BatchError",
    "Bus",
    "Busy",
    "Cancelled",
    "Closed",
    "Config",
    "ConfigError",
    "DecodeError",
    "DialFailed",
    "EncodeError",
    "Expired",
    "HandlerFailed",
    "LinkError",
    "Message",
    "MessageTooLarge",
    "NoAnswer",
    "NoHandler",
    "Node",
    "NodeEvents",
    "NodeStats",
    "NotConfirmed",
    "NotSent",
    "PeerInfo",
    "PeerLost",
    "PeerStats",
    "ProtocolError",
    "QueueFull",
    "Received",
    "RedpollError",
    "Refused",
    "SendError",
    "ShuttingDown",
    "TLSError",
    "Undecodable",
    "UsageError",
    "Wiring",
    "__version__",
    "connect",
    "run",
]
