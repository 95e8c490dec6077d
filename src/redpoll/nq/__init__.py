"""A queue between processes, for programs written for net-queue."""

from redpoll.nq import aio, core, utils
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
from redpoll.nq.core.comm import Communicator, new
from redpoll.nq.utils.stream import (
    BufferSerializer,
    BytesSerializer,
    PickleSerializer,
    PicklingError,
    Stream,
    StreamSerializer,
    UnpicklingError,
    byteview,
)

__all__ = [
    "BufferSerializer",
    "BytesSerializer",
    "Communicator",
    "CommunicatorOptions",
    "ConnectionOptions",
    "EventOptions",
    "Message",
    "NetworkLocation",
    "PickleSerializer",
    "PicklingError",
    "Protocol",
    "Purpose",
    "SecurityOptions",
    "SerializationOptions",
    "SessionState",
    "Stream",
    "StreamSerializer",
    "UnpicklingError",
    "aio",
    "byteview",
    "core",
    "new",
    "utils",
]
