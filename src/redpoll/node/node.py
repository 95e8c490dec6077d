"""The node, the object that an application holds."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import warnings
from asyncio import _get_running_loop
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from redpoll.address import Address
from redpoll.config import DEFAULT_PORT, Config, is_encrypted
from redpoll.errors import Closed, ConfigError, MessageTooLarge, RedpollError, UsageError
from redpoll.message import Message
from redpoll.node.batch import Stream
from redpoll.node.dialler import Dialler
from redpoll.node.dispatch import Dispatcher, check_handler
from redpoll.node.hooks import NodeEvents, PeerInfo
from redpoll.node.iteration import Batches, Messages
from redpoll.node.lifecycle import Shutdown, forked_error, started
from redpoll.node.peers import Peers
from redpoll.node.pulling import Consumers
from redpoll.node.received import HandedOut, ReceivedMessage
from redpoll.node.reports import info
from redpoll.node.sending import (
    ACKNOWLEDGED,
    REQUEST,
    UNSET,
    Sending,
    Unset,
    check_options,
    check_seconds,
    dials_once,
    submit,
)
from redpoll.serializers import get as get_serializer
from redpoll.stats import NodeStats
from redpoll.tls import TLS, Credentials
from redpoll.transport.carrier import Carrier, Listening, Sockets
from redpoll.wire.peer import WITHDRAW_GRACE, Peer

__all__ = ["Node", "Received", "Taken"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from redpoll.wire.outgoing import Payload

    # The type that a serializer returns cannot be inferred from its name: unless the handler's annotation gives it,
    # it is Any.
    DataT = TypeVar("DataT", default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")

#: A forwarded message inherits its deadline less this share of the time left, or less these seconds if that is shorter:
#: a frozen next hop is first asked whether it had begun, and the error has to reach the original sender within its
#: timeout.
_FORWARD_SHARE = 0.3
_FORWARD_MARGIN = WITHDRAW_GRACE + 0.5


class Received(ReceivedMessage[DataT]):
    """A received message. It ends once: released (the work is done) or refused (it is not, and why).

    As an async context manager (and as a plain one) it releases on exit and refuses on an exception, unless it ended
    before. `data` stays valid after the end.
    """

    __slots__ = ()

    @property
    def node(self) -> Node[Any]:
        """The `Node` that received it."""
        node: Node[Any] = self.link.connection.keeper.node
        return node


class Taken(HandedOut, Received[DataT]):  # type: ignore[override]  # attributes of a Received are set on its message
    """The message that `Node.receive` returns, and that a handler gets where `Config.auto_release` is False."""

    __slots__ = ("_message",)


class Node(Generic[DataT]):
    """Sends messages to other nodes and receives theirs: with a handler, or by pulling.

    Args:
        handler: A plain function or a coroutine function, called with each message that arrives, as slots allow. When
            it returns, the message is released, which acknowledges it; its result is sent back if the sender wants an
            answer, and must not change afterwards. When it raises, the message is refused. It runs on the event loop;
            if it blocks the loop, a warning names it. None: messages wait until they are pulled.
        config: The options; None is all defaults.
        **options: Fields of `Config`, which override `config`.

    Use it as an async context manager, or call `start` and `stop`. All methods must be called on the event loop that
    the node was started on: on another loop, in other threads, and in a forked child they raise `UsageError`. Messages
    to one peer are handled in the order of their sends as long as none fails; a message above `Config.fragment_size`
    takes its place when its last fragment has arrived, unless `Config.in_order` is set.

    Raises:
        ConfigError: An option is unknown or has an invalid value.
        UsageError: The handler cannot be called with one message, or is a generator function.
    """

    #: The class of the messages that its links receive.
    _received: type[Received[Any]] = Received
    #: The class that wraps a message which the handler has to end; None hands out the message itself.
    _handed_out: type[Taken[Any]] | None = Taken
    #: The class that runs its handler.
    _dispatcher_class: type[Dispatcher] = Dispatcher
    #: The carrier of its links.
    _carrier: Carrier = Sockets()
    #: Seconds that acknowledgements wait for what may be written with them.
    patience = 0.0
    #: Whether the handler runs on the event loop, and so may block it.
    _on_loop = True

    def __init__(
        self,
        handler: Callable[[Received[DataT]], Any] | None = None,
        config: Config | None = None,
        **options: Any,
    ) -> None:
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
            await listener.open(config.hosts, port, self._check_host)
            try:
                self._check_starting()
            except Closed:
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

    # Sending

    def send(
        self,
        message: Message[Any],
        *,
        timeout: float | Unset | None = UNSET,
        retry: int = 0,
        acknowledge: bool | None = None,
        dial: Literal["retry", "once"] | None = None,
    ) -> asyncio.Future[None]:
        """Send a message; the future is done when the receiver released it or, unacknowledged, when it was written.

        Handlers of messages to one peer start in the order of their sends. A message above `Config.fragment_size` takes
        its place when its last fragment has arrived: smaller ones overtake it, unless `Config.in_order` holds them
        back.

        A mutable buffer that was sent (a bytearray, an array) may change again when the send succeeded. After a failure
        or a cancellation the library may still refer to it: send bytes if that can happen.

        Args:
            message: The message, with the address to send to; a received message, or a `reply` to one, goes to its
                sender.
            timeout: Time in seconds for queue, connecting, transfer and remote work; unset is `Config.timeout`, None is
                no limit.
            retry: How often it may be resent if a link was lost before it was confirmed. Between redpoll nodes the
                receiver repeats the outcome instead of handling it again.
            acknowledge: Whether to wait for the release; None is `Config.acknowledge`.
            dial: "once" fails when the first attempt to dial fails; None is `Config.dial`.

        Returns:
            A future, to be awaited at once or later. Cancelling it withdraws the message: if it is still queued, it is
            not sent; if a redpoll peer has not begun it, it is not handled.

        Raises:
            Closed: The node is not running.
            UsageError: The message has no address, or is not a `Message`; an option has an invalid value.
            EncodeError: The serializer cannot encode the data.
            MessageTooLarge: The message exceeds the limit of this node.

        The future fails with `NotSent` (`QueueFull`, `Expired`), `NotConfirmed` or `Refused`, each a `SendError` whose
        `sent` says whether the peer may have handled it; with `MessageTooLarge` if it exceeds the limit of the peer,
        which is known once there is a link. A reply to a node that is gone fails with `NotSent`, caused by `PeerLost`.
        If the ends do not agree on encryption, or on their identities, it fails at once with `NotSent`, caused by
        `TLSError`; if one end rejects the other, caused by `NotAuthorized`.
        """
        if acknowledge is None:
            acknowledge = self._config.acknowledge
        if type(acknowledge) is not bool or type(retry) is not int or retry < 0:  # type: ignore[redundant-expr]  # untyped callers
            check_options(acknowledge, retry)
        return self._submit(message, ACKNOWLEDGED if acknowledge else 0, timeout, retry, dial, False)

    def request(
        self,
        message: Message[Any],
        *,
        timeout: float | Unset | None = UNSET,
        cancel: bool = False,
        dial: Literal["retry", "once"] | None = None,
    ) -> asyncio.Future[Received[DataT]]:
        """Send a message and wait for the answer: what the remote handler returned, or responded with.

        Args:
            message: As for `send`.
            timeout: Time in seconds until the answer, as for `send`.
            cancel: Whether to cancel the remote handler if it still runs when the request is cancelled or expires.
            dial: As for `send`.

        Returns:
            A future of the answer, a message that has ended already. Cancelling it withdraws the request, as for
            `send`.

        Raises:
            Closed: The node is not running.
            UsageError: As for `send`; also `EncodeError` and `MessageTooLarge`.

        The future fails as that of `send`; with `NoAnswer` if the work was done and no answer arrived in time; with
        `DecodeError` if the serializer cannot read the answer.
        """
        return self._submit(message, REQUEST, timeout, 0, dial, cancel)

    def _submit(
        self,
        message: Message[Any],
        kind: int,
        timeout: float | Unset | None,
        retry: int,
        dial: str | None,
        hard: bool,
        body: Payload | None = None,
    ) -> Sending:
        if self._state != "running":
            self._check_sending()
        if _get_running_loop() is not self._loop:
            self._check_loop()
        # Check all options and encode first: a peer that was made for a message that is not sent would stay, and one
        # that was found may be forgotten by sends of the serializer's own.
        config, peers = self._config, self._peers
        if timeout is UNSET:
            seconds = config.timeout
        else:
            if timeout is not None:
                check_seconds(timeout)
            seconds = timeout
        once = config.dial == "once" if dial is None else dials_once(dial)
        pinned = False
        now = self._time()
        if type(message) is Message:
            if body is None:
                data = message._data
                # The serializer would return bytes unchanged.
                body = data if peers.raw and type(data) is bytes else self._encode(data)
            peer = peers.routes.table.get(message._address) or self._find(message)[0]  # type: ignore[arg-type]
        else:
            if not isinstance(message, Message):
                raise UsageError(f"expected a Message, not {type(message).__name__}", "Message(data, address)")
            if body is None:
                body = self._encode(message.data)
            peer, pinned = self._find(message)
            if timeout is UNSET and not pinned:
                seconds = self._default_timeout(message, now)
        # It takes the running loop, which is this node's.
        out = Sending()
        deadline = None if seconds is None else now + seconds
        try:
            out.prepare(message, body, kind, seconds, deadline, retry, pinned, once, hard)
        except TypeError:
            # The serializer returned something without a length.
            peers.forget_if_idle(peer)
            raise
        if out.size > config.max_message_size:
            peers.forget_if_idle(peer)
            raise MessageTooLarge("message", out.size, config.max_message_size)
        submit(out, peer, now)
        if peer.link is None and out.done():
            # It failed at a bound; nothing else may be kept for the peer.
            peers.forget_if_idle(peer)
        return out

    def _default_timeout(self, message: Message[Any], now: float) -> float | None:
        """Return a message's default timeout; a forwarded message inherits its deadline, less a margin."""
        due = message._due()
        if due is None:
            return self._config.timeout
        left = max(due - now, 0.0)
        return left - min(_FORWARD_MARGIN, left * _FORWARD_SHARE)

    def _find(self, message: Message[Any]) -> tuple[Peer, bool]:
        pinned = message._bound_to()
        if isinstance(pinned, Peer) and pinned.owner is self._peers:
            return self._peers.routes.bound_to(pinned), True
        address = message.address
        if address is None:
            raise UsageError("the message has no address", 'Message(data, "host:port")')
        return self._peers.routes.at(address), False

    async def send_many(
        self,
        messages: Iterable[Message[Any]] | AsyncIterable[Message[Any]],
        *,
        timeout: float | Unset | None = UNSET,
        retry: int = 0,
        acknowledge: bool | None = None,
    ) -> int:
        """Send messages in order, as fast as the windows allow, with at most one window of them open.

        Args:
            messages: Any iterable; its next message is requested only while fewer than a window are open, so it may be
                endless, and the receivers slow it down.
            timeout: For each message, as for `send`.
            retry: For each message, as for `send`.
            acknowledge: As for `send`.

        Returns:
            The number of messages; all of them succeeded.

        Mutable buffers of the messages may change again when this returned.

        Raises:
            BatchError: A message failed: `index` is the first one that did, `completed` counts those that succeeded. No
                message after those open at that moment was sent; these have ended when it is raised.
            UsageError: `messages` is not iterable, or an option has an invalid value.
            Closed: The node is not running.

        An exception of the iterable itself is raised unchanged, and the open messages are withdrawn.

        Cancelling it withdraws the open messages, as cancelling `send` does.
        """
        self._check_sending()
        self._check_loop()
        check_options(acknowledge, retry)
        if acknowledge is None:
            acknowledge = self._config.acknowledge
        kind = ACKNOWLEDGED if acknowledge else 0

        def submit_one(message: Message[Any], body: Payload | None) -> Sending:
            return self._submit(message, kind, timeout, retry, None, False, body)

        return await Stream(self._peers, submit_one, self._seconds(timeout), acknowledge).run(messages)

    async def ready(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> None:
        """Wait until a message to an address would be written at once: link up, nothing queued, window not full.

        Args:
            address: The address.
            timeout: Time in seconds; unset is `Config.timeout`, None is no limit; 0 only checks, and does not dial.

        Raises:
            Expired: The peer was not ready in time; the cause is the error of dialling, if there was one.
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on their identities.
            NotAuthorized: `Config.authorize` of this node refused the peer, or the peer rejected this node, if it has
                said so.
            OtherProtocol: The server there is not a node.
            Fenced: Another run of this node took over its session there.
            UsageError: The address or the timeout is invalid.
            Closed: The node is not running, or stopped meanwhile.

        Cancelling it ends the dialling, unless something else waits for the same peer.
        """
        self._check_sending()
        self._check_loop()
        seconds = self._seconds(timeout)
        await self._peers.dialler.ready(Address.parse(address), seconds)

    async def check(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> bool:
        """Return True if a node answers at an address: a link is up, or dialling once makes one. No handler is called.

        Args:
            address: The address.
            timeout: Time in seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on their identities.
            NotAuthorized: `Config.authorize` of this node refused the peer, or the peer rejected this node, if it has
                said so.
            Fenced: Another run of this node took over its session there.
            UsageError: The address or the timeout is invalid.
            Closed: The node is not running.

        Cancelling it leaves the dialling, which ends by itself within `Config.connect_timeout`.
        """
        self._check_sending()
        self._check_loop()
        return await self._peers.dialler.check(Address.parse(address), self._seconds(timeout))

    # Receiving

    async def receive(self, timeout: float | Unset | None = UNSET) -> Received[DataT]:
        """Wait for the next message; the caller has to end it, unless `Config.auto_release` is "get".

        Args:
            timeout: Time in seconds; unset is `Config.timeout`, None is no limit.

        Returns:
            The message. If it is dropped before it ended, it is refused as `Abandoned`, with a warning.

        Raises:
            TimeoutError: No message arrived in time.
            UsageError: The node has a handler, or the timeout is invalid.
            Closed: The node is not running, or stopped meanwhile.

        Cancelling it loses no message.
        """
        message: Any = await self._consumers().take(self._seconds(timeout))
        if self._config.auto_release == "get":
            message.release()
            return message  # type: ignore[no-any-return]  # a `Received`, as `_received` says
        return Taken(message)

    def take(self, timeout: float | Unset | None = UNSET) -> AbstractAsyncContextManager[Received[DataT]]:
        """Take the next message for a block: `async with node.take() as message`.

        The end of the block releases the message and an exception refuses it, unless `Config.auto_release` is not True.

        Args:
            timeout: Time in seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            TimeoutError: On entering: no message arrived in time.
            UsageError: The node has a handler, or the timeout is invalid.
            Closed: The node is not running, or stopped meanwhile.

        Cancelling while entering loses no message; cancelling the block refuses its message as `Cancelled`.
        """
        self._consumers()
        self._seconds(timeout)
        return self._take(timeout)

    @asynccontextmanager
    async def _take(self, timeout: float | Unset | None) -> AsyncIterator[Received[DataT]]:
        message = await self.receive(timeout)
        async with nullcontext() if self._config.auto_release is False else message:
            yield message

    def __aiter__(self) -> Messages[Received[DataT]]:
        """Iterate over messages; each is released when the next is requested. The iteration ends when the node stops.

        Raises:
            UsageError: The node has a handler.
            Closed: The node is not running.

        Cancelling a step loses no message. A message that is still open when the loop is left is refused as
        `Abandoned`, with a warning.
        """
        return Messages(self._consumers(), self._config.auto_release, Taken)

    def batches(self, max: int = 1024) -> Batches[Received[DataT]]:
        """Iterate over lists of waiting messages, each of one peer; a list is released by the next step.

        Args:
            max: Maximum messages in a list.

        Raises:
            UsageError: The node has a handler, or `max` is below 1.
            Closed: The node is not running.

        Cancelling a step loses no message. Messages that are still open when the loop is left are refused as
        `Abandoned`, with a warning.
        """
        if isinstance(max, bool) or not isinstance(max, int):
            raise UsageError(f"max must be a number of messages, not {type(max).__name__}")
        if max < 1:
            raise UsageError(f"max={max} is below the minimum of 1")
        return Batches(self._consumers(), self._config.auto_release, Taken, max)

    def _consumers(self) -> Consumers:
        if self._handler is not None:
            raise UsageError(
                "this node has a handler, which receives its messages", "create the node without a handler"
            )
        consumers = self._peers.receiver if self._was_started else None
        if not isinstance(consumers, Consumers):
            raise self._closed()
        self._check_loop()
        return consumers

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

    def _seconds(self, timeout: float | Unset | None) -> float | None:
        if isinstance(timeout, Unset):
            return self._config.timeout
        if timeout is not None:
            check_seconds(timeout)
        return timeout

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
