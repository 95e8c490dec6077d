"""The client over MQTT."""

from __future__ import annotations

from redpoll.nq.core import comm
from redpoll.nq.core.names import Protocol, Purpose

__all__ = ["Communicator"]


class Communicator(comm.Communicator):
    """A client that meets its server at the broker at `options.netloc`."""

    protocol = Protocol.MQTT
    purpose = Purpose.CLIENT
