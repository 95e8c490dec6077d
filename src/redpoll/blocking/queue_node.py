"""The node from which threads pull messages."""

from __future__ import annotations

import queue
import threading
from typing import Unpack

from redpoll.blocking.base import BlockingNode, DataT, Received, hand_out
from redpoll.blocking.feed import Feed, Held, warn_of
from redpoll.blocking.loops import Messages, Take
from redpoll.config import Config, ConfigOptions
from redpoll.errors import Closed, UsageError
from redpoll.node.sending import UNSET, Unset, check_seconds

__all__ = ["QueueNode"]


class QueueNode(BlockingNode[DataT]):
    """A node for threads that works like a `queue.Queue`: received messages wait until a thread gets them.

    Args:
        config: The options; None is all defaults.
        **options: Fields of `Config`; they override `config`'s.

    Use it as a context manager, or call `start` and `stop`. Any number of threads may pull from it and send with it; each
    message goes to one of them. Methods that wait raise `UsageError` on the loop thread, and in a forked child.

    Raises:
        ConfigError: An option is unknown or has an invalid value.
    """

    def __init__(self, config: Config | None = None, **options: Unpack[ConfigOptions]) -> None:
        if config is not None and not isinstance(config, Config):
            raise UsageError("a QueueNode takes no handler", "PoolNode(handler) calls one in threads")
        super().__init__(None, Config.from_options(config, options))
        self._mode = self.config.auto_release
        self._mine = threading.local()

    def get(self, block: bool = True, timeout: float | None = None) -> Received[DataT]:
        """Release the message that this thread got before, and return the next one.

        Args:
            block: Whether to wait for a message.
            timeout: Seconds to wait; None (default) is no limit, as in the module `queue`.

        Returns:
            The message. If this thread neither ends it nor calls `get` again, it is refused as `Abandoned`, with a warning,
            when the thread ends or the node stops. With `Config.auto_release` "get" it is released at once; with False you
            have to end it: if it is dropped before, it is refused as `Abandoned`, with a warning.

        Raises:
            queue.Empty: No message arrived in time, or, without `block`, none is available.
            UsageError: The timeout is invalid.
            Closed: The node is not running, or was stopped meanwhile.

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
        message: Received[DataT] | None
        message = held.feed.pull(held, timeout) if block else held.feed.pull_nowait(held)
        if message is None:
            raise queue.Empty
        if self._mode is not True:
            message = hand_out(message, self._mode)
            held.item = None
        held.seen = True
        return message

    def get_nowait(self) -> Received[DataT]:
        """Same as `get(block=False)`.

        Raises:
            queue.Empty: No message is available, or all slots are in use.
            Closed: The node is not running.
        """
        return self.get(block=False)

    def take(self, timeout: float | Unset | None = UNSET) -> Take[DataT]:
        """Take the next message for a block: `with node.take() as message`.

        The end of the block releases the message, and an exception in it refuses the message, if `Config.auto_release` is
        True. A message that the thread got by `get` stays open.

        Args:
            timeout: Seconds; unset is `Config.timeout`, None is no limit.

        Raises:
            TimeoutError: On entering the block: no message arrived in time.
            UsageError: The timeout is invalid.
            Closed: The node is not running, or was stopped meanwhile.

        Ctrl-C while it waits loses no message; Ctrl-C in the block refuses the message.
        """
        if isinstance(timeout, Unset):
            timeout = self.config.timeout
        elif timeout is not None:
            check_seconds(timeout)
        return Take(self._feed(), self._mode, timeout)

    def __iter__(self) -> Messages[DataT]:
        """Iterate over the messages; each is released when the next is requested. The iteration ends when the node stops.

        Raises:
            Closed: The node is not running.

        Ctrl-C while it waits loses no message. If the loop is left while a message is open, that is refused as `Abandoned`,
        with a warning.
        """
        return Messages(self._feed(), self._mode)

    def stop(self, drain: float | Unset | None = UNSET) -> None:
        """Stop the node: see `BlockingNode.stop`.

        The message that this thread got and did not end is refused as `Abandoned` at once; those of other threads are when
        the drain is over. Each is a warning.
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
        self._handover().check_thread()
        feed = self._node.feed
        if feed is None or not self._node._was_started:
            raise Closed("node")
        return feed
