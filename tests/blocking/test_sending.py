"""The future of a send from a thread: as those of `concurrent.futures`, and as those of a node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, as_completed, wait
from typing import Any

import pytest

from redpoll import Closed, DecodeError, Expired, Message, NotSent, Refused, UsageError
from redpoll.blocking import PoolNode
from tests.blocking.support import PATIENCE, in_thread, interrupting, loop_held, make, to, until
from tests.ports import free_port

NOBODY = f"127.0.0.1:{free_port()}"


def test_result_and_exception() -> None:
    """A send that is done has the result None and no exception, one that failed raises its error each time."""
    with make() as node, make() as sender:
        done, failed = sender.send(to(node)), sender.send(to(node))
        with node.take():
            pass
        with node.take() as message:
            message.refuse("not today")
        assert done.result(PATIENCE) is None
        assert done.exception() is None
        for _ in range(2):
            with pytest.raises(Refused, match="not today"):
                failed.result(PATIENCE)
        assert isinstance(failed.exception(), Refused)


def test_it_is_a_future_of_concurrent_futures() -> None:
    """`wait`, `as_completed` and callbacks work, before and after the end, many threads at a time."""
    with make() as node, make() as sender:
        futures = [sender.send(to(node)) for _ in range(20)]
        called: list[Future[None]] = []
        for future in futures[::2]:
            future.add_done_callback(called.append)
        waiting = [in_thread(futures[-1].result, PATIENCE) for _ in range(3)]
        assert wait(futures, timeout=0).done == set()
        with node.take():
            pass
        assert wait(futures, timeout=PATIENCE, return_when=FIRST_COMPLETED).done
        completed = in_thread(lambda: list(as_completed(futures, timeout=PATIENCE)))
        for _ in range(19):
            with node.take():
                pass
        assert set(completed.result(PATIENCE)) == set(futures)
        assert wait(futures, timeout=PATIENCE).not_done == set()
        assert [each.result(PATIENCE) for each in waiting] == [None] * 3
        until(lambda: len(called) == 10, "the callbacks")
        futures[1].add_done_callback(called.append)
        assert called[-1] is futures[1]


def test_wait_counts_right_while_futures_end() -> None:
    """`wait` for many futures that end meanwhile returns when all have, never before."""
    with PoolNode(lambda message: None, port=0, max_workers=4) as node, make() as sender:
        for _ in range(20):
            futures = [sender.send(to(node)) for _ in range(50)]
            assert wait(futures, timeout=PATIENCE).not_done == set()


async def _awaited(future: Future[Any]) -> Any:
    return await asyncio.wrap_future(future)


def test_it_can_be_awaited() -> None:
    """Code with a loop of its own awaits it by `asyncio.wrap_future`."""
    with PoolNode(lambda message: b"pong", port=0) as node, make() as sender:
        answer = asyncio.run(_awaited(sender.request(to(node))))
        assert answer.data == b"pong"


def test_a_timeout_of_waiting_ends_nothing() -> None:
    """`result(timeout)` raises TimeoutError while the sending goes on."""
    with make() as node, make() as sender:
        sending = sender.send(to(node))
        with pytest.raises(TimeoutError):
            sending.result(0.001)
        with pytest.raises(TimeoutError):
            sending.exception(0)
        assert not sending.done()
        with node.take():
            pass
        assert sending.result(PATIENCE) is None


def test_cancelling_withdraws() -> None:
    """A cancelled send that waits in the other's inbox is never begun, and the future is done for all that wait."""
    with make() as node, make() as sender:
        first, second = sender.send(to(node, b"first")), sender.send(to(node, b"second"))
        held = node.get(timeout=PATIENCE)
        waiting = in_thread(second.result, PATIENCE)
        assert second.cancel()
        assert second.cancel()
        assert second.cancelled()
        assert wait([second], timeout=PATIENCE).not_done == set()
        with pytest.raises(CancelledError):
            second.result(PATIENCE)
        with pytest.raises(CancelledError):
            waiting.result(PATIENCE)
        until(lambda: node.stats().refused == 1, "the message to be withdrawn")
        held.release()
        assert first.result(PATIENCE) is None
        assert not first.cancel()
        assert node.stats().received == 2


def test_cancelled_before_the_loop_saw_it() -> None:
    """What is cancelled in the same moment is not sent at all."""
    with make() as node, make() as sender:
        sender.ready(node.address)
        with loop_held(sender):
            sending = sender.send(to(node))
            assert sending.cancel()
        assert sender.stats().sent == 0


