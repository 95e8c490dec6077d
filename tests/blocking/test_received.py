"""A received message in threads: how it ends, from which thread, and what it tells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from redpoll import Abandoned, HandlerFailed, Message, Refused, UsageError
from redpoll.blocking import PoolNode, QueueNode, Received
from tests.blocking.support import PATIENCE, in_thread, is_open, make, to, until


def test_it_is_what_a_node_receives() -> None:
    """It has the attributes of every received message; its node is the one that threads know."""
    with make() as node, make() as sender:
        message = to(node, b"data", header=b"header")
        sent = sender.send(message)
        with node.take() as got:
            assert type(got) is Received
            assert (got.data, got.header, got.identity) == (b"data", b"header", message.identity)
            assert got.remote_identity == sender.identity
            assert got.node is node
            assert not got.wanted
            assert not got.redelivered
            assert got.deadline is not None
        sent.result(PATIENCE)


def test_release_from_any_thread() -> None:
    """Many threads may end one message: it ends once, and is seen as ended at once."""
    with make(auto_release=False) as node, make() as sender:
        sent = sender.send(to(node))
        message = node.get(timeout=PATIENCE)
        assert is_open(message)
        message.release()
        assert message.ended
        for each in [in_thread(message.release), in_thread(message.refuse, "too late")]:
            each.result(PATIENCE)
        assert sent.result(PATIENCE) is None
        stats = node.stats()
        assert (stats.refused, stats.slots_used) == (0, 0)


def test_refuse_says_why() -> None:
    """A refusal has its reason, which is text."""
    with make(auto_release=False) as node, make() as sender:
        sent = sender.send(to(node))
        message = node.get(timeout=PATIENCE)
        with pytest.raises(UsageError, match="a reason must be text"):
            message.refuse(b"bytes")  # type: ignore[arg-type]
        message.refuse("no room")
        assert message.ended
        with pytest.raises(Refused, match="no room"):
            sent.result(PATIENCE)


def test_with_ends_it() -> None:
    """`with message` releases on leaving, refuses on an exception, and leaves alone what had ended."""
    with make(auto_release=False, slots=3) as node, make() as sender:
        released, raised, ended = (sender.send(to(node)) for _ in range(3))
        with node.get(timeout=PATIENCE) as message:
            assert not message.ended
        with pytest.raises(KeyError):
            with node.get(timeout=PATIENCE):
                raise KeyError("lost")
        with node.get(timeout=PATIENCE) as message:
            message.refuse("by hand")
        assert released.result(PATIENCE) is None
        with pytest.raises(HandlerFailed, match="KeyError: 'lost'"):
            raised.result(PATIENCE)
        with pytest.raises(Refused, match="by hand"):
            ended.result(PATIENCE)


def test_respond_answers() -> None:
    """`respond` sends the answer while the message goes on; its future says when it was written."""
    with make() as node, make() as sender:
        request = sender.request(to(node))
        with node.take() as message:
            assert message.wanted
            assert message.respond(b"answer", header=b"h").result(PATIENCE) is None
            answer = request.result(PATIENCE)
            assert (answer.data, answer.header, answer.ended) == (b"answer", b"h", True)


def test_respond_fails_in_its_future() -> None:
    """What cannot be answered fails the future, not the call."""
    with make(serializer="json") as node, make(serializer="json") as sender:
        request = sender.request(to(node, 1))
        with node.take() as message:
            assert isinstance(message.respond(object()).exception(PATIENCE), Exception)
            message.respond("text").result(PATIENCE)
        assert request.result(PATIENCE).data == "text"


def test_an_answer_is_not_waited_for_on_the_loop() -> None:
    """There the future of `respond` says that it would block the loop, and the answer goes out all the same."""
    with make() as node, make() as sender:
        request = sender.request(to(node))
        with node.take() as message:
            with pytest.raises(UsageError, match="would block"):
                node._handover().run(lambda: message.respond(b"answer").result(0.01))
        assert request.result(PATIENCE).data == b"answer"


def test_cancelled_can_be_waited_for() -> None:
    """When its sender gives up, all threads that wait for `cancelled` learn of it."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        with node.take() as message:
            assert isinstance(message.cancelled, threading.Event)
            assert message.cancelled is message.cancelled
            waiting = [in_thread(message.cancelled.wait, PATIENCE) for _ in range(2)]
            assert not message.cancelled.is_set()
            assert sent.cancel()
            assert [each.result(PATIENCE) for each in waiting] == [True, True]


def test_cancelled_by_its_deadline() -> None:
    """Past its deadline a message that is being handled is cancelled too."""
    with make() as node, make() as sender:
        sent = sender.send(to(node), timeout=0.5)
        with node.take() as message:
            assert message.cancelled.wait(PATIENCE)
            message.refuse("too late")
        assert isinstance(sent.exception(PATIENCE), TimeoutError | Refused)


def test_a_received_message_sent_back_is_a_reply() -> None:
    """Sending a reply to a message goes to the node it came from, also when that does not listen."""
    got: list[Message[bytes]] = []
    with make() as node, PoolNode(got.append, listen=False) as sender:
        sent = sender.send(to(node))
        with node.take() as message:
            node.send(message.reply(b"reply")).result(PATIENCE)
        sent.result(PATIENCE)
        assert [each.data for each in got] == [b"reply"]


def test_forward_has_what_is_left_of_the_deadline() -> None:
    """A message that is forwarded expires before its sender's timeout."""
    with make() as last, make() as middle, make() as first:
        first.send(to(middle), timeout=100)
        with middle.take() as message:
            forwarded = middle.send(message.forward(last.address))
            with last.take() as at_last:
                assert at_last.deadline is not None
                assert message.deadline is not None
                assert at_last.deadline < message.deadline
                assert at_last.identity == message.identity
            forwarded.result(PATIENCE)


def test_an_end_after_the_nodes_is_nothing() -> None:
    """Releasing a message of a node that has stopped does nothing."""
    with make(auto_release=False) as node, make() as sender:
        sent = sender.send(to(node))
        message = node.get(timeout=PATIENCE)
        data = message.data
        node.stop(0)
        message.release()
        message.refuse("late")
        assert message.data is data
        assert sent.exception(PATIENCE) is not None


def by_get(node: QueueNode[Any]) -> Any:
    return node.get(timeout=PATIENCE)


def by_take(node: QueueNode[Any]) -> Any:
    with node.take(PATIENCE) as message:
        return message


def by_loop(node: QueueNode[Any]) -> Any:
    return next(iter(node))


@pytest.mark.parametrize("take", [by_get, by_take, by_loop])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_dropped_it_is_abandoned(take: Callable[[QueueNode[Any]], Any], elsewhere: bool) -> None:
    """With auto_release False a message that a thread drops before its end is refused, with a warning, and its slot free."""
    with make(auto_release=False) as node, make() as sender:
        for acknowledge in (True, False):
            sent = sender.send(to(node), acknowledge=acknowledge)
            held = [take(node)]
            drop = (lambda what=held: in_thread(what.clear).result(PATIENCE)) if elsewhere else held.clear
            with pytest.warns(RuntimeWarning, match="was dropped before it ended"):
                drop()
            if acknowledge:
                with pytest.raises(Abandoned, match="its consumer dropped it"):
                    sent.result(PATIENCE)
            until(lambda: node.stats().slots_used == 0, "the slot")
        sent = sender.send(to(node))
        take(node).release()
        sent.result(PATIENCE)
