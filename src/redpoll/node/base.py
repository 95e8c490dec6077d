"""A node without its messages: its start, its stop, what it says of itself, and when it may be used."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import warnings
from asyncio import _get_running_loop
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from redpoll.address import Address
from redpoll.config import DEFAULT_PORT, Config, is_encrypted
from redpoll.errors import Closed, ConfigError, RedpollError, UsageError
from redpoll.node.dialler import Dialler
from redpoll.node.dispatch import Dispatcher, check_handler
from redpoll.node.hooks import NodeEvents, PeerInfo
from redpoll.node.lifecycle import Shutdown, forked_error, started
from redpoll.node.peers import Peers
from redpoll.node.pulling import Consumers
from redpoll.node.received import ReceivedMessage
from redpoll.node.reports import info
from redpoll.node.sending import UNSET, Unset, check_seconds
from redpoll.serializers import get as get_serializer
from redpoll.stats import NodeStats
from redpoll.tls import TLS, Credentials
from redpoll.transport.carrier import Carrier, Listening, Sockets

if TYPE_CHECKING:
    from redpoll.message import Message
    from redpoll.wire.peer import Peer

__all__ = ["NodeBase"]


class NodeBase:
    """Starts and stops the parts of a node. `Node` sends and receives with them."""

    #: The class of the messages that its links receive.
    _received: type[ReceivedMessage[Any]]
    #: The class that wraps a message which the handler has to end; None hands out the message itself.
    _handed_out: Callable[[Any], Any] | None
    #: The class that runs its handler.
    _dispatcher_class: type[Dispatcher] = Dispatcher
    #: The carrier of its links.
    _carrier: Carrier = Sockets()
    #: Seconds that acknowledgements wait for what may be written with them; twice that at most.
    patience = 0.0
    #: Whether it serves libchirp nodes.
    libchirp = True
    #: Whether the handler runs on the event loop, and so may block it.
    _on_loop = True

    def __init__(self, handler: Callable[[Any], Any] | None, config: Config | None, options: dict[str, Any]) -> None:
        """Check the handler and the options; see `Node`."""
        if handler is not None:
            check_handler(handler)
        self._config = Config.from_options(config, options)
        self._handler = handler
        self._serializer = get_serializer(self._config.serializer)
        self._encode = self._serializer.encode
        self._identity = self._config.identity or os.urandom(16)
        self._events = NodeEvents()
        self._state: Literal["new", "starting", "running", "stopping", "stopped", "inherited"] = "new"
        self._listener: Listening | None = None
        self._shutdown: Shutdown | None = None
        self._stopped = asyncio.Event()
        self._peers: Peers
        self._loop: asyncio.AbstractEventLoop

    # Lifecycle

    async def start(self) -> None:
        """Listen, if the Config says so, and be ready to send.

        Raises:
            ConfigError: The node cannot listen at its hosts, or its certificates cannot be used; nothing is left open,
                and the start may be retried.
            UsageError: The node was started before, or is being started; or the running event loop is not asyncio's.
            Closed: The node was stopped meanwhile.

        Cancelling leaves nothing open either.
        """
        self._check_new()
        self._state = "starting"
        try:
            await self._start()
        finally:
            if self._state == "starting":
                self._state = "new"

    async def _start(self) -> None:
        config = self._config
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as error:
            # Usually trio: anyio's pytest plugin runs each test there as well where it is installed.
            raise UsageError(
                "no asyncio event loop is running",
                "in tests with anyio's plugin let the fixture anyio_backend return 'asyncio'",
            ) from error
        self._time = self._loop.time
        self._thread = threading.get_ident()
        peers = self._peers = Peers(self, self._events, config, self._serializer, self._identity, self._received)
        peers.dialler = Dialler(peers, self._carrier, config, peers.routes, peers.sessions, self._loop)
        if self._handler is None:
            peers.receiver = Consumers(peers, config.unclaimed_timeout)
        else:
            peers.receiver = self._dispatcher_class(
                self._handler,
                peers,
                hand_out=self._handed_out,
                releasing=config.auto_release is not False,
                watched=self._on_loop,
            )
        if config.tls is not None and config.encryption is not False:
            peers.credentials = await Credentials.load(config.tls)
            self._check_starting()
        if config.listen is not False:
            port = config.port
            if port is None:
                port = 0 if self._handler is None else DEFAULT_PORT
            listener = self._carrier.listener(peers, self._loop, config.backlog)
            try:
                await listener.open(config.hosts, port, self._check_host)
                self._check_starting()
            except BaseException:
                listener.close()
                await self._carrier.wait_ended()
                raise
            self._listener = listener
            peers.listen_at(config.public_port or listener.port)
            listener.accept()
        self._state = "running"
        started(self)

    def _check_starting(self) -> None:
        if self._state != "starting":
            raise Closed("node")

    def _check_host(self, address: Address) -> None:
        """Raise an error if links at an address are encrypted and there is no certificate."""
        credentials = self._peers.credentials
        if is_encrypted(address, self._config) and credentials is not None and not credentials.can_listen:
            hint = "pass TLS(certificate=…), or listen=False for a node that only dials"
            raise ConfigError("tls", self._config.tls, f"listening at {address} requires a certificate", hint)

    async def reload_certificates(self, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
        """Reload the files of `Config.tls`, or load other ones; open links keep their certificates.

        Args:
            tls: The certificates to use from now on; None reloads the files of `Config.tls`. Contexts are used as they
                are.

        Raises:
            ConfigError: The certificates cannot be used; the previous ones stay in use.
            UsageError: The node encrypts nothing: it was started without `tls`, or with ``encryption=False``.
            Closed: The node is not running.

        Cancelling leaves the previous certificates in use.
        """
        self._check_running()
        credentials = self._peers.credentials
        if credentials is None or self._config.tls is None:
            raise UsageError("the node does not encrypt", "start it with tls=, and not with encryption=False")
        config = self._config if tls is None else self._config.replace(tls=tls)
        await credentials.reload(config.tls or self._config.tls)

    async def stop(self, drain: float | Unset | None = UNSET) -> None:
        """Stop: accept no more messages, finish those that were begun, say goodbye, close.

        While the node drains, handlers and consumers may still send and request what they need to finish; the drain
        waits for these sends and for all others. After the drain, sending raises `Closed`.

        Args:
            drain: Time in seconds for handlers, queued sends and unconfirmed sends to end; unset is `Config.timeout`,
                None is no limit, 0 is none. After that, waiting messages are refused as `ShuttingDown`, handlers are
                cancelled, and sends fail with `NotSent` or `NotConfirmed`.

        Stopping a stopped node, or a parent's node in a child process, does nothing; a second call waits for the first.
        A handler that stops its own node is not waited for: its message fails at the sender as `NotConfirmed`, unless
        it ended before. A consumer that stops the node has to end its message first.

        Cancelling it during the drain ends the drain at once, and the `CancelledError` is raised when the node is
        closed; cancelling it later does not wait. A handler that continues after it was cancelled delays the end.

        Raises:
            UsageError: `drain` is invalid, or the node runs on another event loop; the node keeps running.
        """
        if not isinstance(drain, Unset) and drain is not None:
            check_seconds(drain, "drain")
        if self._state in {"new", "starting"}:
            self._state = "stopped"
            return
        if self._state == "inherited" or (self._state == "stopped" and self._shutdown is None):
            return
        if self._shutdown is None:
            self._check_loop()
            self._state = "stopping"
            seconds = self._config.timeout if isinstance(drain, Unset) else drain
            self._shutdown = Shutdown(self._peers, self._carrier, self._listener, seconds, self._has_stopped)
        await self._shutdown.wait()

    def _has_stopped(self) -> None:
        self._state = "stopped"
        self._stopped.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop(0 if error is not None else UNSET)

    async def serve_forever(self) -> None:
        """Wait until the node is stopped. Cancelling it does not stop the node."""
        self._check_running()
        await self._stopped.wait()

    def __del__(self) -> None:
        if getattr(self, "_state", "new") == "running":
            warnings.warn(f"{self!r} was dropped without being stopped", ResourceWarning, stacklevel=2)

    def _inherit(self) -> list[int]:
        """Refuse all use in this child of the process; return the descriptors of the parent's sockets. See fork.py."""
        if self._state not in {"running", "stopping"}:
            return []
        self._state = "inherited"
        descriptors = [] if self._listener is None else self._listener.descriptors
        for connection in list(self._peers.connections):
            transport = connection.transport
            found = None if transport is None else transport.get_extra_info("socket")
            if found is not None:
                descriptors.append(found.fileno())
        return descriptors

    # For its parts

    def send(self, message: Message[Any]) -> asyncio.Future[None]:
        """Send a message."""
        raise NotImplementedError

    # For layers built on a node (see door.py): plain calls that return at once, about peers that are redpoll nodes

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        """Handle a peer that has a first link; nothing was sent over it yet.

        Args:
            peer: The peer, the same object as long as it is known; a stranger that claims its identity is another peer.
            renewed: Whether the remote node restarted since its last link: what was in flight to the former run fails
                as not confirmed.
        """

    def _session_resumed(self, peer: Peer) -> None:
        """Handle a peer that has a link again in a session that survived its links; nothing was sent over it yet."""

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        """Handle a peer that has no link, and for which nothing that was sent to it waits.

        Args:
            peer: The peer.
            error: The end of its last link, where nothing waits without `Config.resume`, or where that link ended with
                a goodbye; otherwise a `PeerLost` or `Fenced` when `resume` is over, or another run of this node took
                over.
        """

    # State

    @property
    def config(self) -> Config:
        """The options of the node."""
        return self._config

    @property
    def identity(self) -> bytes:
        """The node identity, 16 bytes, by which other nodes know it."""
        return self._identity

    @property
    def listening(self) -> tuple[Address, ...]:
        """The addresses that it listens at; empty before `start` and where `Config.listen` is False."""
        return tuple(self._listener.addresses) if self._listener is not None and self._state == "running" else ()

    @property
    def address(self) -> Address:
        """The address for other nodes to dial: the first one it listens at, with the public port if one is set.

        Raises:
            Closed: It does not listen, has not been started, or was stopped.
        """
        listening = self.listening
        if not listening:
            raise Closed("listener") if self._state == "running" else self._closed()
        first = listening[0]
        if first.kind != "tcp":
            return first
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(first.host, first.host)  # noqa: S104
        return Address("tcp", host, self._config.public_port or first.port)

    @property
    def events(self) -> NodeEvents:
        """The hooks of the node."""
        return self._events

    @property
    def peers(self) -> tuple[PeerInfo, ...]:
        """The peers that are known now."""
        return tuple(map(info, self._peers.routes)) if self._was_started else ()

    def stats(self) -> NodeStats:
        """Return the counters so far, in all and for each peer: an immutable record."""
        return self._peers.statistics.collect() if self._was_started else NodeStats()

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.listening)) or "not listening"
        return f"<Node {self._identity.hex()[:8]} {self._state}, {where}>"

    @property
    def _was_started(self) -> bool:
        """True if it was started; a node that was stopped before its start was not."""
        return self._state == "running" or (self._shutdown is not None and self._state != "inherited")

    def _check_new(self) -> None:
        if self._state != "new":
            raise UsageError(f"this node is {self._state}: a node can be started only once")

    def _check_running(self) -> None:
        if self._state != "running":
            raise self._closed()
        self._check_loop()

    def _check_loop(self) -> None:
        """Raise an error for a call from another event loop or thread, which could change the node at any point."""
        running = _get_running_loop()
        if running is not self._loop and (running is not None or threading.get_ident() != self._thread):
            where = "event loop" if threading.get_ident() == self._thread else "thread"
            hint = "create it inside the asyncio.run() that uses it; for threads use redpoll.blocking.QueueNode"
            raise UsageError(f"this node was started on another {where}", hint)

    def _check_sending(self) -> None:
        """Raise an error if the node cannot send; while it drains, it can."""
        if self._state != "running" and (self._state != "stopping" or self._peers.closing is not None):
            raise self._closed()

    def _closed(self, start: str = "async with node, or await node.start()") -> Closed | UsageError:
        """Return the error of a call that needs a running node.

        Args:
            start: How to start such a node, for the hint.
        """
        if self._state == "inherited":
            return forked_error()
        hints = {"new": f"start it first: {start}", "stopped": "a node can be started only once: create another"}
        return Closed("node", hints.get(self._state))
