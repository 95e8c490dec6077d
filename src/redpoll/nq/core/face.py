"""The parts of communicators that are the same for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from redpoll.errors import UsageError
from redpoll.node.door import Payload
from redpoll.nq.core.codec import Codec
from redpoll.nq.core.errors import PUT_HINT, check_peers
from redpoll.nq.core.making import AnyEndpoint, checked
from redpoll.nq.core.names import Protocol, Purpose
from redpoll.nq.core.options import CommunicatorOptions, NetworkLocation
from redpoll.nq.core.server import ServerEndpoint
from redpoll.nq.core.session import Session

__all__ = ["Face"]


class Face:
    """One end of a queue between processes, for threads or for tasks.

    Args:
        options: The options; None is all defaults, with a random id.

    Attributes:
        protocol: The transport.
        purpose: Which end.
        options: The options.
    """

    protocol: Protocol
    purpose: Purpose
    _endpoint: AnyEndpoint

    def __init__(self, options: CommunicatorOptions | None) -> None:
        self.options = checked(options)
        self._codec = Codec(self.options)

    @property
    def id(self) -> UUID:
        """The id of this communicator."""
        return self.options.id

    @property
    def netloc(self) -> NetworkLocation:
        """The address at which a server listens, with the actual port, or which a client dials."""
        return self._endpoint.netloc

    def disconnect(self, peer: UUID, flush: bool = True) -> None:
        """End the session with a client; its later puts fail with `ConnectionResetError`.

        Args:
            peer: The client; nothing is done if it is not connected.
            flush: Whether messages put for it are delivered first. False drops the unsent ones, and their futures fail with
                `ConnectionResetError`; those in flight are awaited.

        Raises:
            UsageError: This is a client; use `close`.
        """
        if not isinstance(self._endpoint, ServerEndpoint):
            raise UsageError("a client has no clients to disconnect", "close() ends its own session")
        self._call(self._endpoint.disconnect, peer, flush)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop."""
        raise NotImplementedError

    def _encode(self, data: Any, peers: tuple[UUID, ...]) -> tuple[Payload, tuple[Session, ...]]:
        """Return the body and the sessions of a put.

        Raises:
            UsageError: A peer is not an id.
            MessageTooLarge: The body is above `message_size`.
        """
        if peers:
            check_peers(peers, PUT_HINT)
        body = self._codec.encode(data)
        endpoint = self._endpoint
        return body, tuple(map(endpoint.recipient, peers)) if peers else endpoint.recipients()
