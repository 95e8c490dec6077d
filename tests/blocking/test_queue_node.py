"""QueueNode: what `get` gives, when a message ends, and what happens where that is not seen to."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import pytest

from redpoll import Abandoned, Closed, Config, ConfigError, HandlerFailed, UsageError
from redpoll.blocking import QueueNode
from tests.blocking.support import PATIENCE, in_thread, interrupting, is_open, make, to, until, waits


def test_the_next_get_releases() -> None:
    """A message is acknowledged when the thread that got it gets the next, and not before."""
    with make() as node, make() as sender:
        first, second = sender.send(to(node, b"1")), sender.send(to(node, b"2"))
        message = node.get(timeout=PATIENCE)
        assert message.data == b"1"
        assert is_open(message)
        assert node.get(timeout=PATIENCE).data == b"2"
        assert message.ended
        first.result(PATIENCE)
        assert not second.done()
        with pytest.raises(queue.Empty):
            node.get(timeout=0.001)
        second.result(PATIENCE)


def test_each_thread_releases_its_own() -> None:
    """What one thread got is not ended by the `get` of another."""
    with make(slots=2) as node, make() as sender:
        sent = [sender.send(to(node)) for _ in range(2)]
        message = node.get(timeout=PATIENCE)

        def other() -> None:
            node.get(timeout=PATIENCE).release()

        in_thread(other).result(PATIENCE)
        assert not message.ended
        message.release()
        for each in sent:
            each.result(PATIENCE)


def test_empty_as_a_queue_says() -> None:
    """Nothing there, or nothing in time, is `queue.Empty`."""
    with make() as node:
        for nothing in (
            node.get_nowait,
            lambda: node.get(block=False),
            lambda: node.get(timeout=0),
            lambda: node.get(timeout=0.001),
        ):
            with pytest.raises(queue.Empty):
                nothing()
        with pytest.raises(UsageError, match="timeout"):
            node.get(timeout=-1)


def test_get_nowait_gives_what_is_there() -> None:
    """A message that waits comes at once, also by a timeout of 0; one that no slot is free for does not."""
    with make() as node, make() as sender:
        sent = [sender.send(to(node, b"%d" % number)) for number in range(3)]
        until(lambda: node.stats().received == 3, "the messages")
        assert node.get_nowait().data == b"0"
        assert node.get(timeout=0).data == b"1"
        with pytest.raises(queue.Empty):
            in_thread(node.get_nowait).result(PATIENCE)
        assert node.get_nowait().data == b"2"
        node._mine.held.release()
        for each in sent:
            each.result(PATIENCE)


def _get_and_end(node: QueueNode[Any]) -> None:
    """Get a message in a thread, and wait for its end: it warns after the sender has been told."""
    thread = threading.Thread(target=node.get, kwargs={"timeout": PATIENCE})
    thread.start()
    thread.join(PATIENCE)


def test_a_thread_that_ends_abandons() -> None:
    """What a thread got last and did not end is refused when the thread is gone, with a warning."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        with pytest.warns(RuntimeWarning, match="refused as Abandoned"):
            _get_and_end(node)
        assert isinstance(sent.exception(PATIENCE), Abandoned)


def test_a_stop_abandons() -> None:
    """What the thread that stops the node did not end is refused at once, and not waited for."""
    with make(timeout=None) as node, make() as sender:
        sent = sender.send(to(node))
        node.get(timeout=PATIENCE)
        with pytest.warns(RuntimeWarning, match="refused as Abandoned"):
            node.stop()
        assert isinstance(sent.exception(PATIENCE), Abandoned)


def test_a_stop_that_is_refused_abandons_nothing() -> None:
    """What is no time for draining leaves everything as it was."""
    with make() as node, make() as sender:
        sent = sender.send(to(node))
        message = node.get(timeout=PATIENCE)
        with pytest.raises(UsageError, match="drain"):
            node.stop("soon")  # type: ignore[arg-type]
        assert is_open(message)
        message.release()
        sent.result(PATIENCE)


def test_a_stop_waits_for_other_threads() -> None:
    """What other threads hold when the draining is over is refused, with a warning of the thread that stopped."""
    gate, got = threading.Event(), threading.Event()
    with make() as node, make() as sender:

        def work() -> None:
            node.get(timeout=PATIENCE)
            got.set()
            gate.wait(PATIENCE)

        worker = in_thread(work)
        sent = sender.send(to(node))
        assert got.wait(PATIENCE)
        with pytest.warns(RuntimeWarning, match="refused as Abandoned"):
            node.stop(0.01)
        assert isinstance(sent.exception(PATIENCE), Abandoned)
        gate.set()
        worker.result(PATIENCE)


