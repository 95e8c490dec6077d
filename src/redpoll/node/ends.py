"""How messages that were begun end: released, refused or answered, and what that sets going."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from redpoll.errors import Closed, DecodeError, MessageTooLarge, PeerLost, Undecodable
from redpoll.node.received import Received, raised
from redpoll.node.sending import Sending
from redpoll.wire.frames import Kind
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Payload
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.node.peers import Peers

__all__ = ["Ends"]

_logger = logging.getLogger("redpoll.node")

_REQ_ACK = int(Kind.REQ_ACK)
_WANTED = int(Kind.WANTED)

#: A link in one of these may be closed once all that it brought has ended.
_ENDING = frozenset((LinkState.LEAVING, LinkState.LEFT, LinkState.PARTING))


class Ends:
    """Ends the messages of one node."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._pool = peers.pool
        self._config = peers.config
        self._serializer = peers.serializer

    def release(self, message: Received[Any]) -> None:
        """Release a message outside of the dispatcher's turn."""
        if message.link.peer is not None and message.link.peer.slots.release(message):
            self.freed(message)

    def refuse(self, message: Received[Any], code: int, text: str) -> None:
        """Refuse a message."""
        if message.link.peer is not None and message.link.peer.slots.refuse(message, code, text):
            self.freed(message)

    def release_many(self, messages: list[Received[Any]]) -> None:
        """Release a batch."""
        peer = messages[0].link.peer
        if peer is not None:
            used = self._pool.used
            peer.slots.release_many(messages)
            self.freed(messages[0], used - self._pool.used)
            if len(peer.links) > 1:
                # They came over any of them.
                self._peers.wake_links(peer)

    def refuse_waiting(self, message: Received[Any], code: int, text: str) -> bool:
        """Refuse a message that is still in its inbox; False if it is not."""
        peer = message.link.peer
        if peer is None or not peer.slots.refuse_waiting(message, code, text):
            return False
        self._peers.begun(peer)
        self.freed(message)
        return True

    def handled(self, message: Received[Any]) -> None:
        """The handler returned nothing."""
        if self._config.auto_release is not False:
            self.release(message)

    def freed(self, message: Received[Any], count: int = 1) -> None:
        """A slot came free, or so many: write what that made, and begin what waits for it."""
        link = message.link
        peer = link.peer
        if peer is None:
            return
        if link.out or link.transfers:
            link.owner.wake()
        elif link not in peer.links:
            self._peers.wake_links(peer)
        if link.held == 0 and link.state in _ENDING:
            link.owner.wake()
        if peer.slots.inbox or self._pool.used + count >= self._pool.limit:
            if self._peers.dispatcher is not None:
                self._peers.dispatcher.freed(peer)
            elif self._peers.consumers is not None:
                self._peers.consumers.freed(peer)
        if self._peers.stopping:
            self._peers.changed()
        if not peer.links:
            self._peers.ended_late(peer)

    def handler_failed(self, message: Received[Any], error: BaseException) -> None:
        """Log a handler's exception with the message's identity, and tell the hook."""
        _logger.error(
            "the handler failed on message %s from %s", message.identity.hex(), message.address, exc_info=error
        )
        self._peers.node.events.tell("handler_failed", message, error)

    # Answers

    def decode(self, message: Any) -> None:
        """Put what the serializer makes of a message's bytes in their place.

        Raises:
            DecodeError: It cannot read them.
        """
        data = message.data
        message._replace_data(self._serializer.decode(data))

    def readable(self, message: Any) -> bool:
        """Decode a message that was begun; one that the serializer cannot read is refused: False."""
        try:
            self.decode(message)
        except Exception as error:  # noqa: BLE001  # a serializer may be anybody's
            self.unreadable(message, error)
            return False
        return True

    def unreadable(self, message: Any, error: Exception) -> None:
        """Refuse a message that the serializer could not read."""
        text = str(error) if isinstance(error, DecodeError) else raised(error)
        self.refuse(message, Undecodable.code, text)
        self.handler_failed(message, error)

    def answer(self, message: Received[Any], result: Any) -> None:
        """Send back what a handler returned, if that is wanted, and release the message.

        Raises:
            EncodeError: The serializer cannot carry it.
            MessageTooLarge: It is above what this node may send or the other takes.
        """
        link = message.link
        if link.announced is None:
            if self._config.answer_libchirp:
                self._reply_plain(message, result, b"")
            self.handled(message)
            return
        if not message.kind & _WANTED:
            self.handled(message)
            return
        body = self._encode_answer(link, result)
        peer = link.peer
        if peer is None:
            return
        if link.state is LinkState.CLOSED:
            # The same node, over a newer link; if there is none, nobody waits for the answer any more.
            if peer.link is not None and peer.link.announced is not None:
                peer.link.answer(message, body, ends=False)
                self._peers.wake_links(peer)
            self.handled(message)
        elif message.phase or not message.kind & _REQ_ACK or self._config.auto_release is False:
            link.answer(message, body, ends=False)
            self.handled(message)
            link.owner.wake()
        else:
            peer.slots.release_with_answer(message, body)
            self.freed(message)

    async def respond(self, message: Received[Any], data: Any, header: bytes) -> None:
        """Send an answer while the message goes on."""
        link = message.link
        peer = link.peer
        if peer is None:
            raise Closed("message")
        if link.announced is None or not message.kind & _WANTED:
            await self._peers.node.send(message.reply(data, header=header))
            return
        if link not in peer.links:
            if peer.link is None or peer.link.announced is None:
                raise PeerLost(peer.address, "the link that the message came over is gone")
            link = peer.link
        body = self._encode_answer(link, data, len(header))
        out = Sending(loop=self._peers.loop)
        out.peer = peer
        out.prepare(message.reply(data, header=header), body, 0, None, None, pinned=True)
        link.answer(message, body, header, ends=False, out=out)
        link.owner.wake()
        # It goes out all the same when this is cancelled: half an answer would be none.
        await asyncio.shield(out)

    def _encode_answer(self, link: Link, data: Any, header_size: int = 0) -> Payload:
        body = self._serializer.encode(data)
        size = len(body) + header_size
        announced = link.announced
        if size > self._peers.settings.max_message_size or (
            announced is not None and size > announced.max_message_size
        ):
            limits = (
                self._peers.settings.max_message_size,
                announced.max_message_size if announced is not None else size,
            )
            raise MessageTooLarge("message", size, min(limits))
        return body

    def _reply_plain(self, message: Received[Any], result: Any, header: bytes) -> None:
        self._peers.node.send(message.reply(result, header=header))
