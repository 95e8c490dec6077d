"""Makes the links that peers need, one task for each peer that has something to send and no link, and waits for them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from redpoll.config import is_encrypted
from redpoll.errors import (
    Closed,
    ConfigError,
    DialFailed,
    Expired,
    Fenced,
    LinkError,
    NotAuthorized,
    OtherProtocol,
    PeerLost,
    RedpollError,
    TLSError,
)
from redpoll.message import Message
from redpoll.transport.backoff import LONGEST, SOON, backoff
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redpoll.address import Address
    from redpoll.config import Config
    from redpoll.node.sessions import Sessions
    from redpoll.tls.credentials import Credentials
    from redpoll.transport.carrier import Carrier
    from redpoll.transport.connection import Connection
    from redpoll.transport.secure import Secured
    from redpoll.wire.peer import Peer
    from redpoll.wire.routes import Routes

__all__ = ["HEAD_START", "USEFUL", "Dialler"]

#: Bytes received above which a lost link counts as one that worked, and its peer is redialled at once.
USEFUL = 1024

#: Time in seconds after which the next address of a name is tried beside one that does not answer (RFC 8305).
HEAD_START = 0.25


#: Errors after which redialling would fail in the same way.
_FINAL = (ConfigError, TLSError, NotAuthorized, Fenced, OtherProtocol)


class _Owner(Protocol):
    """The peers of a node, as the dialler uses them."""

    stopping: bool
    closing: RedpollError | None
    credentials: Credentials | None

    def dialled(self, remote: Address, peer: Peer) -> Connection:
        """Make a connection that this node dials for a peer."""

    def secured(self, connection: Connection, name: str | None = None) -> Secured:
        """Put TLS under a connection."""

    def forget_if_idle(self, peer: Peer) -> None:
        """Forget a peer that nothing is kept for."""


@dataclass(eq=False)
class Dialler:
    """Dials, and redials with growing pauses, as long as something waits for a peer."""

    _owner: _Owner
    _carrier: Carrier
    _config: Config
    _routes: Routes
    _sessions: Sessions
    _loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self._connect_timeout = self._config.effective_connect_timeout
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        #: Single attempts under way, shared by all that wait for them.
        self._attempts: dict[Peer, asyncio.Task[None]] = {}
        #: Long pauses, which end early when something new is to be sent.
        self._pauses: dict[Peer, asyncio.Future[None]] = {}
        #: The time of the last link to each peer, the bytes received before, and the pauses if it did not last.
        self._made: dict[Peer, tuple[float, int, Iterator[float]]] = {}

    def __contains__(self, peer: object) -> bool:
        """Return True if a peer is being dialled."""
        return peer in self._tasks or peer in self._attempts

    def need(self, peer: Peer) -> None:
        """Dial a peer; do nothing while it is being dialled, or once the node closes.

        Messages pinned to a node that cannot be dialled fail.
        """
        if peer in self._tasks or self._owner.closing is not None:
            pause = self._pauses.get(peer)
            if pause is not None and not pause.done():
                pause.set_result(None)
            return
        address = peer.address
        if address is None or (address.kind == "tcp" and address.port == 0):
            if peer.resuming or any(link.sending for link in peer.links):
                # The peer knows this node's address and redials; or its first link is being attached.
                return
            lost = PeerLost(address, "its link was lost, and it does not listen")
            peer.fail_queue(peer.last_error if isinstance(peer.last_error, PeerLost) else lost)
            return
        there = self._routes.get(address)
        if there is not None and there is not peer and there.links:
            self._sessions.end(peer, PeerLost(address, "another node is at its address now"))
            return
        fenced = self._sessions.fenced(address)
        if fenced is not None:
            peer.last_error = fenced
            self._sessions.end(peer, fenced)
            return
        task = self._tasks[peer] = self._loop.create_task(
            self._dial_until_linked(peer, address), name=f"redpoll dial {address}"
        )
        task.add_done_callback(partial(self._done, peer))

    def forget(self, peer: Peer) -> None:
        """Forget the last link to a peer."""
        self._made.pop(peer, None)

    def _is_wanted(self, peer: Peer) -> bool:
        """Return True if a peer has no link and needs one: something waits here, or may wait at the peer."""
        redials = peer.session.redials and not self._owner.stopping
        return (bool(peer.queue) or bool(peer.writable_waiters) or redials) and not self._is_linked(peer)

    def _is_linked(self, peer: Peer) -> bool:
        """Return True if what waits for a peer has a link, or will have one without dialling.

        A link that is being left is waited for, as what was sent over it ends first; but not while this node stops:
        then the link stays until the work is done to which the waiting messages may belong. Nor is it waited for where
        only answers are still to be received over it.
        """
        if self._owner.stopping:
            return any(link.sending for link in peer.links)
        return any(link.state is not LinkState.PARTING or not link.drained for link in peer.links)

    def _done(self, peer: Peer, task: asyncio.Task[None]) -> None:
        self._tasks.pop(peer, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # Errors of the library are handled there.
            peer.fail_queue(DialFailed(peer.address, repr(error)))
            raise error
        if self._is_wanted(peer):
            # It was lost again, or wanted again, before the task ended.
            self.need(peer)
        self._owner.forget_if_idle(peer)

    async def _dial_until_linked(self, peer: Peer, address: Address) -> None:
        made, before, waits = self._made.get(peer, (None, 0, None))
        received = peer.counters.bytes_received - before
        if made is None or waits is None or self._loop.time() - made > LONGEST or received > USEFUL:
            waits = backoff(random.random)
        else:
            # The last link did not last: do not redial at full speed a listener that closes each connection.
            waits = await self._pause(peer, waits)
        while self._is_wanted(peer):
            try:
                await self.attempt(peer, address)
            except _FINAL as error:
                peer.last_error = error
                self._sessions.end(peer, error)
                peer.wake_waiters()
                return
            except Closed:
                # Waiting messages are failed by the shutdown.
                return
            except RedpollError as error:
                peer.last_error = error
                peer.fail_queue(error, once=True)
                if self._is_wanted(peer):
                    waits = await self._pause(peer, waits)
            else:
                self._made[peer] = self._loop.time(), peer.counters.bytes_received, waits
                return

    async def _pause(self, peer: Peer, waits: Iterator[float]) -> Iterator[float]:
        """Wait before redialling; a new message shortens the pause and resets the back-off.

        Returns:
            The pauses that follow.
        """
        seconds = next(waits)
        if seconds > SOON:
            pause = self._pauses[peer] = self._loop.create_future()
            try:
                async with asyncio.timeout(seconds):
                    await pause
            except TimeoutError:
                return waits
            finally:
                del self._pauses[peer]
            waits = backoff(random.random, SOON)
            seconds = next(waits)
        await asyncio.sleep(seconds)
        return waits

    async def attempt(self, peer: Peer, address: Address) -> None:
        """Dial once, or wait for the attempt that is under way.

        Raises:
            DialFailed: No link could be made.
            TLSError: The ends do not agree on encryption, or on their identities.
            OtherProtocol: The server at the address is not a node.
            NotAuthorized: `authorize` of this node refused the link.
            ConfigError: The address needs TLS, and there are no certificates.
            Closed: The node stopped meanwhile.

        Cancelling leaves the attempt to the other waiters, and to its timeout.
        """
        task = self._attempts.get(peer)
        if task is None:
            task = self._attempts[peer] = self._loop.create_task(self._dial(peer, address))
            task.add_done_callback(partial(self._attempted, peer))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                # The caller was cancelled, maybe in the same turn.
                raise
            if task.cancelled() and self._owner.closing is not None:
                raise Closed("node") from None
            raise

    def _attempted(self, peer: Peer, task: asyncio.Task[None]) -> None:
        self._attempts.pop(peer, None)
        if not task.cancelled():
            task.exception()  # retrieved, even where nothing waits for it any more
        self._owner.forget_if_idle(peer)

    async def _dial(self, peer: Peer, address: Address) -> None:
        """Try the addresses that the peer's name resolves to, until one gives a link with its handshake done."""
        found = await self._resolve(address)
        if len(found) == 1:
            await self._try(peer, address, found[0], lambda: None)
        else:
            await self._race(peer, address, deque(found))

    async def _race(self, peer: Peer, address: Address, waiting: deque[Address]) -> None:
        """Try the addresses, each with a head start before the next one is tried beside it.

        The first one that connects is left alone: the others are retried if its handshake fails.
        """
        failure: BaseException = DialFailed(address, "the name resolves to no address")
        running: dict[asyncio.Task[None], Address] = {}
        connected: asyncio.Task[None] | None = None

        def stop_others() -> None:
            nonlocal connected
            connected = asyncio.current_task()
            for task, candidate in running.items():
                if task is not connected and task.cancel():
                    waiting.append(candidate)

        try:
            while waiting or running:
                if waiting and connected is None:
                    candidate = waiting.popleft()
                    trying = self._try(peer, address, candidate, stop_others)
                    running[self._loop.create_task(trying, name=f"redpoll dial {candidate}")] = candidate
                patience = HEAD_START if waiting and connected is None else None
                done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del running[task]
                    if task is connected:
                        connected = None
                    if task.cancelled():
                        continue
                    error = task.exception()
                    if error is None:
                        return
                    if not isinstance(error, RedpollError):
                        raise error
                    # An error in this node's own options matters most.
                    if not isinstance(failure, ConfigError):
                        failure = error
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        raise failure

    async def _try(self, peer: Peer, address: Address, candidate: Address, connected: Callable[[], None]) -> None:
        """Make a link to one address of a name.

        Args:
            peer: The peer to dial.
            address: The name.
            candidate: The address.
            connected: Called when the socket is connected, before the handshake.
        """
        encrypted = is_encrypted(candidate, self._config)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._connect(peer, candidate, address.host if encrypted else None, connected)
        except TimeoutError as error:
            raise DialFailed(candidate, f"no link within {self._connect_timeout:g} s") from error
        except (DialFailed, *_FINAL):
            raise
        except RedpollError as error:
            raise DialFailed(candidate, error._reason(candidate)) from error

    async def _resolve(self, address: Address) -> list[Address]:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._carrier.resolve(address, self._loop)
        except TimeoutError as error:
            raise DialFailed(address, f"the name was not resolved within {self._connect_timeout:g} s") from error

    async def _connect(self, peer: Peer, candidate: Address, name: str | None, connected: Callable[[], None]) -> None:
        """Connect to one address and wait for the handshake; if that fails, nothing stays open.

        Args:
            peer: The peer to dial.
            candidate: The address.
            name: The name that its certificate may have to be valid for; None for a link that is not encrypted.
            connected: Called between the two.
        """
        connections: list[Connection] = []
        ready: asyncio.Future[None] = self._loop.create_future()

        def factory() -> asyncio.BufferedProtocol:
            connection = self._owner.dialled(candidate, peer)
            connection.ready = ready
            connections.append(connection)
            return connection if name is None else self._owner.secured(connection, name)

        try:
            await self._carrier.dial(candidate, factory, self._loop)
            connected()
            if peer.last_error is None and not ready.done():
                peer.last_error = DialFailed(candidate, "it accepts connections, but sent no handshake")
            await ready
        finally:
            ready.cancel()
            for connection in connections:
                if connection.link.peer is None:
                    connection.give_up(DialFailed(candidate, "the attempt was abandoned"))

    # Waiting for a peer

    async def wait_room(self, peer: Peer, timeout: float | None) -> bool:
        """Wait until a small message could be written at once, or the link is lost; return False on a timeout.

        A peer without a link is dialled meanwhile.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        peer.writable_waiters.append(waiter)
        if peer.link is None or not peer.link.sending:
            self.need(peer)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in peer.writable_waiters:
                peer.writable_waiters.remove(waiter)
        return True

    async def ready(self, address: Address, timeout: float | None) -> None:
        """Wait until a peer is ready; see `Node.ready`."""
        deadline = None if timeout is None else self._loop.time() + timeout
        # Another peer may be at the address after a wait, or this one may have been forgotten.
        while not (peer := self._routes.at(address)).ready:
            left = None if deadline is None else deadline - self._loop.time()
            error: RedpollError | None = None
            if self._owner.closing is not None:
                error = Closed("node")
            elif self._sessions.fenced(address) is not None:
                error = Fenced(address)
            elif left is not None and left <= 0:
                error = Expired(Message(b"", peer.address), timeout, "waiting for the peer to be ready", peer.address)
                error.__cause__ = peer.last_error
            if error is not None:
                self._owner.forget_if_idle(peer)
                raise error
            await self.wait_room(peer, left)
            if peer.link is None and isinstance(peer.last_error, _FINAL):
                raise peer.last_error

    async def check(self, address: Address, timeout: float | None) -> bool:
        """Return True if a node answers at an address; see `Node.check`."""
        peer = self._routes.at(address)
        if peer.links:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self.attempt(peer, address)
        except (TLSError, NotAuthorized, Fenced):
            # A node is there.
            raise
        except (LinkError, TimeoutError):
            return False
        return True

    async def stop(self) -> None:
        """Cancel all dialling and wait for its end."""
        tasks = [*self._tasks.values(), *self._attempts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
