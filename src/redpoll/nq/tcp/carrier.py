"""What carries links over TCP: the node's own sockets, which it encrypts itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from redpoll.errors import ConfigError
from redpoll.transport.carrier import Carrier, Sockets

if TYPE_CHECKING:
    from redpoll.nq.core.options import CommunicatorOptions

__all__ = ["ENCRYPTS", "make"]

#: Whether links are encrypted below the node, so that it does not.
ENCRYPTS = False


def make(options: CommunicatorOptions, *, server: bool, given_up: Callable[[ConfigError], object]) -> Carrier:  # noqa: ARG001  # each protocol's
    """Make what carries the links of a communicator."""
    return Sockets()
