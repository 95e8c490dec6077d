"""Makes the links that peers need: one task for each peer that has something to send and no link."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from redpoll.config import is_encrypted
from redpoll.errors import Closed, ConfigError, DialFailed, Fenced, NotAuthorized, PeerLost, RedpollError, TLSError
from redpoll.transport.backoff import LONGEST, backoff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redpoll.address import Address
    from redpoll.node.peers import Peers
    from redpoll.transport.carrier import Carrier
    from redpoll.transport.connection import Connection
    from redpoll.wire.peer import Peer

__all__ = ["Dialler"]


class Dialler:
    """Dials, again and again with growing pauses, as long as something waits for a peer."""

    def __init__(self, peers: Peers, carrier: Carrier, connect_timeout: float) -> None:
        self._peers = peers
        self._carrier = carrier
        self._loop = peers.loop
        self._connect_timeout = connect_timeout
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        #: Single diallings under way, whoever waits for them.
        self._attempts: dict[Peer, asyncio.Task[None]] = {}
        self._wanted: set[Peer] = set()
        #: When the last link to a peer was made, and the pauses that follow if it did not last.
        self._made: dict[Peer, tuple[float, Iterator[float]]] = {}

    def __contains__(self, peer: object) -> bool:
        """Whether a peer is being dialled."""
        return peer in self._tasks or peer in self._attempts

    def want(self, peer: Peer) -> None:
        """See that a peer gets a link though nothing is queued for it, until it has one or dialling ends."""
        self._wanted.add(peer)
        self.need(peer)

    def unwant(self, peer: Peer) -> None:
        """Nobody waits for a link of that peer any more, unless something is queued for it."""
        self._wanted.discard(peer)

    def need(self, peer: Peer) -> None:
        """See that a peer gets a link; does nothing while it is being dialled, or once the node closes.

        What cannot be sent because it can only go to this very node, which cannot be dialled, fails.
        """
        if peer in self._tasks or self._peers.closing is not None:
            return
        address = peer.address
        if address is None or (address.kind == "tcp" and address.port == 0):
            if peer.resuming:
                # It knows where this node is.
                return
            lost = PeerLost(address, "its link is gone, and it does not listen")
            peer.fail_queue(peer.trouble if isinstance(peer.trouble, PeerLost) else lost)
            return
        there = self._peers.routes.get(address)
        if there is not None and there is not peer and there.links:
            self._peers.sessions.end(peer, PeerLost(address, "another node is there now"))
            return
        fenced = self._peers.sessions.fenced(address)
        if fenced is not None:
            peer.trouble = fenced
            self._peers.sessions.end(peer, fenced)
            return
        task = self._tasks[peer] = self._loop.create_task(
            self._dial_until_linked(peer, address), name=f"redpoll dial {address}"
        )
        task.add_done_callback(partial(self._done, peer))

    def forget(self, peer: Peer) -> None:
        """Forget when a peer was linked."""
        self._made.pop(peer, None)

    def _is_wanted(self, peer: Peer) -> bool:
        """Whether a peer has no link and is to get one: something waits here, or may be waiting there."""
        redials = peer.session is not None and peer.session.redials and not self._peers.stopping
        return (peer.queued > 0 or peer in self._wanted or redials) and not self._is_linked(peer)

    def _is_linked(self, peer: Peer) -> bool:
        """Whether what waits for a peer has a link, or will have one without dialling.

        A link that is being left is waited for, as what was sent over it is to end first; but not while this node stops:
        then it stays until the work is done that what waits may belong to.
        """
        if self._peers.stopping:
            return any(link.sending for link in peer.links)
        return bool(peer.links)

    def _done(self, peer: Peer, task: asyncio.Task[None]) -> None:
        self._tasks.pop(peer, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            peer.fail_queue(error if isinstance(error, RedpollError) else DialFailed(peer.address, repr(error)))
            if not isinstance(error, RedpollError):
                raise error
        elif self._is_wanted(peer):
            # It was lost again, or wanted again, before the task ended.
            self.need(peer)
        self._peers.forget_if_idle(peer)

    async def _dial_until_linked(self, peer: Peer, address: Address) -> None:
        made, waits = self._made.get(peer, (None, None))
        if made is None or waits is None or self._loop.time() - made > LONGEST:
            waits = backoff(random.random)
        else:
            # The last one did not last: who closes what is dialled is not to be dialled as fast as can be.
            await asyncio.sleep(next(waits))
        while self._is_wanted(peer):
            try:
                await self.attempt(peer, address)
            except (ConfigError, TLSError, NotAuthorized, Fenced) as error:
                # Dialling again would bring the same.
                peer.trouble = error
                self._peers.sessions.end(peer, error)
                self._wanted.discard(peer)
                self._peers.room(peer)
                return
            except Closed:
                # What waits is failed by who closes the node.
                return
            except RedpollError as error:
                peer.trouble = error
                peer.fail_queue(error, once=True)
                if self._is_wanted(peer):
                    await asyncio.sleep(next(waits))
            else:
                self._made[peer] = self._loop.time(), waits
                return

    async def attempt(self, peer: Peer, address: Address) -> None:
        """Dial once, or wait for the dialling that is under way.

        Raises:
            DialFailed: It gave no link.
            TLSError: The ends do not agree on encryption, or on who is who.
            NotAuthorized: `authorize` here does not let it in.
            ConfigError: The address needs TLS, and there are no certificates.
            Closed: The node stopped meanwhile.

        Cancelling it leaves the dialling to whoever else waits for it, and to its timeout.
        """
        task = self._attempts.get(peer)
        if task is None:
            task = self._attempts[peer] = self._loop.create_task(self._dial(peer, address))
            task.add_done_callback(partial(self._attempted, peer))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._peers.closing is not None:
                raise Closed("node") from None
            raise

    def _attempted(self, peer: Peer, task: asyncio.Task[None]) -> None:
        self._attempts.pop(peer, None)
        if not task.cancelled():
            task.exception()  # taken note of, also where nobody waits any more
        self._peers.forget_if_idle(peer)

    async def _dial(self, peer: Peer, address: Address) -> None:
        """Try each address that the peer's name stands for, until one gives a link with its handshake done."""
        failure: RedpollError = DialFailed(address, "the name stands for no address")
        for candidate in await self._resolve(address):
            encrypted = is_encrypted(candidate, self._peers.config)
            known = self._peers.routes.get(candidate) if candidate != address else None
            credentials = self._peers.credentials
            if encrypted and credentials is not None and credentials.checks_names:
                # It may not be who goes by this name.
                known = None
            if known is not None and known is not peer and known.links:
                self._peers.moves.adopt(peer, known)
                return
            try:
                async with asyncio.timeout(self._connect_timeout):
                    await self._connect(peer, candidate, address.host if encrypted else None)
            except TimeoutError as error:
                failure = DialFailed(candidate, f"no link within {self._connect_timeout:g} s")
                failure.__cause__ = error
            except (DialFailed, TLSError, NotAuthorized, Fenced) as error:
                failure = error
            except RedpollError as error:
                failure = DialFailed(candidate, str(error))
                failure.__cause__ = error
            else:
                return
        raise failure

    async def _resolve(self, address: Address) -> list[Address]:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._carrier.resolve(address, self._loop)
        except TimeoutError as error:
            raise DialFailed(address, f"the name was not resolved within {self._connect_timeout:g} s") from error

    async def _connect(self, peer: Peer, candidate: Address, name: str | None) -> None:
        """Connect to one address and wait for the handshake; whatever comes between, nothing stays open.

        Args:
            peer: Who is meant.
            candidate: Where to.
            name: What its certificate may have to be valid for; None is a link that is not encrypted.
        """
        connections: list[Connection] = []
        ready: asyncio.Future[None] = self._loop.create_future()

        def factory() -> asyncio.BufferedProtocol:
            connection = self._peers.dialled(candidate, peer)
            connection.ready = ready
            connections.append(connection)
            return connection if name is None else self._peers.secured(connection, name)

        try:
            await self._carrier.dial(candidate, factory, self._loop)
            await ready
        finally:
            ready.cancel()
            for connection in connections:
                if connection.link.peer is None:
                    connection.give_up(DialFailed(candidate, "it was given up"))

    async def stop(self) -> None:
        """Cancel all dialling and wait for its end."""
        tasks = [*self._tasks.values(), *self._attempts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
