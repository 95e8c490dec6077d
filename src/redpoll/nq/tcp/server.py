"""The server over TCP, or TLS."""

from __future__ import annotations

from redpoll.nq.core import comm
from redpoll.nq.core.names import Protocol, Purpose

__all__ = ["Communicator"]


class Communicator(comm.Communicator):
    """A server that listens at `options.netloc`."""

    protocol = Protocol.TCP
    purpose = Purpose.SERVER
