"""Calls by name, casts, streamed answers: ``bus.rpc``."""

from redpoll.bus.rpc.caller import CallOptions, CallStats, Settings
from redpoll.bus.rpc.client import Client, ClientOptions
from redpoll.bus.rpc.endpoints import (
    AccessPolicy,
    ExplicitAccessPolicy,
    LegacyAccessPolicy,
    expected_exceptions,
    expose,
)
from redpoll.bus.rpc.replies import Stream
from redpoll.bus.rpc.rpc import Rpc, RpcOptions
from redpoll.bus.rpc.server import Server
from redpoll.bus.rpc.target import Target

__all__ = [
    "AccessPolicy",
    "CallOptions",
    "CallStats",
    "Client",
    "ClientOptions",
    "ExplicitAccessPolicy",
    "LegacyAccessPolicy",
    "Rpc",
    "RpcOptions",
    "Server",
    "Settings",
    "Stream",
    "Target",
    "expected_exceptions",
    "expose",
]
