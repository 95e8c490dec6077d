"""Waiting for a peer: until there is room for a message, until it is ready, or until a node answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redpoll.errors import Closed, ConfigError, Expired, Fenced, LinkError, NotAuthorized, OtherProtocol, TLSError
from redpoll.message import Message

if TYPE_CHECKING:
    from redpoll.address import Address
    from redpoll.node.peers import Peers
    from redpoll.wire.peer import Peer

__all__ = ["check", "wait_ready", "wait_room"]


async def wait_room(peers: Peers, peer: Peer, timeout: float | None) -> bool:
    """Wait until a small message could be written at once, or the link is lost; return False on a timeout."""
    waiter: asyncio.Future[None] = peers.loop.create_future()
    peer.writable_waiters.append(waiter)
    try:
        async with asyncio.timeout(timeout):
            await waiter
    except TimeoutError:
        return False
    finally:
        if waiter in peer.writable_waiters:
            peer.writable_waiters.remove(waiter)
        if not peer.writable_waiters:
            peers.dialler.unwant(peer)
    return True


async def wait_ready(peers: Peers, address: Address, timeout: float | None) -> None:
    """Wait until a peer is ready; see `Node.ready`."""
    deadline = None if timeout is None else peers.loop.time() + timeout
    peer = peers.at(address)
    while not peer.ready:
        if peers.closing is not None:
            peers.forget_if_idle(peer)
            raise Closed("node")
        if peers.sessions.fenced(address) is not None:
            peers.forget_if_idle(peer)
            raise Fenced(address)
        left = None if deadline is None else deadline - peers.loop.time()
        if left is not None and left <= 0:
            peers.forget_if_idle(peer)
            raise _not_ready(peer, timeout) from peer.last_error
        if peer.link is None or not peer.link.sending:
            peers.dialler.want(peer)
        if not await wait_room(peers, peer, left):
            raise _not_ready(peer, timeout) from peer.last_error
        if peer.link is None and isinstance(peer.last_error, ConfigError | TLSError | NotAuthorized | OtherProtocol):
            raise peer.last_error
        # Another peer may be at the address now, or this one may have been forgotten since it was woken.
        peer = peers.at(address)


def _not_ready(peer: Peer, timeout: float | None) -> Expired:
    return Expired(Message(b"", peer.address), timeout, "waiting for the peer to be ready", peer.address)


async def check(peers: Peers, address: Address, timeout: float | None) -> bool:
    """Return True if a node answers at an address; see `Node.check`."""
    peer = peers.at(address)
    if peer.links:
        return True
    try:
        async with asyncio.timeout(timeout):
            await peers.dialler.attempt(peer, address)
    except (TLSError, NotAuthorized):
        # A node is there.
        raise
    except (LinkError, TimeoutError):
        return False
    return True
