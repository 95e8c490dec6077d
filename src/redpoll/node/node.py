"""The node: what an application holds."""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
import warnings
from collections.abc import AsyncIterable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal

from redpoll.address import Address
from redpoll.config import DEFAULT_PORT, Config, is_encrypted
from redpoll.errors import Closed, ConfigError, MessageTooLarge, RedpollError, UsageError
from redpoll.message import Message
from redpoll.node.batch import send_all
from redpoll.node.census import info
from redpoll.node.dialler import Dialler
from redpoll.node.dispatch import Dispatcher
from redpoll.node.hooks import NodeEvents, PeerInfo
from redpoll.node.lifecycle import Shutdown
from redpoll.node.loops import Batches, Messages
from redpoll.node.peers import Peers
from redpoll.node.pulling import Consumers, Take
from redpoll.node.received import Received
from redpoll.node.sending import (
    UNSET,
    Sending,
    Unset,
    check_acknowledge,
    check_retry,
    check_seconds,
    dials_once,
)
from redpoll.node.waiting import check, wait_ready
from redpoll.serializers import get as get_serializer
from redpoll.stats import NodeStats
from redpoll.tls import TLS, Credentials
from redpoll.transport.carrier import Carrier, Listening, Sockets
from redpoll.wire.frames import Kind
from redpoll.wire.peer import WITHDRAW_GRACE, Peer

