"""`send_many` in a thread: how many are open, and what fails how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from redpoll import BatchError, Closed, EncodeError, Message, NotSent, Received, UsageError
from redpoll.blocking import PoolNode
from redpoll.blocking.batch import send_all
from tests.blocking.support import PATIENCE, in_thread, interrupting, make, to, until


def test_all_are_sent() -> None:
    """It returns how many there were, when all of them are done, acknowledged or not."""
    got: list[bytes] = []

    def handle(message: Received[bytes]) -> None:
        got.append(message.data)

    with PoolNode(handle, port=0, max_workers=1) as node, make() as sender:
        messages = [to(node, b"%d" % number) for number in range(300)]
        assert sender.send_many(messages) == 300
        assert got == [message.data for message in messages]
        assert sender.send_many(iter(messages), acknowledge=False) == 300
        until(lambda: len(got) == 600, "the unacknowledged ones")
        assert sender.send_many([]) == 0


def test_no_more_than_a_window_is_open() -> None:
    """The iterable is asked for the next message only while fewer than the receiver's window are open."""
    asked: list[int] = []
    with make(window=10) as node, make() as sender:
        sender.ready(node.address)

        def messages() -> Iterator[Message[Any]]:
            for number in range(30):
                asked.append(number)
                yield to(node)

        sending = in_thread(sender.send_many, messages())
        until(lambda: node.stats().received == 10, "a window of messages")
        assert len(asked) == 10
        for _ in range(30):
            with node.take():
                pass
        assert sending.result(PATIENCE) == 30


def test_the_first_failure() -> None:
    """The error names the first that failed and counts those that succeeded; nothing behind those open was sent."""

    def handle(message: Received[bytes]) -> None:
        if message.data in {b"3", b"5"}:
            raise ValueError(message.data)

    with PoolNode(handle, port=0, max_workers=1) as node, make() as sender:
        with pytest.raises(BatchError) as caught:
            sender.send_many(to(node, b"%d" % number) for number in range(8))
        assert (caught.value.index, caught.value.completed) == (3, 6)
        with pytest.raises(BatchError) as caught:
            sender.send_many([to(node, b"0"), Message(b"nowhere"), to(node, b"1")])
        assert (caught.value.index, caught.value.completed) == (1, 1)
        assert isinstance(caught.value.error, UsageError)
    with make(serializer="json") as sender:
        with pytest.raises(BatchError) as caught:
            sender.send_many([Message(object(), "127.0.0.1:1")])
        assert isinstance(caught.value.error, EncodeError)


def test_what_the_iterable_raises_withdraws() -> None:
    """What the iterable raises comes out, and what is open then is withdrawn."""
    with make() as node, make() as sender:

        def messages() -> Iterator[Message[Any]]:
            yield to(node)
            yield to(node)
            raise LookupError

        with pytest.raises(LookupError):
            sender.send_many(messages())
        until(lambda: not sender.stats().in_flight, "the sends to be withdrawn")


def test_a_window_that_is_announced_and_not_open_yet() -> None:
    """The window that the peer announced counts, also while the link may not use it yet: no message waits for the first."""
    link = SimpleNamespace(libchirp=False, announced=SimpleNamespace(window=2), window=SimpleNamespace(limit=0))
    sent: list[Future[None]] = []

    def send(_: Message[Any]) -> Future[None]:
        future: Future[None] = Future()
        future.peer = SimpleNamespace(link=link)  # type: ignore[attr-defined]
        future.set_exception(NotSent(None, "as all are"))
        sent.append(future)
        return future

    with pytest.raises(BatchError, match="item 0"):
        send_all(send, iter([Message(b"")] * 9), list)
    assert len(sent) == 2


def test_ctrl_c_withdraws() -> None:
    """So does Ctrl-C."""
    with make() as node, make() as sender:
        with interrupting(lambda: node.stats().received == 1), pytest.raises(KeyboardInterrupt):
            sender.send_many([to(node)])
        until(lambda: not sender.stats().in_flight, "the send to be withdrawn")


def test_arguments() -> None:
    """What is no iterable, or no option, is refused before anything is sent; a stopped node is closed."""
    with make() as sender:
        calls: list[Callable[[], int]] = [
            lambda: sender.send_many(3),  # type: ignore[arg-type]
            lambda: sender.send_many([], retry=-1),
            lambda: sender.send_many([], timeout=-1),
            lambda: sender.send_many([], acknowledge="yes"),  # type: ignore[arg-type]
        ]
        for bad in calls:
            with pytest.raises(UsageError):
                bad()
    with pytest.raises(Closed):
        sender.send_many([])
