"""What a child of the process does with a node that its parent runs."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redpoll.node.node import Node

__all__ = ["let_go"]


def let_go(node: Node[Any]) -> None:
    """Let go of the sockets of a node, so that the parent's are closed when it closes them."""
    if node._state not in {"running", "stopping"}:
        return
    node._state = "stopped"
    descriptors = [] if node._listener is None else node._listener.descriptors
    for connection in list(node._peers.connections):
        transport = connection.transport
        found = None if transport is None else transport.get_extra_info("socket")
        if found is not None:
            descriptors.append(found.fileno())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor >= 0:
            # Not closed: the number is still that of an object here, and is not to become another file's.
            with suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)
