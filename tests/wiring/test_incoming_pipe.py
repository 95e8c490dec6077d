"""A pipe at the queues' end: when the other end is told what was taken."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from redpoll.wiring.incoming import IncomingPipe
from redpoll.wiring.names import Limits
from redpoll.wiring.receiver import Source
from tests.wiring.support import until

pytestmark = pytest.mark.asyncio


def make(limit: int) -> tuple[IncomingPipe, Mock, Source]:
    """A pipe with a connection that notes what it is to send."""
    connection = Mock(run=b"run")
    pipe = IncomingPipe("E", ("", "E"), 0, Limits(messages=limit), connection, 7, lambda _: None)
    source = Source(pipe, "Q", 0, False, lambda source, gap: None)
    pipe.sources["Q"] = source
    return pipe, connection, source


def take(pipe: IncomingPipe, source: Source, count: int) -> None:
    """Have messages come and be taken."""
    first = pipe.expected
    pipe.arrived(first, first + count, [b""] * count, 0)
    end, _ = source.pending.popleft()
    source.finish(end)


async def test_much_at_once() -> None:
    """When half of the limit is free that is told at once."""
    pipe, connection, source = make(10)
    take(pipe, source, 5)
    connection.send_credit.assert_called_once_with(7, 5)
    pipe.stop()


async def test_little_soon() -> None:
    """Less than that is told a little later, all in one."""
    pipe, connection, source = make(100)
    take(pipe, source, 1)
    take(pipe, source, 2)
    assert not connection.send_credit.called
    await until(lambda: connection.send_credit.called)
    connection.send_credit.assert_called_once_with(7, 3)


async def test_lost() -> None:
    """Where the connection is lost nobody is told."""
    pipe, connection, source = make(10)
    take(pipe, source, 1)
    pipe.lose(Mock())
    take(pipe, source, 9)
    pipe.send_credit()
    await asyncio.sleep(0)
    assert not connection.send_credit.called
    assert pipe.connection is None
    pipe.stop()
