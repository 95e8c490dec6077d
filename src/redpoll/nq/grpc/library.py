"""grpcio, the extra that this protocol needs."""

from __future__ import annotations

from typing import Any

from redpoll.errors import UsageError

__all__ = ["load"]


def load() -> Any:
    """Import it, with `aio`.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise UsageError("the protocol gRPC needs grpcio", "pip install 'redpoll[grpc]'") from error
    return grpc
