"""The node, the object that an application holds."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack

from redpoll.address import Address
from redpoll.config import Config, ConfigOptions
from redpoll.errors import MessageTooLarge, UsageError
from redpoll.message import Message
from redpoll.node.base import NodeBase
from redpoll.node.batch import Stream
from redpoll.node.iteration import Batches, Messages
from redpoll.node.pulling import Consumers
from redpoll.node.received import HandedOut, ReceivedMessage
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


class Node(NodeBase, Generic[DataT]):
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

    _received: type[Received[Any]] = Received
    _handed_out: type[Taken[Any]] | None = Taken

    def __init__(
        self,
        handler: Callable[[Received[DataT]], Any] | None = None,
        config: Config | None = None,
        **options: Unpack[ConfigOptions],
    ) -> None:
        super().__init__(handler, config, {**options})

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

    def _seconds(self, timeout: float | Unset | None) -> float | None:
        if isinstance(timeout, Unset):
            return self._config.timeout
        if timeout is not None:
            check_seconds(timeout)
        return timeout
