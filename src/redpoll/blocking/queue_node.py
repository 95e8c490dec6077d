"""A node that threads pull messages from."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from redpoll.blocking.base import BlockingNode
from redpoll.blocking.feed import Feed
from redpoll.blocking.held import Held, warn_of
from redpoll.blocking.loops import Messages, Take
from redpoll.blocking.received import Received, hand_out
from redpoll.config import Config
from redpoll.errors import Closed, UsageError
from redpoll.node.sending import UNSET, Unset, check_seconds

__all__ = ["QueueNode"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # As for `Node`.
    DataT = TypeVar("DataT", default=Any)
else:
    from typing import TypeVar

    DataT = TypeVar("DataT")


class QueueNode(BlockingNode[DataT]):
    """A node for threads that is pulled from, as a `queue.Queue` is: what arrives waits until a thread gets it.

    Args:
        config: The options; None is all defaults.
        **options: Fields of `Config` that go before `config`'s.

    Use it as a context manager, or call `start` and `stop`. Any number of threads may pull from it and send with it; each
    message goes to one of them. What waits raises `UsageError` on the loop thread, and in a child of the process.

    Raises:
        ConfigError: An option is unknown or has a value that it cannot have.
    """

    def __init__(self, config: Config | None = None, **options: Any) -> None:
        if config is not None and not isinstance(config, Config):
            raise UsageError("a QueueNode takes no handler", "PoolNode(handler) calls one in threads")
        super().__init__(None, Config.from_options(config, options))
        self._mode = self.config.auto_release
        self._mine = threading.local()

    def get(self, block: bool = True, timeout: float | None = None) -> Received[DataT]:
        """Take the next message, and release the one that this thread got before.

        Args:
            block: Whether to wait for one.
            timeout: Seconds to wait; None (default) is no limit, as everywhere in `queue`.

        Returns:
            The message. If this thread neither ends it nor calls `get` again, it is refused as `Abandoned` when the thread
            ends or the node stops, with a warning. `Config.auto_release` "get" releases it at once, False leaves it to you:
            dropped before it was ended, it is refused as `Abandoned`, with a warning.

        Raises:
            queue.Empty: None came in time, or none is there.
            UsageError: The timeout is none.
            Closed: The node is not running, or stopped meanwhile.

        Ctrl-C while it waits loses no message.
        """
        if timeout is not None:
            check_seconds(timeout)
        held: Held
        try:
            held = self._mine.held
        except AttributeError:
            held = self._mine.held = self._feed().hold()
        if held.item is not None:
            held.release()
        message = held.feed.pull(held, timeout) if block else held.feed.pull_nowait(held)
        if message is None:
            raise queue.Empty
        if self._mode is not True:
            message = hand_out(message, self._mode)
            held.item = None
        held.seen = True
        return message

    def get_nowait(self) -> Received[DataT]:
        """As `get(block=False)`.

        Raises:
            queue.Empty: No message waits, or none may be begun before another ends.
            Closed: The node is not running.
        """
        return self.get(block=False)

    def take(self, timeout: float | Unset | None = UNSET) -> Take[DataT]:
        """Take the next message for a block: `with node.take() as message`.

        The end of the block releases it, an exception there refuses it, unless `Config.auto_release` is not True. What the
        thread got by `get` stays open.

        Args:
            timeout: Seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            TimeoutError: On entering: none came in time.
            UsageError: The timeout is none.
            Closed: The node is not running, or stopped meanwhile.

        Ctrl-C while it waits loses no message; inside, the block refuses its message.
        """
        if isinstance(timeout, Unset):
            timeout = self.config.timeout
        elif timeout is not None:
            check_seconds(timeout)
        return Take(self._feed(), self._mode, timeout)

    def __iter__(self) -> Messages[DataT]:
        """Messages one by one; each is released when the next is asked for. Ends when the node stops.

        Raises:
            Closed: The node is not running.

        Ctrl-C in a step loses no message. One that is still open when the loop is left is refused as `Abandoned`, with a
        warning.
        """
        return Messages(self._feed(), self._mode)

    def stop(self, drain: float | Unset | None = UNSET) -> None:
        """As every node's: see `BlockingNode.stop`.

        What this thread got and did not end is refused at once as `Abandoned`, what other threads hold when the draining is
        over, with a warning.
        """
        try:
            super().stop(drain)
        finally:
            feed = self._node.feed
            if feed is not None and not self._is_inherited:
                left, feed.abandoned = feed.abandoned, []
                for message in left:
                    warn_of(message)

    def _leave_behind(self) -> None:
        feed = self._node.feed
        left = self._mine.held.abandon() if hasattr(self._mine, "held") else None
        if feed is not None and left is not None:
            feed.abandoned.append(left)

    def _feed(self) -> Feed:
        self._handover().check_blocking()
        feed = self._node.feed
        if feed is None or not self._node._was_started:
            raise Closed("node")
        return feed
