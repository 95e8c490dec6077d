"""What was pulled and not ended: released with others, or abandoned by whoever drops it."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from redpoll import Abandoned
from redpoll.blocking import QueueNode
from redpoll.blocking.feed import Held, warn_of
from tests.blocking.support import PATIENCE, make, to


def pulled(node: QueueNode[Any]) -> Held:
    """One message of a node."""
    feed = node._node.feed
    assert feed is not None
    held = feed.hold()
    assert feed.pull(held, PATIENCE) is held.item
    held.seen = True
    return held


def test_release() -> None:
    """A released message is done and no longer held; releasing again does nothing."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        held = pulled(node)
        held.release()
        held.release()
        assert held.item is None
        assert held.abandon() is None
        assert sent.result(PATIENCE) is None


def test_abandon() -> None:
    """An abandoned message is refused, unless it had ended."""
    with make(slots=2) as node, make() as sender:
        left, ended = sender.send(to(node)), sender.send(to(node))
        first, second = pulled(node), pulled(node)
        assert first.abandon() is not None
        assert isinstance(left.exception(PATIENCE), Abandoned)
        if second.item is not None:
            second.item.release()
        assert second.abandon() is None
        assert ended.result(PATIENCE) is None


def _drop(node: QueueNode[Any]) -> None:
    """Pull a message and forget it."""
    pulled(node)
    gc.collect()


def test_dropping_warns() -> None:
    """A message that is dropped before it has ended is abandoned, with a warning that names the remedy."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        with pytest.warns(RuntimeWarning, match="release or refuse it first"):
            _drop(node)
        assert isinstance(sent.exception(PATIENCE), Abandoned)


def test_the_warning_names_the_message() -> None:
    """The warning shows which message it was."""
    with make() as node, make() as sender:
        sent = sender.send(to(node, b"12345"))
        with node.take() as message, pytest.warns(RuntimeWarning, match="of 5 bytes"):
            warn_of(message)
        sent.result(PATIENCE)
