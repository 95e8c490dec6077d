"""The node on the loop behind a node for threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redpoll.blocking.feed import Feed
from redpoll.blocking.received import ReceivedMessage
from redpoll.blocking.sending import Sending
from redpoll.config import Config
from redpoll.message import Message
from redpoll.node import Node
from redpoll.node.pulling import Consumers
from redpoll.node.received import HandedOut
from redpoll.node.sending import submit

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover

__all__ = ["LoopNode"]


class LoopNode(Node[Any]):
    """A node whose messages go to threads.

    Args:
        handler: As for `Node`; None for a node that is pulled from.
        config: The options.

    Attributes:
        handover: The way to its loop; set at the start.
        feed: Hands its messages to threads; None if it has a handler.
    """

    _on_loop = False
    handover: Handover

    def __init__(self, handler: Callable[[Any], Any] | None, config: Config) -> None:
        super().__init__(handler, config)
        self.feed = Feed() if handler is None else None

    async def _start(self) -> None:
        await super()._start()
        peers = self._peers
        if self.feed is not None and isinstance(peers.receiver, Consumers):
            decode = None if peers.raw else self._serializer.decode
            self.feed.open(peers.receiver, peers.completion, self.handover, decode)

    def submit(self, out: Sending) -> None:
        """Submit a sending that a thread posted, unless it was cancelled meanwhile."""
        if out._state != "PENDING":
            return
        if self._state != "running":
            self._check_sending()
        message = out.message
        now = self._time()
        if type(message) is Message:
            peer = self._peers.routes.table.get(message._address) or self._find(message)[0]  # type: ignore[arg-type]
        else:
            peer, out.pinned = self._find(message)
            if out.unset and not out.pinned:
                out.timeout = self._default_timeout(message, now)
        if out.timeout is not None:
            out.deadline = now + out.timeout
        submit(out, peer, now)

    def unheard(self, message: Message[Any], error: BaseException) -> None:
        """Report a failed send whose future was dropped unseen."""
        self._peers.failures.tell(message, error)

    def take_back(self, message: ReceivedMessage[Any]) -> bool:
        """Refuse a message that its sender withdrew; return False if a thread has pulled it."""
        return self.feed is not None and self.feed.take_back(message)

    def refuse(self, message: ReceivedMessage[Any], code: int, text: str) -> None:
        """Refuse a message at once."""
        self._peers.completion.refuse(message._message if isinstance(message, HandedOut) else message, code, text)

    def stop_unstarted(self) -> None:
        """Mark a node that was never started as stopped."""
        if self._state == "new":
            self._state = "stopped"
