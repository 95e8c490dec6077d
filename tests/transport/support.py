"""What tests of links on transports share."""

from __future__ import annotations

from typing import Any

from redpoll import Node, RedpollError
from redpoll.node.hooks import PeerInfo
from tests.node.support import (
    make,
    to,
    until,
    within,
)


class Lost:
    """Keeps what the hooks of a node tell of links that end or may end."""

    def __init__(self, node: Node[Any]) -> None:
        self.errors: list[RedpollError] = []
        self.suspect: list[PeerInfo] = []
        node.events.peer_lost = lambda peer, error: self.errors.append(error)
        node.events.peer_suspect = self.suspect.append

    async def error(self) -> RedpollError:
        """Why the next link was lost."""
        await until(lambda: self.errors, "the loss of a link")
        return self.errors.pop(0)


async def serves(node: Node[Any]) -> None:
    """The node works: another one can send to it."""
    async with make(listen=False) as client:
        await within(client.send(to(node)))
