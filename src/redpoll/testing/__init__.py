"""Tools for tests of programs that use redpoll: a network that breaks on purpose, virtual time, buses."""

from redpoll.testing.faults import Chaos, Faults, ProxyStats, Step
from redpoll.testing.pipe import FaultyPipe, PipeStream, VirtualClock
from redpoll.testing.proxy import FaultProxy
from redpoll.testing.virtual import VirtualTime

__all__ = [
    "Chaos",
    "FaultProxy",
    "Faults",
    "FaultyPipe",
    "PipeStream",
    "ProxyStats",
    "Step",
    "VirtualClock",
    "VirtualTime",
]
