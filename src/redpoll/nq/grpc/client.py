"""The client over gRPC."""

from __future__ import annotations

from redpoll.nq.core import comm
from redpoll.nq.core.names import Protocol, Purpose

__all__ = ["Communicator"]


class Communicator(comm.Communicator):
    """A client that dials its server at `options.netloc`."""

    protocol = Protocol.GRPC
    purpose = Purpose.CLIENT
