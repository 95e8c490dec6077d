"""Waiting for a peer: until there is room for a message, until it is ready, or until somebody is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redpoll.errors import Closed, ConfigError, Expired, Fenced, LinkError, NotAuthorized, TLSError
from redpoll.message import Message

if TYPE_CHECKING:
    from redpoll.address import Address
    from redpoll.node.peers import Peers
    from redpoll.wire.peer import Peer

__all__ = ["check", "wait_ready", "wait_room"]


async def wait_room(peers: Peers, peer: Peer, timeout: float | None) -> bool:
    """Wait until a small message could be written at once, or the link is gone; False when the time is over."""
    waiter: asyncio.Future[None] = peers.loop.create_future()
    peer.starved.append(waiter)
    try:
        async with asyncio.timeout(timeout):
            await waiter
    except TimeoutError:
        return False
    finally:
        if waiter in peer.starved:
            peer.starved.remove(waiter)
        if not peer.starved:
            peers.dialler.unwant(peer)
    return True


async def wait_ready(peers: Peers, address: Address, timeout: float | None) -> None:
    """See `Node.ready`."""
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
            raise _not_ready(peer, timeout) from peer.trouble
        if peer.link is None or not peer.link.sending:
            peers.dialler.want(peer)
        if not await wait_room(peers, peer, left):
            raise _not_ready(peer, timeout) from peer.trouble
        if peer.link is None and isinstance(peer.trouble, ConfigError | TLSError | NotAuthorized):
            raise peer.trouble
        # Another may be there now, or this one may have been forgotten since it was woken.
        peer = peers.at(address)


def _not_ready(peer: Peer, timeout: float | None) -> Expired:
    return Expired(Message(b"", peer.address), timeout, "waiting for the peer to be ready", peer.address)


async def check(peers: Peers, address: Address, timeout: float | None) -> bool:
    """See `Node.check`."""
    peer = peers.at(address)
    if peer.links:
        return True
    try:
        async with asyncio.timeout(timeout):
            await peers.dialler.attempt(peer, address)
    except (TLSError, NotAuthorized):
        # Somebody is there.
        raise
    except (LinkError, TimeoutError):
        return False
    return True
