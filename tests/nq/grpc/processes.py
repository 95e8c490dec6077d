"""Nodes over gRPC in processes of their own: ``python -m tests.nq.grpc.processes OPTIONS`` runs one."""

from __future__ import annotations

import json
import sys

import redpoll
from redpoll import Node, nq
from redpoll.nq.grpc.carrier import GrpcCarrier
from tests.node.processes import Options, Process, run


class GrpcProcess(Process):
    """One that listens by gRPC."""

    program = "tests.nq.grpc.processes"


class GrpcNode(Node[bytes]):
    """What it runs."""

    _carrier = GrpcCarrier(nq.CommunicatorOptions())


if __name__ == "__main__":
    redpoll.run(run(Options(**json.loads(sys.argv[1])), GrpcNode))
