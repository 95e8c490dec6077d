"""`for` loops over a node and blocks of `take`: what they end, and what they leave."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from redpoll import Abandoned, UsageError
from redpoll.blocking import QueueNode
from redpoll.node.pulling import Consumers
from tests.blocking.support import PATIENCE, in_thread, interrupting, make, to, until, waits


def test_a_step_releases_the_message_before() -> None:
    """Each message is released when the next is asked for; the loop ends when the node stops."""
    with make() as node, make() as sender:
        sent = [sender.send(to(node, b"%d" % number)) for number in range(3)]
        steps: list[tuple[bytes, list[bool]]] = []

        def work() -> None:
            for message in node:
                done = [each.done() for each in sent]
                steps.append((message.data, done[len(steps) :]))

        worker = in_thread(work)
        for each in sent:
            each.result(PATIENCE)
        node.stop()
        worker.result(PATIENCE)
        assert steps == [(b"0", [False] * 3), (b"1", [False] * 2), (b"2", [False])]


def _leave(node: QueueNode[Any]) -> None:
    """Begin a loop, and leave it."""
    for _ in node:
        break
    gc.collect()


def test_a_loop_that_is_left_abandons() -> None:
    """A message that is open when the loop is left is refused, with a warning."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        with pytest.warns(RuntimeWarning, match="refused as Abandoned"):
            _leave(node)
        assert isinstance(sent.exception(PATIENCE), Abandoned)


def test_a_message_that_ended_is_left_quietly() -> None:
    """Who ends the message before the break is not warned."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        for message in node:
            message.release()
            break
        sent.result(PATIENCE)


def test_loops_have_messages_of_their_own() -> None:
    """Neither `get` nor another loop ends what a loop holds."""
    with make(slots=3) as node, make() as sender:
        sent = [sender.send(to(node)) for _ in range(3)]
        one, other = iter(node), iter(node)
        first, second, third = next(one), next(other), node.get(timeout=PATIENCE)
        assert not any(message.ended for message in (first, second, third))
        for message in (first, second, third):
            message.release()
        for each in sent:
            each.result(PATIENCE)


def test_a_loop_claims_what_waits() -> None:
    """While a loop is there nothing is refused for want of a consumer, also between two steps; afterwards it is."""
    with make(unclaimed_timeout=0.01) as node, make() as sender:
        loop = iter(node)
        consumers = node._node._peers.receiver
        assert isinstance(consumers, Consumers)
        until(lambda: consumers.iterators == 1, "the loop to count")
        del loop
        until(lambda: consumers.iterators == 0, "the loop to be gone")
        assert sender.send(to(node)).exception(PATIENCE) is not None


def test_ctrl_c_in_a_step_loses_nothing() -> None:
    """An interrupted step took nothing, and the loop may go on."""
    with make() as node, make() as sender:
        loop = iter(node)
        with interrupting(lambda: waits(node)), pytest.raises(KeyboardInterrupt):
            next(loop)
        sent = sender.send(to(node, b"after"))
        message = next(loop)
        assert message.data == b"after"
        message.release()
        sent.result(PATIENCE)


def test_a_block_of_another_thread_does_not_wait_on_the_loop() -> None:
    """Entered there it says that it would block the loop, as everything that waits."""
    with make() as node:
        block = node.take(timeout=0.01)
        with pytest.raises(UsageError, match="would block"):
            node._handover().run(block.__enter__)


def test_a_block_that_ended_its_message_leaves_it() -> None:
    """A block may end its message itself; its own end does nothing then."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        with node.take() as message:
            message.release()
            sent.result(PATIENCE)
        assert node.stats().refused == 0