def test_a_failure_that_nobody_heard_is_told() -> None:
    """A failed send whose future is dropped goes to the hook; one whose error was seen does not."""
    told: list[tuple[Message[Any], BaseException]] = []
    with make() as sender:
        sender.events.send_failed = lambda message, error: told.append((message, error))
        message = Message(b"x", NOBODY)
        seen = sender.send(message, dial="once")
        assert isinstance(seen.exception(PATIENCE), NotSent)
        del seen
        dropped = sender.send(message, dial="once")
        wait([dropped], timeout=PATIENCE)
        del dropped
        gc.collect()
        until(lambda: told, "the hook")
        ((failed, error),) = told
        assert failed is message
        assert isinstance(error, NotSent)


def test_a_failure_before_the_queue_is_told_too() -> None:
    """So does one of a message that cannot even be queued."""
    told: list[BaseException] = []
    with make() as sender:
        sender.events.send_failed = lambda message, error: told.append(error)
        sender.send(Message(b"x", "127.0.0.1:0"))
        until(lambda: told, "the hook")
    assert isinstance(told[0], UsageError)


def test_a_callback_does_not_wait_for_the_loop() -> None:
    """On the loop thread the result of a future that has ended can be read; one that has not raises."""
    told: list[object] = []
    ended = threading.Event()
    with make() as node, make() as sender:
        other = sender.send(to(node))

        def look(future: Future[None]) -> None:
            told.append(future.result())
            for wait_for in (other.result, other.exception):
                try:
                    wait_for()
                except UsageError as error:
                    told.append(error)
            ended.set()

        with node.take():
            sending = sender.send(to(node))
            sending.add_done_callback(look)
            other = sender.send(to(node))
            until(lambda: node.stats().received == 3, "the messages")
        with node.take():
            pass
        assert ended.wait(PATIENCE)
        with node.take():
            pass
        assert [type(each) for each in told] == [type(None), UsageError, UsageError]
        other.result(PATIENCE)


@pytest.mark.parametrize("how", ["confirmed", "refused", "lost", "unreachable", "expired", "stopped"])
def test_a_callback_cancels_others_that_the_core_is_at(how: str) -> None:
    """One that ends with many others may cancel them, and send: each ends once, and the node is left with nothing."""
    sender = make(**({"dial": "once"} if how == "unreachable" else {}))
    sender.start()
    node = make(slots=16)
    node.start()
    address = NOBODY if how == "unreachable" else str(node.address)
    if how != "unreachable":
        sender.ready(address)
    later: list[Any] = []
    heard = threading.Event()

    def callback(_: object) -> None:
        for each in sends:
            each.cancel()
        with contextlib.suppress(Closed):  # it stops
            later.append(sender.send(Message(b"later", address), timeout=0.05))
        heard.set()

    timeout = 0.05 if how == "expired" else None
    with loop_held(sender):
        sends = [sender.send(Message(b"%d" % number, address), timeout=timeout) for number in range(100)]
        sends[20].add_done_callback(callback)
    if how in {"confirmed", "refused"}:
        for _ in range(21):
            message = node.get(timeout=PATIENCE)
            message.release() if how == "confirmed" else message.refuse("no")
    elif how == "lost":
        node.get(timeout=PATIENCE).release()
        node.stop(drain=0)
    elif how == "stopped":
        sender.stop(drain=0)
    assert heard.wait(PATIENCE)
    assert wait([*sends, *later], timeout=PATIENCE).not_done == set()
    assert sends[20].done()
    assert not sends[20].cancelled()
    assert how not in {"confirmed", "refused"} or sum(each.cancelled() for each in sends) > 0
    if how != "stopped":
        until(lambda: not sender.stats().in_flight + sender.stats().queued, "the core to be done with them")
        assert sender.stats().memory_held == 0
    node.stop(drain=0)
    sender.stop(drain=0)


def test_ctrl_c_interrupts_a_result() -> None:
    """Ctrl-C ends the waiting at once; the sending goes on."""
    with make() as node, make() as sender:
        sending = sender.send(to(node))
        with interrupting(lambda: sending._sleepers), pytest.raises(KeyboardInterrupt):  # type: ignore[attr-defined]
            sending.result()
        with node.take():
            pass
        assert sending.result(PATIENCE) is None


def test_what_expires_fails() -> None:
    """The timeout of a send is its own, in seconds."""
    with make() as sender:
        with pytest.raises(Expired):
            sender.send(Message(b"x", NOBODY), timeout=0.01).result(PATIENCE)


def test_an_answer_is_decoded() -> None:
    """The answer is what the serializer makes of it; one that it cannot read fails the request."""
    with PoolNode(lambda message: [message.data], port=0, serializer="json") as node:
        with make(serializer="json") as sender:
            assert sender.request(to(node, {"a": 1})).result(PATIENCE).data == [{"a": 1}]
    with PoolNode(lambda message: b"{", port=0) as node, make(serializer="json") as sender:
        with pytest.raises(DecodeError):
            sender.request(to(node, 1)).result(PATIENCE)