__all__ = ["Node"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from redpoll.wire.outgoing import Payload

    # What a node's serializer makes of data cannot be told from its name: without a handler that says it, it is Any.
    DataT = TypeVar("DataT", default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")

_REQ_ACK = int(Kind.REQ_ACK)
_REQUEST = int(Kind.REQ_ACK | Kind.WANTED)

#: A forwarded message has what is left of its deadline less this share, or these seconds where they are less: a next hop
#: that is frozen is first asked whether it had begun, and the error is to reach the first sender inside its own time.
_FORWARD_SHARE = 0.3
_FORWARD_MARGIN = WITHDRAW_GRACE + 0.5


class Node(Generic[DataT]):
    """Sends messages to other nodes and receives theirs: with a handler, or by being pulled from.

    Args:
        handler: Called with each message that arrives, as slots allow: a plain function or a coroutine function. When
            it returns the message is released, which acknowledges it; what it returns goes back if an answer is wanted;
            when it raises the message is refused. None: messages wait to be taken.
        config: The options; None is all defaults.
        **options: Fields of `Config` that go before `config`'s.

    Use it as an async context manager, or call `start` and `stop`. All methods belong to the event loop it was started
    on. Messages to one peer are handled in the order of their sends as long as none fails; one above
    `Config.fragment_size` takes its place when the last of it has arrived.

    Raises:
        ConfigError: An option is unknown or has a value that it cannot have.
        UsageError: The handler is no function, or a generator function.
    """

    #: What its links make of what arrives.
    _received: type[Received[Any]] = Received
    #: What brings the bytes of its links.
    _carrier: Carrier = Sockets()
    #: Whether a message waits for the last fragment of the one before it.
    _in_order = False

    def __init__(
        self,
        handler: Callable[[Received[DataT]], Any] | None = None,
        config: Config | None = None,
        **options: Any,
    ) -> None:
        if handler is not None:
            if not callable(handler):
                raise UsageError(f"a handler is a function, not {type(handler).__name__}", "options are keywords")
            if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
                raise UsageError(f"a handler returns its answer: {handler.__name__!r} is a generator function")
        self._config = Config.from_options(config, options)
        self._handler = handler
        self._serializer = get_serializer(self._config.serializer)
        self._encode = self._serializer.encode
        self._identity = self._config.identity or os.urandom(16)
        self._events = NodeEvents()
        self._state: Literal["new", "starting", "running", "stopping", "stopped"] = "new"
        self._listener: Listening | None = None
        self._shutdown: Shutdown | None = None
        self._stopped = asyncio.Event()
        self._timeout = self._config.timeout
        self._once = self._config.dial == "once"
        self._max_size = self._config.max_message_size
        self._peers: Peers
        self._loop: asyncio.AbstractEventLoop
        self._by_address: dict[Address, Peer]

    # Life

    async def start(self) -> None:
        """Listen, if the Config says so, and be ready to send.

        Raises:
            ConfigError: It cannot listen where it should, or its certificates cannot be used; nothing is left open, and it
                may be tried again.
            UsageError: It was started before, or is being started; or the event loop that runs is not asyncio's.
            Closed: It was stopped meanwhile.

        Cancelling it leaves nothing open either.
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
            # trio, most of all: anyio's plugin runs each test there as well where it is installed.
            raise UsageError(
                "a node runs on an asyncio event loop, and none is running here",
                "in tests with anyio's plugin let the fixture anyio_backend return 'asyncio'",
            ) from error
        self._time = self._loop.time
        peers = self._peers = Peers(self, config, self._serializer, self._identity)
        self._by_address = peers.routes.table
        peers.dialler = Dialler(peers, self._carrier, config.effective_connect_timeout)
        if self._handler is None:
            peers.consumers = Consumers(peers, self._loop, config.unclaimed_timeout)
        else:
            peers.dispatcher = Dispatcher(self._handler, peers, self._loop)
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

    def _check_starting(self) -> None:
        if self._state != "starting":
            raise Closed("node")

    def _check_host(self, address: Address) -> None:
        """Refuse to listen where links are encrypted without a certificate to show."""
        credentials = self._peers.credentials
        if is_encrypted(address, self._config) and credentials is not None and not credentials.can_listen:
            hint = "give TLS(certificate=…), or listen=False to a node that only dials"
            raise ConfigError("tls", self._config.tls, f"to listen at {address} a node needs a certificate", hint)

    async def reload_certificates(self, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
        """Use the files of `Config.tls` as they are now, or others; links that are up stay, whatever they were made with.

        Args:
            tls: What is used from now on; None is `Config.tls`, whose files are read again. Contexts are used as they are.

        Raises:
            ConfigError: They cannot be used; what was used before stays.
            UsageError: The node encrypts nothing: it was started without `tls`, or with ``encryption=False``.
            Closed: The node is not running.

        Cancelling it leaves what was used before.
        """
        self._check_running()
        credentials = self._peers.credentials
        if credentials is None or self._config.tls is None:
            raise UsageError("the node encrypts nothing", "start it with tls=, and not with encryption=False")
        config = self._config if tls is None else self._config.replace(tls=tls)
        await credentials.reload(config.tls or self._config.tls)

    async def stop(self, drain: float | Unset | None = UNSET) -> None:
        """Stop: take no more messages, finish those that were begun, say goodbye, close.

        While it drains, handlers and consumers may still send and request what they need to finish, and the drain waits
        for that as well; so does what anybody else sends then. Once it is over, sending raises `Closed`.

        Args:
            drain: Seconds that handlers, queued sends and unconfirmed ones have to end; unset is `Config.timeout`, None
                is no limit, 0 is none. What has not ended then does: messages that wait are refused as `ShuttingDown`,
                handlers are cancelled, sends fail with `NotSent` or `NotConfirmed`.

        Stopping a node that is stopped does nothing; a second call waits for the first. A handler that stops its node
        is not waited for: its message fails at the sender as `NotConfirmed`, unless it was ended before. End a pulled
        message before.

        Cancelling it while it drains ends the draining at once, and the cancellation comes out when the node is closed;
        cancelled later, it is not waited for. A handler that goes on after it was cancelled delays the end.

        Raises:
            UsageError: `drain` is no time; the node goes on.
        """
        if not isinstance(drain, Unset) and drain is not None:
            check_seconds(drain, "drain")
        if self._state in {"new", "starting"}:
            self._state = "stopped"
            return
        if self._shutdown is None:
            if self._state == "stopped":
                return
            self._state = "stopping"
            seconds = self._config.timeout if isinstance(drain, Unset) else drain
            self._shutdown = Shutdown(self._peers, self._carrier, self._listener, seconds, self._has_stopped)
        await self._shutdown.wait()

    def _has_stopped(self) -> None:
        self._state = "stopped"
        self._stopped.set()

    async def __aenter__(self) -> Node[DataT]:
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

    def _session_began(self, peer: Peer, renewed: bool) -> None:
        """A redpoll peer has a link again, or for the first time; nothing was sent over it yet.

        For what is built on a node, as `_session_ended`: both are plain calls that return at once. This one comes with each
        first link, so more than once in a session that survives its links.

        Args:
            peer: Who, the same object as long as it is known; a stranger that claims its identity is another one.
            renewed: Whether its node was started again since this one last saw it: what was in flight to the former run
                fails as not confirmed.
        """

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        """A redpoll peer has no link, and what was sent to it waits for none.

        Args:
            peer: Who.
            error: Why: what ended its last link, where nothing waits without `Config.resume`, or where that link ended with a
                goodbye; else a `PeerLost` or a `Fenced` when `resume` is over, or another run of this node took its place.
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

        Args:
            message: Where to is its address; a received message, or a `reply` to one, goes to the node that sent it.
            timeout: Seconds for queue, connecting, transfer and remote work; unset is `Config.timeout`, None is no
                limit.
            retry: How often it may be sent again when it was not confirmed because a link was lost. Between redpoll
                nodes the receiver answers what it did before instead of doing it again.
            acknowledge: Whether to wait for the release; None is `Config.acknowledge`.
            dial: "once" fails with the first dialling that fails; None is `Config.dial`.

        Returns:
            A future, to be awaited at once or later. Cancelling it withdraws the message: still queued, it is not sent;
            a redpoll peer that has not begun it will not.

        Raises:
            Closed: The node is not running.
            UsageError: The message has no address, or is no `Message`; an option has a value that it cannot have.
            EncodeError: The serializer cannot carry the data.
            MessageTooLarge: It is above what this node may send.

        The future fails with `NotSent` (`QueueFull`, `Expired`), `NotConfirmed` or `Refused`, each a `SendError` whose
        `sent` says whether the peer may have handled it; with `MessageTooLarge` when it is above what the peer takes,
        which is known once there is a link. A reply to a node that is gone fails with `NotSent`, caused by `PeerLost`. Where
        the ends do not agree on encryption, or on who is who, it fails at once with `NotSent`, caused by `TLSError`; where
        one does not let the other in, by `NotAuthorized`.
        """
        if acknowledge is None:
            acknowledge = self._config.acknowledge
        elif type(acknowledge) is not bool:
            check_acknowledge(acknowledge)  # type: ignore[unreachable]  # callers may be untyped
        if type(retry) is not int or retry < 0:
            check_retry(retry)
        return self._submit(message, _REQ_ACK if acknowledge else 0, timeout, retry, dial, False)

    def request(
        self,
        message: Message[Any],
        *,
        timeout: float | Unset | None = UNSET,
        cancel: bool = False,
        dial: Literal["retry", "once"] | None = None,
    ) -> asyncio.Future[Received[DataT]]:
        """Send a message and wait for the answer: what the handler there returned, or responded with.

        Args:
            message: As for `send`.
            timeout: Seconds until the answer, as for `send`.
            cancel: Whether a handler that still works when the request is cancelled or too late is cancelled as well.
            dial: As for `send`.

        Returns:
            A future of the answer, which has ended already. Cancelling it withdraws the request, as for `send`.

        Raises:
            Closed: The node is not running.
            UsageError: As for `send`; also `EncodeError` and `MessageTooLarge`.

        The future fails as that of `send`; with `NoAnswer` when the work was done and no answer came in time; with
        `DecodeError` when the serializer cannot read the answer.
        """
        return self._submit(message, _REQUEST, timeout, 0, dial, cancel)

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
        # All options first: a peer that was made for a message that is not sent would stay.
        if timeout is UNSET:
            seconds = self._timeout
        else:
            if timeout is not None:
                check_seconds(timeout)
            seconds = timeout
        once = self._once if dial is None else dials_once(dial)
        pinned = False
        now = self._time()
        if type(message) is Message:
            peer = self._by_address.get(message._address) or self._find(message)[0]  # type: ignore[arg-type]
        else:
            peer, pinned = self._find(message)
            if timeout is UNSET and not pinned:
                seconds = self._left(message, now)
        if body is None:
            try:
                body = self._encode(message.data)
            except BaseException:
                self._peers.forget_if_idle(peer)
                raise
        out = Sending(loop=self._loop)
        out.peer = peer
        out.prepare(
            message,
            body,
            kind,
            seconds,
            None if seconds is None else now + seconds,
            retry,
            pinned,
            once,
            hard,
        )
        if out.size > self._max_size:
            self._peers.forget_if_idle(peer)
            raise MessageTooLarge("message", out.size, self._max_size)
        peer.submit(out, now)
        link = peer.link
        if link is not None:
            link.owner.submitted()
        return out

    def _left(self, message: Message[Any], now: float) -> float | None:
        """Seconds that a message has by default: one that is forwarded what is left of its deadline, less a margin."""
        due = message._due()
        if due is None:
            return self._timeout
        left = max(due - now, 0.0)
        return left - min(_FORWARD_MARGIN, left * _FORWARD_SHARE)

    def _find(self, message: Message[Any]) -> tuple[Peer, bool]:
        if not isinstance(message, Message):
            raise UsageError(f"a node sends a Message, not {type(message).__name__}", "Message(data, address)")
        pinned = message._bound_to()
        if isinstance(pinned, Peer) and pinned.owner is self._peers:
            return self._peers.bound_to(pinned), True
        address = message.address
        if address is None:
            raise UsageError("the message has no address", 'Message(data, "host:port")')
        return self._peers.at(address), False

    async def send_many(
        self,
        messages: Iterable[Message[Any]] | AsyncIterable[Message[Any]],
        *,
        timeout: float | Unset | None = UNSET,
        retry: int = 0,
        acknowledge: bool | None = None,
    ) -> int:
        """Send messages in order, as fast as the windows allow, with no more open than a window.

        Args:
            messages: Any iterable; it is asked for the next message only while fewer than a window are open, so it may
                be endless and it is slowed by the receivers.
            timeout: For each message, as for `send`.
            retry: For each message, as for `send`.
            acknowledge: As for `send`.

        Returns:
            How many messages were sent; all of them succeeded.

        Raises:
            BatchError: One failed: `index` is the first that did, `completed` counts those that succeeded. No message
                behind those open at that moment was sent; those have ended when it is raised.
            UsageError: What was given is no iterable, or an option has a value that it cannot have.
            Closed: The node is not running.

        What the iterable itself raises comes out as it is, and what is open then is withdrawn.

        Cancelling it withdraws what is open, as cancelling `send` does.
        """
        self._check_sending()
        self._seconds(timeout)
        check_retry(retry)
        check_acknowledge(acknowledge)
        if acknowledge is None:
            acknowledge = self._config.acknowledge
        return await send_all(self, self._peers, messages, timeout, retry, acknowledge)

    async def ready(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> None:
        """Wait until a message to an address would be written at once: link up, nothing queued, a window place free.

        Args:
            address: Where to.
            timeout: Seconds; unset is `Config.timeout`, None is no limit; 0 only looks, and dials nobody.

        Raises:
            Expired: It did not become so in time; the cause is why dialling failed, if it did.
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on who is who.
            NotAuthorized: `Config.authorize` here does not let it in, or the other end does not, as far as it has said so.
            UsageError: The address or the timeout is none.
            Closed: The node is not running, or stopped before it was so.

        Cancelling it ends the dialling, unless something else waits for the same peer.
        """
        self._check_sending()
        seconds = self._seconds(timeout)
        await wait_ready(self._peers, Address.parse(address), seconds)

    async def check(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> bool:
        """Whether a node answers at an address: a link is up, or dialling once gives one. No handler there is called.

        Args:
            address: Where to look.
            timeout: Seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on who is who.
            NotAuthorized: `Config.authorize` here does not let it in, or the other end does not, as far as it has said so.
            UsageError: The address or the timeout is none.
            Closed: The node is not running.

        Cancelling it ends the dialling, unless something else waits for the same peer.
        """
        self._check_sending()
        return await check(self._peers, Address.parse(address), self._seconds(timeout))

    # Receiving

    async def receive(self, timeout: float | Unset | None = UNSET) -> Received[DataT]:
        """Take the next message; ending it is left to you, unless `Config.auto_release` is "get".

        Args:
            timeout: Seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            TimeoutError: None came in time.
            UsageError: The node has a handler, or the timeout is none.
            Closed: The node is not running, or stopped meanwhile.

        Cancelling it loses no message.
        """
        message = await self._consumers().take(self._seconds(timeout))
        if self._config.auto_release == "get":
            message.release()
        return message

    def take(self, timeout: float | Unset | None = UNSET) -> Take[DataT]:
        """Take the next message for a block: `async with node.take() as message`.

        The end of the block releases it, an exception there refuses it, unless `Config.auto_release` is not True.

        Args:
            timeout: Seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            TimeoutError: On entering: none came in time.
            UsageError: The node has a handler, or the timeout is none.
            Closed: The node is not running, or stopped meanwhile.

        Cancelling the entering loses no message; cancelled inside, the block refuses its message as `Cancelled`.
        """
        self._consumers()
        self._seconds(timeout)
        return Take(self, timeout)

    def __aiter__(self) -> Messages:
        """Messages one by one; each is released when the next is asked for. Ends when the node stops.

        Raises:
            UsageError: The node has a handler.
            Closed: The node is not running.

        Cancelling a step loses no message. One that is still open when the loop is left is refused as `Abandoned`, with a
        warning.
        """
        return Messages(self._consumers(), self._peers.ends, self._config.auto_release)

    def batches(self, max: int = 1024) -> Batches:
        """Messages as lists, as many of one peer as are there and have a slot; a list is released with the next step.

        Args:
            max: Messages in a list at most.

        Raises:
            UsageError: The node has a handler, or `max` is below 1.
            Closed: The node is not running.

        Cancelling a step loses no message. One that is still open when the loop is left is refused as `Abandoned`, with a
        warning.
        """
        if isinstance(max, bool) or not isinstance(max, int):
            raise UsageError(f"max is a number of messages, not {type(max).__name__}")
        if max < 1:
            raise UsageError(f"a batch has at least one message, not {max}")
        return Batches(self._consumers(), self._peers.ends, max, self._config.auto_release)

    def _consumers(self) -> Consumers:
        if self._handler is not None:
            raise UsageError("this node has a handler, which gets its messages", "make the node without a handler")
        consumers = self._peers.consumers if self._has_run else None
        if consumers is None:
            raise Closed("node")
        return consumers

    # Looking

    @property
    def config(self) -> Config:
        """The options it was made with."""
        return self._config

    @property
    def identity(self) -> bytes:
        """Its 16 bytes, which other nodes know it by."""
        return self._identity

    @property
    def listening(self) -> tuple[Address, ...]:
        """Where it listens; empty before `start` and where `Config.listen` is False."""
        return tuple(self._listener.addresses) if self._listener is not None and self._state == "running" else ()

    @property
    def address(self) -> Address:
        """Where other nodes can dial it: the first that it listens at, with the public port if one is set.

        Raises:
            Closed: It does not listen, has not been started, or was stopped.
        """
        listening = self.listening
        if not listening:
            raise Closed("listener" if self._state == "running" else "node")
        first = listening[0]
        if first.kind != "tcp":
            return first
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(first.host, first.host)  # noqa: S104
        return Address("tcp", host, self._config.public_port or first.port)

    @property
    def events(self) -> NodeEvents:
        """Its hooks."""
        return self._events

    @property
    def peers(self) -> tuple[PeerInfo, ...]:
        """The peers that it knows now."""
        if not self._has_run:
            return ()
        return tuple(info(peer) for peer in self._peers.routes)

    def stats(self) -> NodeStats:
        """What it counted so far, in all and for each peer: an immutable record."""
        if not self._has_run:
            return NodeStats()
        return self._peers.census.stats()

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
    def _has_run(self) -> bool:
        """Whether it was started, which a node that was stopped before was not."""
        return self._state == "running" or self._shutdown is not None

    def _check_new(self) -> None:
        if self._state != "new":
            raise UsageError(f"this node is {self._state}: a node is started once")

    def _check_running(self) -> None:
        if self._state != "running":
            raise Closed("node")

    def _check_sending(self) -> None:
        """Refuse to send, but not while what was begun before the stop may still need it."""
        if self._state != "running" and (self._state != "stopping" or self._peers.closing is not None):
            raise Closed("node")