def test_a_stop_ends_a_get() -> None:
    """Threads that wait for a message when the node stops are told that it is closed."""
    with make() as node:
        waiting = [in_thread(node.get), in_thread(lambda: node.take(None).__enter__())]
        until(lambda: waits(node, 2), "the threads to wait")
        node.stop()
        for each in waiting:
            assert isinstance(each.exception(PATIENCE), Closed)
        for late in (node.get, node.get_nowait, node.take, node.__iter__):
            with pytest.raises(Closed):
                late()


def test_before_the_start_it_is_closed() -> None:
    """A node that was not started gives nothing."""
    with pytest.raises(Closed):
        make().get()


def test_auto_release_get() -> None:
    """With "get" a message is acknowledged when it is pulled, as libchirp does, whatever becomes of the thread."""
    with make(auto_release="get") as node, make() as sender:
        sent = [sender.send(to(node)) for _ in range(3)]
        assert node.get(timeout=PATIENCE).ended
        with node.take() as message:
            assert message.ended
        assert next(iter(node)).ended
        for each in sent:
            each.result(PATIENCE)


def test_auto_release_false() -> None:
    """With False every end is left to the caller: neither the next `get` nor a block nor a loop ends a message."""
    with make(auto_release=False, slots=3) as node, make() as sender:
        sent = [sender.send(to(node)) for _ in range(3)]
        messages = [node.get(timeout=PATIENCE)]
        with node.take() as message:
            messages.append(message)
        messages.append(next(iter(node)))
        assert not any(message.ended for message in messages)
        for message in messages:
            message.release()
        for each in sent:
            each.result(PATIENCE)


def test_take_is_a_block() -> None:
    """The end of the block releases, an exception refuses, and what `get` gave stays open."""
    with make(slots=3) as node, make() as sender:
        got, taken, raised = (sender.send(to(node)) for _ in range(3))
        first = node.get(timeout=PATIENCE)
        with node.take(timeout=PATIENCE) as message:
            assert not message.ended
        taken.result(PATIENCE)
        with pytest.raises(ValueError, match="bad"), node.take():
            raise ValueError("bad")
        with pytest.raises(HandlerFailed, match="ValueError: bad"):
            raised.result(PATIENCE)
        assert not first.ended
        first.release()
        got.result(PATIENCE)


def test_take_waits_for_its_time() -> None:
    """Nothing in time is a TimeoutError that names the seconds; unset they are the node's."""
    with make(timeout=0.01) as node:
        for block in (node.take(timeout=0.001), node.take(), node.take(0)):
            with pytest.raises(TimeoutError, match="no message arrived within"), block:
                pass
        with pytest.raises(UsageError, match="timeout"):
            node.take(timeout="soon")  # type: ignore[arg-type]


def test_it_works_beside_a_loop_of_the_callers() -> None:
    """A thread that runs an event loop of its own, as a notebook does, uses it all the same."""

    async def main() -> bytes:
        with make() as node, make() as sender:
            sent = sender.send(to(node, b"cell"))
            data: bytes = node.get(timeout=PATIENCE).data
            node._mine.held.release()
            await asyncio.wrap_future(sent)
            return data

    assert asyncio.run(main()) == b"cell"


def test_the_loop_thread_does_not_wait_for_itself() -> None:
    """In a hook everything that waits raises, and what does not wait works."""
    errors: list[UsageError] = []
    done = threading.Event()
    with make() as node, make() as sender:

        def hook(peer: object) -> None:
            for wait in (
                node.get,
                node.get_nowait,
                node.take,
                lambda: next(iter(node)),
                node.stop,
                lambda: node.ready("127.0.0.1:1"),
                lambda: node.send_many([]),
                node.serve_forever,
            ):
                try:
                    wait()
                except UsageError as error:
                    errors.append(error)
            assert node.stats().peers
            assert node.peers
            node.send(to(node, b"from the hook")).cancel()
            done.set()

        node.events.peer_connected = hook
        assert sender.check(node.address)
        assert done.wait(PATIENCE)
        assert len(errors) == 8
        assert all("would block" in str(error) for error in errors)


def test_ctrl_c_in_take() -> None:
    """An interrupted `take` took nothing."""
    with make() as node, make() as sender:
        with interrupting(lambda: waits(node)), pytest.raises(KeyboardInterrupt), node.take(timeout=None):
            pass
        sent = sender.send(to(node))
        with node.take():
            pass
        sent.result(PATIENCE)


def test_options() -> None:
    """It takes a Config, fields of one, and no handler."""
    node: QueueNode[bytes] = QueueNode(Config(slots=3), timeout=2)
    assert (node.config.slots, node.config.timeout) == (3, 2)
    with pytest.raises(ConfigError, match="slotz"):
        QueueNode(slotz=3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"takes no handler .*PoolNode"):
        QueueNode(print)  # type: ignore[arg-type]
