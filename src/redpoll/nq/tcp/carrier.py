"""The carrier of links over TCP: the node's own sockets, which the node encrypts itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from redpoll.errors import ConfigError
from redpoll.transport.carrier import Carrier, Sockets

if TYPE_CHECKING:
    from redpoll.nq.core.options import CommunicatorOptions

__all__ = ["ENCRYPTS", "make"]

#: False as the node encrypts the links, not a layer below it.
ENCRYPTS = False


def make(options: CommunicatorOptions, *, server: bool, given_up: Callable[[ConfigError], object]) -> Carrier:  # noqa: ARG001  # each protocol's
    """Return the carrier for the links of a communicator."""
    return Sockets()
