"""The words of the facade: they are strings, so that "tcp" is as good as `Protocol.TCP`."""

from __future__ import annotations

import enum

__all__ = ["Protocol", "Purpose", "SessionState"]


class Protocol(enum.StrEnum):
    """What carries the bytes of communicators."""

    TCP = "tcp"
    MQTT = "mqtt"
    GRPC = "grpc"


class Purpose(enum.StrEnum):
    """Which end of the protocol a communicator is."""

    SERVER = "server"
    CLIENT = "client"


class SessionState(enum.Flag):
    """What can be done with a peer: read what it sent, send to it. For programs that name it; nothing here returns one."""

    READABLE = enum.auto()
    WRITABLE = enum.auto()
