"""What tests of programs that use redpoll need: a network that breaks on purpose, and virtual time for the core."""

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
