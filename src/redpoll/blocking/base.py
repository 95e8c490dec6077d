"""The base of both nodes for threads: start and stop, sending, properties; and their received messages."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from redpoll.address import Address
from redpoll.blocking.batch import send_all
from redpoll.blocking.loop_node import LoopNode
from redpoll.blocking.received import ReceivedMessage
from redpoll.blocking.resident import Resident
from redpoll.blocking.sending import Sending
from redpoll.config import Config
from redpoll.errors import Closed, MessageTooLarge, UsageError
from redpoll.message import Message
from redpoll.node.hooks import NodeEvents, PeerInfo
from redpoll.node.received import HandedOut
from redpoll.node.sending import (
    ACKNOWLEDGED,
    REQUEST,
    UNSET,
    Unset,
    check_options,
    check_seconds,
    dials_once,
)
from redpoll.stats import NodeStats
from redpoll.tls import TLS

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover

__all__ = ["BlockingNode", "DataT", "Received", "Taken", "hand_out"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # As for `Node`.
    DataT = TypeVar("DataT", default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")
ResultT = TypeVar("ResultT")


class Received(ReceivedMessage[DataT]):
    """A message received by a node for threads. It ends once: released (the work is done) or refused.

    All methods may be called from any thread. As a context manager it is released on leaving, and refused on an exception,
    unless it has ended before. `data` stays valid after the end. `deadline` is on the clock of `time.monotonic()`.
    """

    __slots__ = ()

    @property
    def node(self) -> BlockingNode[Any]:  # type: ignore[override]
        """The node that received it."""
        facade: BlockingNode[Any] = self.link.connection.keeper.node.facade
        return facade


class Taken(HandedOut, Received[DataT]):  # type: ignore[override]  # attributes of a Received are set in its message
    """A message that its receiver has to end: handed out if `Config.auto_release` is not True."""

    __slots__ = ("_message",)


def hand_out(message: Received[DataT], mode: bool | str) -> Received[DataT]:
    """Return a pulled message as its consumer gets it if the library does not release it later.

    Args:
        message: The pulled message.
        mode: `Config.auto_release`, "get" or False.
    """
    if mode == "get":
        message.release()
        return message
    return Taken(message)


class _LoopNode(LoopNode):
    """The node on the loop, whose messages know the node for threads."""

    _received = Received
    _handed_out = Taken  # type: ignore[assignment]  # as that of `_received`

    def __init__(self, facade: BlockingNode[Any], handler: Callable[[Any], Any] | None, config: Config) -> None:
        super().__init__(handler, config)
        self.facade = facade


class BlockingNode(Resident, Generic[DataT]):
    """A node on the loop thread that all such nodes of the process share; every method may be called from any thread.

    Methods that wait raise `UsageError` on the loop thread itself, where hooks and the callbacks of futures run, and in a
    forked child, which has to start nodes of its own.
    """

    def __init__(self, handler: Callable[[Any], Any] | None, config: Config) -> None:
        self._node = _LoopNode(self, handler, config)
        self._encode = self._node._encode
        self._kind = ACKNOWLEDGED if config.acknowledge else 0
        self._timeout = config.timeout
        self._once = config.dial == "once"
        self._max_size = config.max_message_size
        self._life = threading.RLock()

    # Start and stop

    def start(self) -> None:
        """Start the node: listen, unless `Config.listen` is False, and get ready to send.

        Raises:
            ConfigError: The node cannot listen at its address, or cannot use its certificates. Nothing is left open, and
                `start` may be called again.
            UsageError: It was started before.
            Closed: It was stopped meanwhile.

        Ctrl-C leaves nothing open either.
        """
        with self._life:
            self._node._check_new()
            self._move_in(self._start)

    async def _start(self, handover: Handover) -> None:
        self._node.handover = handover
        await self._node.start()

    def stop(self, drain: float | Unset | None = UNSET) -> None:
        """Stop the node: accept no more messages, finish those that have begun, say goodbye, close.

        During the drain threads may still send and request what they need to finish.

        Args:
            drain: Seconds for begun messages, queued sends and unconfirmed ones to end; unset is
                `Config.timeout`, None is no limit, 0 does not wait. Afterwards waiting messages are
                refused as `ShuttingDown`, and sends fail with `NotSent` or `NotConfirmed`.

        Stopping a stopped node does nothing, and neither does stopping the parent's node in a forked child; a second call
        waits for the first. Ctrl-C ends the drain, and is raised when the node is closed; a second one is raised at once,
        while the node still closes. A signal handler may call it; where that interrupted a method of this package in a moment
        for which the event loop may wait, it returns at once, and the node stops when the handler has returned.

        Raises:
            UsageError: `drain` is not a number of seconds; the node keeps running.
        """
        if not isinstance(drain, Unset) and drain is not None:
            check_seconds(drain, "drain")
        thread = self._thread
        if thread is None:
            self._node.stop_unstarted()
        elif not self._is_inherited:
            thread.handover.check_thread()
            self._leave_behind()
            self._move_out(partial(self._node.stop, drain))

    async def evict(self, patience: float) -> None:  # noqa: ARG002  # as `Resident` declares it
        """For the library. See `Resident.evict`."""
        if self._node._state != "new":
            await self._node.stop(0)

    def _leave_behind(self) -> None:
        """Abandon the message that this thread holds, since it is about to wait for the node to stop."""

    def inherit(self) -> None:
        """For the library: do nothing in a forked child, where the node closes its sockets itself."""

    def serve_forever(self) -> None:
        """Wait until the node is stopped; return at once if it is. Ctrl-C interrupts the wait.

        Raises:
            Closed: The node was not started, or is being stopped.
        """
        try:
            self._handover().run(self._node.serve_forever)
        except Closed:
            if self._node._state != "stopped":
                raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(0 if error is not None else UNSET)

    def _handover(self) -> Handover:
        thread = self._thread
        if thread is None:
            raise self._node._closed("with node, or node.start()")
        return thread.handover

    # Sending

    def send(
        self,
        message: Message[Any],
        *,
        timeout: float | Unset | None = UNSET,
        retry: int = 0,
        acknowledge: bool | None = None,
        dial: Literal["retry", "once"] | None = None,
    ) -> Future[None]:
        """Send a message; the future is done when the receiver has released it or, unacknowledged, when it was written.

        Args:
            message: The message, with an address; a received message, or a `reply` to one, goes to the node that sent it.
            timeout: Seconds for queueing, connecting, transfer and remote work; unset is `Config.timeout`, None is no
                limit.
            retry: Maximum resends if the message was not confirmed because a link was lost.
            acknowledge: Whether to wait for the release; None is `Config.acknowledge`.
            dial: "once" fails with the first failed dial; None is `Config.dial`.

        Returns:
            A `concurrent.futures.Future`. Cancelling it withdraws the message. Its callbacks are called on the loop thread;
            they must return soon.

        Messages of one thread are sent in the order of its calls. The call does not wait, unless the loop thread
        is more than a thousand calls behind.

        Raises:
            Closed: The node is not running.
            UsageError: The message has no address, or is not a `Message`; an option has an invalid value.
            EncodeError: The serializer cannot encode the data.
            MessageTooLarge: It exceeds `Config.max_message_size`.

        The future fails as that of `redpoll.Node.send`, and with `UsageError` if the address cannot be dialled.
        """
        if acknowledge is not None or type(retry) is not int or retry < 0:
            check_options(acknowledge, retry)
        kind = self._kind if acknowledge is None else ACKNOWLEDGED if acknowledge else 0
        return self._post(message, kind, timeout, retry, dial, False)

    def request(
        self,
        message: Message[Any],
        *,
        timeout: float | Unset | None = UNSET,
        cancel: bool = False,
        dial: Literal["retry", "once"] | None = None,
    ) -> Future[Received[DataT]]:
        """Send a message and request an answer: the remote handler's return value, or its `respond`.

        Args:
            message: As for `send`.
            timeout: Seconds until the answer, as for `send`.
            cancel: Whether to cancel a handler that is still running when the request is cancelled or times out.
            dial: As for `send`.

        Returns:
            A future of the answer; otherwise as that of `send`.

        Raises:
            Closed: The node is not running.
            UsageError: As for `send`; also `EncodeError` and `MessageTooLarge`.

        The future fails as that of `send`; with `NoAnswer` if the work was done but no answer arrived in time; with
        `DecodeError` if the serializer cannot decode the answer.
        """
        return self._post(message, REQUEST, timeout, 0, dial, cancel)

    def _post(
        self,
        message: Message[Any],
        kind: int,
        timeout: float | Unset | None,
        retry: int,
        dial: Literal["retry", "once"] | None,
        hard: bool,
    ) -> Sending:
        node = self._node
        thread = self._thread
        if thread is None:
            raise self._node._closed("with node, or node.start()")
        handover = thread.handover
        if node._state != "running":
            handover.check()
            node._check_sending()
        unset = timeout is UNSET
        if unset:
            seconds = self._timeout
        else:
            if timeout is not None:
                check_seconds(timeout)
            seconds = timeout  # type: ignore[assignment]
        once = self._once if dial is None else dials_once(dial)
        if type(message) is not Message or message._address is None:
            _check_message(message)
        out = Sending(node)
        out.prepare(message, self._encode(message.data), kind, seconds, None, retry, False, once, hard)
        if out.size > self._max_size:
            raise MessageTooLarge("message", out.size, self._max_size)
        out.unset = unset
        handover.post_sending(node.submit, out)
        return out

    def send_many(
        self,
        messages: Iterable[Message[Any]],
        *,
        timeout: float | Unset | None = UNSET,
        retry: int = 0,
        acknowledge: bool | None = None,
    ) -> int:
        """Send messages in order, as fast as the receivers' windows allow, with at most a window of them open.

        Args:
            messages: Any iterable. This thread asks it for the next message only while fewer than a window are open, so it
                may be endless, may block, and is slowed down by the receivers.
            timeout: For each message, as for `send`.
            retry: For each message, as for `send`.
            acknowledge: As for `send`.

        Returns:
            The number of messages sent; all of them succeeded.

        Raises:
            BatchError: A message failed: `index` is that of the first, `completed` counts the successful ones. No message
                after those open at that moment was sent, and all of those have ended.
            UsageError: `messages` is not an iterable, or an option has an invalid value.
            Closed: The node is not running.

        Exceptions of the iterable itself, and Ctrl-C, are raised unchanged, and open messages are withdrawn.
        """
        self._handover().check_thread()
        if timeout is not UNSET and timeout is not None:
            check_seconds(timeout)
        check_options(acknowledge, retry)
        send = partial(self.send, timeout=timeout, retry=retry, acknowledge=acknowledge)
        return send_all(send, messages, self._handover().catch_up)

    def ready(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> None:
        """Wait until a message to an address would be written at once: link up, nothing queued, a window place free.

        Args:
            address: The address of the peer.
            timeout: Seconds; unset is `Config.timeout`, None is no limit; 0 only checks, and does not dial.

        Raises:
            Expired: The timeout ended first; its cause is the error of dialling, if dialling failed.
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on a certificate.
            NotAuthorized: `Config.authorize` of this node or of the peer refused.
            OtherProtocol: The server at the address is not a node.
            Fenced: Another run of this node took over its session there.
            UsageError: The address or the timeout is invalid.
            Closed: The node is not running, or was stopped meanwhile.
        """
        self._handover().run(partial(self._node.ready, address, timeout=timeout))

    def check(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> bool:
        """Return True if a node answers at an address: a link is up, or one dial makes one. No handler is called.

        Args:
            address: The address of the peer.
            timeout: Seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on a certificate.
            NotAuthorized: `Config.authorize` of this node or of the peer refused.
            Fenced: Another run of this node took over its session there.
            UsageError: The address or the timeout is invalid.
            Closed: The node is not running.
        """
        found: bool = self._handover().run(partial(self._node.check, address, timeout=timeout))
        return found

    def reload_certificates(self, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
        """Use the current files of `Config.tls`, or other certificates, for new links; existing links stay as they are.

        Args:
            tls: The new certificates; None reads the files of `Config.tls` again. SSL contexts are used as they are.

        Raises:
            ConfigError: The certificates cannot be used; the former ones stay in use.
            UsageError: The node does not use TLS.
            Closed: The node is not running.
        """
        self._handover().run(self._node.reload_certificates, tls)

    # Properties

    @property
    def config(self) -> Config:
        """The node's options."""
        return self._node.config

    @property
    def identity(self) -> bytes:
        """The node's identity, 16 bytes."""
        return self._node.identity

    @property
    def listening(self) -> tuple[Address, ...]:
        """The addresses that it listens at; empty before `start`, and if `Config.listen` is False."""
        return self._node.listening

    @property
    def address(self) -> Address:
        """The address at which other nodes can dial it: the first of `listening`, with the public port if one is set.

        Raises:
            Closed: The node does not listen, has not been started, or was stopped.
        """
        return self._node.address

    @property
    def events(self) -> NodeEvents:
        """The hooks, called on the loop thread: they must return soon, and must not wait."""
        return self._node.events

    @property
    def peers(self) -> tuple[PeerInfo, ...]:
        """The current peers."""
        return self._look(lambda: self._node.peers)

    def stats(self) -> NodeStats:
        """Return the counters, in total and for each peer: an immutable record."""
        return self._look(self._node.stats)

    def _look(self, function: Callable[[], ResultT]) -> ResultT:
        thread = self._thread
        if thread is None or thread.handover.is_here:
            return function()
        try:
            found: ResultT = thread.handover.run(function)
        except Closed:  # meanwhile
            return function()
        return found

    def __repr__(self) -> str:
        return repr(self._node).replace("<Node", f"<{type(self).__name__}", 1)


def _check_message(message: Any) -> None:
    if not isinstance(message, Message):
        raise UsageError(f"expected a Message, not {type(message).__name__}", "Message(data, address)")
    if message.address is None and message._bound_to() is None:
        raise UsageError("the message has no address", 'Message(data, "host:port")')
