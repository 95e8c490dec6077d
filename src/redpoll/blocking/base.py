"""What both kinds of nodes for threads have: their life, sending, looking."""

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
from redpoll.blocking.resident import Resident
from redpoll.blocking.sending import Sending
from redpoll.config import Config
from redpoll.errors import Closed, MessageTooLarge, UsageError
from redpoll.message import Message
from redpoll.node.hooks import NodeEvents, PeerInfo
from redpoll.node.sending import (
    ACKNOWLEDGED,
    REQUEST,
    UNSET,
    Unset,
    check_acknowledge,
    check_retry,
    check_seconds,
    dials_once,
)
from redpoll.stats import NodeStats
from redpoll.tls import TLS

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover
    from redpoll.blocking.received import Received

__all__ = ["BlockingNode"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # As for `Node`.
    DataT = TypeVar("DataT", default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")
ResultT = TypeVar("ResultT")


class BlockingNode(Resident, Generic[DataT]):
    """A node on a loop thread, which all such nodes of the process share; every method may be called from any thread.

    What waits raises `UsageError` on the loop thread itself, where hooks and the callbacks of futures run, and in a child
    of the process (`os.fork`), which has to start nodes of its own.
    """

    def __init__(self, handler: Callable[[Any], Any] | None, config: Config) -> None:
        self._node = LoopNode(self, handler, config)
        self._encode = self._node._encode
        self._kind = ACKNOWLEDGED if config.acknowledge else 0
        self._timeout = config.timeout
        self._once = config.dial == "once"
        self._max_size = config.max_message_size
        self._life = threading.RLock()

    # Life

    def start(self) -> None:
        """Listen, if the Config says so, and be ready to send.

        Raises:
            ConfigError: It cannot listen where it should, or its certificates cannot be used; nothing is left open, and it
                may be tried again.
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
        """Stop: take no more messages, finish those that were begun, say goodbye, close.

        While it drains, threads may still send and request what they need to finish.

        Args:
            drain: Seconds that messages that were begun, queued sends and unconfirmed ones have to end; unset is
                `Config.timeout`, None is no limit, 0 is none. What has not ended then does: messages that wait are
                refused as `ShuttingDown`, sends fail with `NotSent` or `NotConfirmed`.

        Stopping a node that is stopped does nothing, nor does stopping the parent's in a child process; a second call waits
        for the first. Ctrl-C ends the draining, and comes out when the node is closed; a second one comes out at once, and
        the node is closed all the same.

        Raises:
            UsageError: `drain` is no time; the node goes on.
        """
        if not isinstance(drain, Unset) and drain is not None:
            check_seconds(drain, "drain")
        thread = self._thread
        if thread is None:
            self._node.stop_unstarted()
        elif not self._is_inherited:
            thread.handover.check_blocking()
            self._leave_behind()
            self._move_out(partial(self._node.stop, drain))

    async def evict(self, patience: float) -> None:  # noqa: ARG002  # Lodger's
        """For the library. See `Resident.evict`."""
        if self._node._state != "new":
            await self._node.stop(0)

    def _leave_behind(self) -> None:
        """This thread stops the node: end what it would wait for in vain."""

    def inherit(self) -> None:
        """For the library: this is a child of the process, where the node has let go of its sockets itself."""

    def serve_forever(self) -> None:
        """Wait until the node is stopped, which it may be already; Ctrl-C interrupts the waiting.

        Raises:
            Closed: The node was not started, or is just being stopped.
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
        """Send a message; the future is done when the receiver released it or, unacknowledged, when it was written.

        Args:
            message: Where to is its address; a received message, or a `reply` to one, goes to the node that sent it.
            timeout: Seconds for queue, connecting, transfer and remote work; unset is `Config.timeout`, None is no
                limit.
            retry: How often it may be sent again when it was not confirmed because a link was lost.
            acknowledge: Whether to wait for the release; None is `Config.acknowledge`.
            dial: "once" fails with the first dialling that fails; None is `Config.dial`.

        Returns:
            A `concurrent.futures.Future`. Cancelling it withdraws the message. Its callbacks are called on the loop thread;
            they have to return soon.

        Messages of one thread are sent in the order of its calls. It does not wait, but for the loop thread if that is
        behind by more than a thousand calls.

        Raises:
            Closed: The node is not running.
            UsageError: The message has no address, or is no `Message`; an option has a value that it cannot have.
            EncodeError: The serializer cannot carry the data.
            MessageTooLarge: It is above what this node may send.

        The future fails as that of `redpoll.Node.send`; with `UsageError` when the address cannot be dialled.
        """
        if acknowledge is None:
            kind = self._kind
        else:
            check_acknowledge(acknowledge)
            kind = ACKNOWLEDGED if acknowledge else 0
        if type(retry) is not int or retry < 0:
            check_retry(retry)
        return self._post(message, kind, timeout, retry, dial, False)

    def request(
        self,
        message: Message[Any],
        *,
        timeout: float | Unset | None = UNSET,
        cancel: bool = False,
        dial: Literal["retry", "once"] | None = None,
    ) -> Future[Received[DataT]]:
        """Send a message and ask for an answer: what the handler there returned, or responded with.

        Args:
            message: As for `send`.
            timeout: Seconds until the answer, as for `send`.
            cancel: Whether a handler that still works when the request is cancelled or too late is cancelled as well.
            dial: As for `send`.

        Returns:
            A future of the answer, as that of `send`.

        Raises:
            Closed: The node is not running.
            UsageError: As for `send`; also `EncodeError` and `MessageTooLarge`.

        The future fails as that of `send`; with `NoAnswer` when the work was done and no answer came in time; with
        `DecodeError` when the serializer cannot read the answer.
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
        """Send messages in order, as fast as the windows allow, with no more open than a window.

        Args:
            messages: Any iterable; this thread asks it for the next message only while fewer than a window are open, so it
                may be endless, may wait itself, and is slowed by the receivers.
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

        What the iterable itself raises, and Ctrl-C, come out as they are, and what is open then is withdrawn.
        """
        self._handover().check_blocking()
        if timeout is not UNSET and timeout is not None:
            check_seconds(timeout)
        check_retry(retry)
        check_acknowledge(acknowledge)
        send = partial(self.send, timeout=timeout, retry=retry, acknowledge=acknowledge)
        return send_all(send, messages, self._handover().catch_up)

    def ready(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> None:
        """Wait until a message to an address would be written at once: link up, nothing queued, a window place free.

        Args:
            address: Where to.
            timeout: Seconds; unset is `Config.timeout`, None is no limit; 0 only looks, and dials nobody.

        Raises:
            Expired: It did not become so in time; the cause is why dialling failed, if it did.
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on who is who.
            NotAuthorized: `Config.authorize` here does not let it in, or the other end does not, as far as it has said so.
            OtherProtocol: The server there is not a node.
            Fenced: Another run of this node took over its session there.
            UsageError: The address or the timeout is none.
            Closed: The node is not running, or stopped before it was so.
        """
        self._handover().run(partial(self._node.ready, address, timeout=timeout))

    def check(self, address: Address | str, *, timeout: float | Unset | None = UNSET) -> bool:
        """Whether a node answers at an address: a link is up, or dialling once gives one. No handler there is called.

        Args:
            address: Where to look.
            timeout: Seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            ConfigError: The address needs TLS, and there are no certificates.
            TLSError: The ends do not agree on encryption, or on who is who.
            NotAuthorized: `Config.authorize` here does not let it in, or the other end does not, as far as it has said so.
            Fenced: Another run of this node took over its session there.
            UsageError: The address or the timeout is none.
            Closed: The node is not running.
        """
        found: bool = self._handover().run(partial(self._node.check, address, timeout=timeout))
        return found

    def reload_certificates(self, tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None) -> None:
        """Use the files of `Config.tls` as they are now, or others; links that are up stay as they are.

        Args:
            tls: What is used from now on; None is `Config.tls`, whose files are read again. Contexts are used as they are.

        Raises:
            ConfigError: They cannot be used; what was used before stays.
            UsageError: The node encrypts nothing.
            Closed: The node is not running.
        """
        self._handover().run(self._node.reload_certificates, tls)

    # Looking

    @property
    def config(self) -> Config:
        """The options it was made with."""
        return self._node.config

    @property
    def identity(self) -> bytes:
        """Its 16 bytes, which other nodes know it by."""
        return self._node.identity

    @property
    def listening(self) -> tuple[Address, ...]:
        """Where it listens; empty before `start` and where `Config.listen` is False."""
        return self._node.listening

    @property
    def address(self) -> Address:
        """Where other nodes can dial it: the first that it listens at, with the public port if one is set.

        Raises:
            Closed: It does not listen, has not been started, or was stopped.
        """
        return self._node.address

    @property
    def events(self) -> NodeEvents:
        """Its hooks, called on the loop thread: they have to return soon, and may not wait."""
        return self._node.events

    @property
    def peers(self) -> tuple[PeerInfo, ...]:
        """The peers that it knows now."""
        return self._look(lambda: self._node.peers)

    def stats(self) -> NodeStats:
        """What it counted so far, in all and for each peer: an immutable record."""
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
