"""What the tests of gRPC share: nodes whose links it carries, and a client that knows nothing of redpoll."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from redpoll import Node, nq
from redpoll.address import Address
from redpoll.nq.grpc.carrier import GrpcCarrier
from redpoll.nq.grpc.options import METHOD


def make(
    handler: Callable[[Any], Any] | None = None, *, carrier: GrpcCarrier | None = None, **options: Any
) -> Node[Any]:
    """A node over gRPC, on any free port if it listens."""

    class GrpcNode(Node[Any]):
        _carrier = carrier or GrpcCarrier(nq.CommunicatorOptions())

    if options.get("listen") is not False:
        options.setdefault("port", 0)
    return GrpcNode(handler, encryption=False, **options)


def echo(message: Any) -> bytes:
    """Answer with the same bytes."""
    return bytes(message.data)


@contextlib.asynccontextmanager
async def stranger(address: Address, method: str = METHOD) -> AsyncIterator[Any]:
    """A call to a node by who speaks gRPC and nothing else; cancelled on leaving."""
    async with grpc.aio.insecure_channel(str(address)) as channel:
        call = channel.stream_stream(method)()
        try:
            yield call
            # What grpc.aio does by itself ends with the call.
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.done_writing()
                await to_end(call)
        finally:
            call.cancel()


async def to_end(call: Any) -> None:
    """Read what a node sends until it ends the stream."""
    while await call.read() is not grpc.aio.EOF:
        pass
