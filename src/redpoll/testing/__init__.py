"""Tools for tests of programs that use redpoll: a network that breaks, virtual time, the types of the fixtures."""

from typing import TYPE_CHECKING

from redpoll.later import import_later
from redpoll.testing.faults import Chaos, Faults, ProxyStats, Step
from redpoll.testing.pipe import FaultyPipe, PipeStream, VirtualClock
from redpoll.testing.proxy import FaultProxy
from redpoll.testing.virtual import VirtualTime

if TYPE_CHECKING:
    from redpoll.testing.apps import AppFactory, RunningApp, Submitted
    from redpoll.testing.buses import BusFactory, Sent
    from redpoll.testing.certificates import Certificates
    from redpoll.testing.plugin import FaultsFactory, NodeFactory, NodesFactory
else:
    __getattr__, __dir__ = import_later(
        __name__,
        {
            **dict.fromkeys(("AppFactory", "RunningApp", "Submitted"), "apps"),
            **dict.fromkeys(("BusFactory", "Sent"), "buses"),
            "Certificates": "certificates",
            **dict.fromkeys(("FaultsFactory", "NodeFactory", "NodesFactory"), "plugin"),
        },
    )

__all__ = [
    "AppFactory",
    "BusFactory",
    "Certificates",
    "Chaos",
    "FaultProxy",
    "Faults",
    "FaultsFactory",
    "FaultyPipe",
    "NodeFactory",
    "NodesFactory",
    "PipeStream",
    "ProxyStats",
    "RunningApp",
    "Sent",
    "Step",
    "Submitted",
    "VirtualClock",
    "VirtualTime",
]
