"""Enums of the facade, which are strings: "tcp" equals `Protocol.TCP`; and the message that `get` returns."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

__all__ = ["Message", "Protocol", "Purpose", "SessionState"]


DataT = TypeVar("DataT")


class Protocol(enum.StrEnum):
    """The transport of communicators."""

    TCP = "tcp"
    MQTT = "mqtt"
    GRPC = "grpc"


class Purpose(enum.StrEnum):
    """The end of a communicator."""

    SERVER = "server"
    CLIENT = "client"


class SessionState(enum.Flag):
    """The state of a peer in net-queue, for programs that name it; redpoll does not return it."""

    READABLE = enum.auto()
    WRITABLE = enum.auto()


@dataclass(frozen=True, slots=True)
class Message(Generic[DataT]):
    """A received message.

    Args:
        peer: The id of the sender; ``put(x, message.peer)`` answers it.
        data: The data, decoded by this communicator's serializer.
        redelivered: Whether it may have been got before: by an earlier process with this communicator's id, or
            because the sender restarted before it learned of the delivery (default False). It does not count for equality.
    """

    peer: UUID
    data: DataT
    redelivered: bool = field(default=False, compare=False)
