"""A pipe at the exchange's end, without a network."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from redpoll.wiring.connection import Pipe, Subscription
from redpoll.wiring.names import AtLimit, Limits, Style
from redpoll.wiring.protocol import Batch


def make(**more: Any) -> tuple[Pipe, Mock, Mock]:
    """A pipe that is open, its connection and its exchange."""
    limits = Limits(messages=4, resume=0.25)
    exchange = Mock(drainers=[], style=Style.BALANCE, limits=limits, at_limit=AtLimit.WAIT)
    connection = Mock(writable=True, **more)
    pipe = Pipe((exchange, "Q"), connection)
    pipe.open(Limits(messages=2), None, None)
    pipe.connection = connection
    return pipe, connection, exchange


def test_pump() -> None:
    """It sends as far as the other end has room, and goes on when that has taken some; who waits for room is told."""
    pipe, connection, exchange = make()
    pipe.accept(Batch([b"a", b"b", b"c"]))
    pipe.pump()
    assert [call.args[2].messages for call in connection.send_data.call_args_list] == [[b"a"], [b"b"]]
    pipe.credited(1)
    assert connection.send_data.call_count == 3
    assert exchange.room_changed.called


def test_starves() -> None:
    """Where the connection takes nothing it waits for that."""
    pipe, connection, _ = make()
    connection.writable = False
    pipe.accept(Batch([b"a"]))
    pipe.pump()
    connection.wait_writable.assert_called_once_with(pipe)
    assert not connection.send_data.called


def test_ends() -> None:
    """One that is to end does so when nothing waits in it any more."""
    pipe, connection, _ = make()
    pipe.accept(Batch([b"a", b"b", b"c"]))
    pipe.ending = True
    pipe.pump()
    assert not connection.end.called
    pipe.credited(2)
    assert connection.send_data.call_count == 3
    connection.end.assert_called_once_with(pipe)
    assert pipe.connection is None


def test_lost() -> None:
    """A lost one notes what had been taken, for each queue; what waits goes on waiting."""
    pipe, _, exchange = make()
    subscription = Subscription(exchange, "Q")
    subscription.up = True
    pipe.add(subscription)
    pipe.accept(Batch([b"a", b"b", b"c", b"d"]))
    pipe.pump()
    pipe.credited(1)
    pipe.lost()
    assert (subscription.up, subscription.base, pipe.connection, pipe.up) == (False, 1, None, False)
    exchange.pipe_lost.assert_called_once_with(pipe)
