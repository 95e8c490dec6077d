"""A queue between processes, for programs written for net-queue."""

from redpoll.nq.core import (
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    Message,
    NetworkLocation,
    Protocol,
    Purpose,
    SecurityOptions,
    SerializationOptions,
    SessionState,
)
from redpoll.nq.utils.stream import PickleSerializer, Stream

__all__ = [
    "CommunicatorOptions",
    "ConnectionOptions",
    "EventOptions",
    "Message",
    "NetworkLocation",
    "PickleSerializer",
    "Protocol",
    "Purpose",
    "SecurityOptions",
    "SerializationOptions",
    "SessionState",
    "Stream",
]
