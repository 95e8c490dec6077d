"""The words, records and messages of the facade."""

from redpoll.nq.core.names import Message, Protocol, Purpose, SessionState
from redpoll.nq.core.options import (
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    NetworkLocation,
    SecurityOptions,
    SerializationOptions,
)

__all__ = [
    "CommunicatorOptions",
    "ConnectionOptions",
    "EventOptions",
    "Message",
    "NetworkLocation",
    "Protocol",
    "Purpose",
    "SecurityOptions",
    "SerializationOptions",
    "SessionState",
]
