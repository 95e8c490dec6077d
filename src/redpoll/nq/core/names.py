"""Enums of the facade. They are strings: "tcp" equals `Protocol.TCP`."""

from __future__ import annotations

import enum

__all__ = ["Protocol", "Purpose", "SessionState"]


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
