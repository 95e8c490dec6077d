"""`send_many` of nodes for threads: sends a stream of messages with at most a window of them open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from redpoll.errors import BatchError, RedpollError, UsageError
from redpoll.message import Message

__all__ = ["send_all"]

#: Maximum open sends to a peer whose window is not known yet.
_OPEN_AT_FIRST = 64

_Open = deque[Future[None]]


def send_all(
    send: Callable[[Message[Any]], Future[None]], messages: Iterable[Message[Any]], catch_up: Callable[[], object]
) -> int:
    """Send all messages: see `BlockingNode.send_many`.

    Args:
        send: Sends one message.
        messages: The messages.
        catch_up: Waits until the loop has handled the first message; its peer is known then.
    """
    if not isinstance(messages, Iterable):
        raise UsageError(f"expected an iterable of messages, not {type(messages).__name__}")
    futures: _Open = deque()
    completed = 0
    try:
        for message in messages:
            try:
                future = send(message)
            except Exception as error:
                # Earlier messages may fail as well, and come first.
                completed += _finish(futures, completed)
                raise BatchError(completed, completed, error) from error
            futures.append(future)
            if completed + len(futures) == 1:
                catch_up()
            if len(futures) >= _limit(futures[0]):
                _oldest(futures, completed)
                completed += 1
        return completed + _finish(futures, completed)
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _limit(future: Any) -> int:
    """Return the window of the peer that a message goes to, or a default if it is not known."""
    link = future.peer.link if hasattr(future, "peer") else None
    # As announced: the link has it later, once the peer has its record of this node.
    return _OPEN_AT_FIRST if link is None or link.libchirp else max(1, link.announced.window)


def _finish(futures: _Open, completed: int) -> int:
    """Wait for all open sends; return their number, since all succeeded."""
    count = 0
    while futures:
        _oldest(futures, completed + count)
        count += 1
    return count


def _oldest(futures: _Open, completed: int) -> None:
    """Wait for the oldest send; if it failed, wait for the others as well, and raise."""
    try:
        futures[0].result()
    except RedpollError as error:
        del futures[0]
        rest = sum(1 for future in futures if future.exception() is None)
        futures.clear()
        raise BatchError(completed, completed + rest, error) from error
    del futures[0]
