"""The end of begun messages: released, refused or answered, and what follows from that."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from redpoll.errors import DecodeError, MessageTooLarge, PeerLost, Undecodable
from redpoll.node.received import ReceivedMessage, raised
from redpoll.node.reports import Repeated
from redpoll.node.sending import Sending
from redpoll.wire.frames import ACK, ACK_NO_ANSWER, REQ_ACK, WANTED
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Payload
from redpoll.wire.slots import Slots
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from collections.abc import Callable

    from redpoll.config import Config
    from redpoll.message import Message
    from redpoll.node.hooks import NodeEvents
    from redpoll.serializers.base import Serializer
    from redpoll.wire.peer import Peer
    from redpoll.wire.slots import SlotPool

__all__ = ["Completion"]

_logger = logging.getLogger("redpoll.node")

_REQUEST = REQ_ACK | WANTED

#: A link in one of these states may be closed once all of its messages have ended.
_ENDING = frozenset((LinkState.LEAVING, LinkState.LEFT, LinkState.PARTING))


class _Owner(Protocol):
    """The peers of a node, as they learn of the end of a message."""

    raw: bool

    def begun(self, peer: Peer) -> None:
        """Resume reading if messages of a peer were begun and reading was paused."""

    def freed(self, peer: Peer) -> None:
        """Begin more messages: a slot was freed."""

    def ended_late(self, peer: Peer) -> None:
        """Remember a peer whose messages ended after its last link was lost, as one that was just lost."""


@dataclass(eq=False)
class Completion:
    """Ends the messages of one node."""

    _owner: _Owner
    _send: Callable[[Message[Any]], asyncio.Future[None]]
    _config: Config
    _serializer: Serializer[Any]
    _pool: SlotPool
    _events: NodeEvents
    _loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self.failures = Repeated(_log_failures)

    def release(self, message: ReceivedMessage[Any], kind: int = ACK) -> None:
        """Release a message outside of the dispatcher's turn."""
        if message.link.peer.slots.release(message, kind):
            self.freed(message)

    def refuse(self, message: ReceivedMessage[Any], code: int, text: str) -> None:
        """Refuse a message."""
        if message.link.peer.slots.refuse(message, code, text):
            self.freed(message)

    def release_many(self, messages: list[Any]) -> None:
        """Release a batch."""
        peer = messages[0].link.peer
        used = self._pool.used
        peer.slots.release_many(messages)
        self.freed(messages[0], used - self._pool.used)
        if len(peer.links) > 1:
            # They may have arrived over any of these links.
            peer.wake_links()

    def refuse_waiting(self, message: ReceivedMessage[Any], code: int, text: str) -> bool:
        """Refuse a message that is still in its inbox; return False if it is not."""
        peer = message.link.peer
        if not peer.slots.refuse_waiting(message, code, text):
            return False
        self._owner.begun(peer)
        self.freed(message)
        return True

    def handled(self, message: ReceivedMessage[Any], kind: int = ACK) -> None:
        """Release a message whose handler returned, unless the application releases it."""
        if self._config.auto_release is not False:
            self.release(message, kind)

    @staticmethod
    def unanswered(message: ReceivedMessage[Any]) -> int:
        """Return the acknowledgement for a message whose handler returned None: the sender of a request learns that."""
        if not message.kind & WANTED:
            return ACK
        # A partly written answer of `respond` continues; a whole one is in the output before the acknowledgement.
        return ACK if message.link.transfers.answering(message.serial) else ACK_NO_ANSWER

    def freed(self, message: ReceivedMessage[Any], count: int = 1) -> None:
        """Write the output and begin the messages that `count` freed slots allow."""
        link = message.link
        peer = link.peer
        if link.output or link.transfers:
            link.connection.wake()
        elif link not in peer.links:
            peer.wake_links()
        if link.unreleased == 0 and link.state in _ENDING:
            link.connection.wake()
        if peer.slots.inbox or self._pool.used + count >= self._pool.limit:
            self._owner.freed(peer)
        if not peer.links:
            self._owner.ended_late(peer)

    def handler_failed(self, message: ReceivedMessage[Any], error: BaseException) -> None:
        """Log a handler's exception with the message's identity, at most one a second, and call the hook."""
        self.failures.note((message.identity, message.address, error))
        self._events.tell("handler_failed", message, error)

    # Answers

    def decode(self, message: Any) -> None:
        """Replace a message's bytes by the value that the serializer makes of them.

        Raises:
            DecodeError: The serializer cannot read them.
        """
        try:
            value = self._serializer.decode(message.data)
        except DecodeError as error:
            theirs = message.link.announced.serializer
            if theirs not in {None, self._serializer.name}:
                error.hint = f"the peer's serializer is {theirs}: both nodes need the same"
            raise
        message._replace_data(value)

    def readable(self, message: Any) -> bool:
        """Decode a begun message; if the serializer cannot read it, refuse it and return False."""
        try:
            self.decode(message)
        except BaseException as error:
            # A serializer may be anybody's: only what ends the program continues.
            self.unreadable(message, error)
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
            return False
        return True

    def unreadable(self, message: Any, error: BaseException) -> None:
        """Refuse a message that the serializer could not read."""
        text = str(error) if isinstance(error, DecodeError) else raised(error)
        self.refuse(message, Undecodable.code, text)
        self.handler_failed(message, error)

    def answer(self, message: ReceivedMessage[Any], result: Any) -> None:
        """Send back what a handler returned, if the sender wants it, and release the message.

        Raises:
            EncodeError: The serializer cannot encode it.
            MessageTooLarge: It exceeds the limit of this node or of the peer.
        """
        link = message.link
        if link.libchirp:
            if self._config.answer_libchirp:
                self._send(message.reply(result))
        elif message.kind & WANTED:
            body = self._encode_answer(link, result)
            over = _link_for(message)
            ends = not message.phase and message.kind & REQ_ACK and self._config.auto_release is not False
            if over is link and ends:
                link.peer.slots.release_with_answer(message, body)
                self.freed(message)
                return
            # Without a link to the same node nothing waits for the answer any more.
            if over is not None:
                over.answer(message, body, ends=False)
                over.connection.wake()
        self.handled(message)

    def answer_at_once(self, slots: Slots, message: ReceivedMessage[Any], result: Any) -> bool:
        """Answer a redpoll peer's request over the link that it arrived on, in the frame that releases it.

        Returns:
            False if that is not possible; otherwise the message has ended, and its slot belongs to the caller.

        Raises:
            EncodeError: The serializer cannot encode the result.
            MessageTooLarge: It exceeds the limit of this node or of the peer.
        """
        link = message.link
        if message.frame[4] & _REQUEST != _REQUEST or link.libchirp or link.state is LinkState.CLOSED:
            return False
        body = self._encode_answer(link, result)
        if message.phase:
            # The serializer may end it.
            return False
        slots.finish_with_answer(message, body)
        return True

    async def respond(self, message: ReceivedMessage[Any], data: Any, header: bytes) -> None:
        """Send an answer while the message continues."""
        link = message.link
        peer = link.peer
        if link.libchirp or not message.kind & WANTED:
            await self._send(message.reply(data, header=header))
            return
        link = _link_for(message)
        if link is None:
            raise PeerLost(peer.address, "the link that the message arrived on was lost")
        body = self._encode_answer(link, data, len(header))
        out = Sending(loop=self._loop)
        out.peer = peer
        out.prepare(message.reply(data, header=header), body, 0, None, None, pinned=True)
        link.answer(message, body, header, ends=False, out=out)
        link.connection.wake()
        # Sent even if this is cancelled: half an answer is useless.
        await asyncio.shield(out)

    def _encode_answer(self, link: Link, data: Any, header_size: int = 0) -> Payload:
        body = data if type(data) is bytes and self._owner.raw else self._serializer.encode(data)
        size = len(body) + header_size
        limit = min(self._config.max_message_size, link.max_size)
        if size > limit:
            raise MessageTooLarge("message", size, limit)
        return body


def _log_failures(count: int, last: tuple[bytes, object, BaseException]) -> None:
    identity, address, error = last
    what = "message" if count == 1 else f"{count:,} messages, the last one"
    _logger.error("the handler failed on %s %s from %s", what, identity.hex(), address, exc_info=error)


def _link_for(message: ReceivedMessage[Any]) -> Any:
    """Return the link for the answer to a request: its own or, if it is lost, one to the same node, or None."""
    link = message.link
    peer = link.peer
    if link not in peer.links:
        # Also one that is being left.
        link = peer.link or next(iter(peer.links), None)
    return link if link is not None and not link.libchirp else None
