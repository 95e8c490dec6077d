"""Nodes in a forked child: the child releases the sockets of its parent's nodes and refuses to use them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from redpoll.errors import UsageError
from redpoll.platforms import after_fork

__all__ = ["forked_error", "release_inherited", "started"]


class _Node(Protocol):
    """A node as a forked child sees it."""

    def _inherit(self) -> list[int]:
        """Refuse all use from now on, as the node is the parent's; return the descriptors of its sockets."""


#: The started nodes of this process.
_started: WeakSet[_Node] = WeakSet()


def started(node: _Node) -> None:
    """Register a node, to be released in each child that the process forks from now on."""
    _started.add(node)


def forked_error() -> UsageError:
    """Return the error for the use of a parent's node in a child."""
    return UsageError("this node belongs to the parent process", "start a separate node in the child")


def _release_all() -> None:
    for node in list(_started):
        release_inherited(node)
    _started.clear()


after_fork(_release_all)


def release_inherited(node: _Node) -> None:
    """Release the sockets of a parent's node, so that they close when the parent closes them, and refuse its use."""
    descriptors = node._inherit()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor >= 0:
            # Not closed: an object here still has the number, which must not become another file's.
            with suppress(OSError):
                os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)
