"""What the tests of sessions share: a node that notes what it is told, and one that is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redpoll import Closed, Node, PeerLost, RedpollError
from redpoll.node.peers import Peers
from redpoll.wire.peer import Peer
from tests.interop.raw import NOOP, Frame

IDENTITY = b"I" * 16
SECRET = b"S" * 16
OTHER = b"T" * 16
PATIENT: dict[str, Any] = {"resume": 30.0, "timeout": None}


class Told(Node[Any]):
    """A node that notes what it is told of sessions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.told: list[str] = []
        self.errors: list[RedpollError] = []
        super().__init__(*args, **options)

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        self.told.append("renewed" if renewed else "began")

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self.told.append("ended")
        self.errors.append(error)


def peers_of(node: Node[Any]) -> Peers:
    return node._peers


async def crash(node: Node[Any]) -> None:
    """Let a node end as its process does when it is killed: without a word."""
    peers = peers_of(node)
    peers.closing = Closed("node")
    for connection in list(peers.connections):
        connection.give_up(PeerLost(None, "killed"))
    await node.stop(drain=0)


@asynccontextmanager
async def killed(node: Node[Any]) -> AsyncIterator[Node[Any]]:
    """A node that is killed at the end."""
    await node.start()
    try:
        yield node
    finally:
        await crash(node)


def announcing(*, flags: int, epoch: int = 77) -> bytes:
    """The frame with which one run of a node announces itself: 0x01 it does not listen, 0x02 it shows a secret."""
    fields = b"\xf2r\x01" + bytes([flags]) + b"\0\1\0\0\0\x40\0\x40\0\1\x90\0"
    return Frame(fields, epoch, NOOP).encode()
