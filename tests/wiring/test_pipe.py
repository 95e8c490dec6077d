"""A pipe at the exchange's end, without a network."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from redpoll.wiring.connection import Join, Pipe
from redpoll.wiring.names import AtLimit, Limits, Style
from redpoll.wiring.outlet import Outlet
from redpoll.wiring.protocol import Batch


def make(**more: Any) -> tuple[Pipe, Mock, Mock]:
    """A pipe that is open, its trunk and its exchange."""
    exchange = Mock(drainers=[], style=Style.BALANCE)
    outlet = Outlet(Limits(messages=4, resume=0.25), AtLimit.WAIT)
    outlet.open(Limits(messages=2), None, None)
    pipe = Pipe(exchange, 1, outlet)
    trunk = Mock(writable=True, **more)
    pipe.trunk = trunk
    return pipe, trunk, exchange


def test_pump() -> None:
    """It sends as far as the other end has room, and goes on when that has taken some; who waits for room is told."""
    pipe, trunk, exchange = make()
    pipe.outlet.accept(Batch([b"a", b"b", b"c"]))
    pipe.pump()
    assert [call.args[2].messages for call in trunk.send_data.call_args_list] == [[b"a"], [b"b"]]
    pipe.credited(1)
    assert trunk.send_data.call_count == 3
    assert exchange.room_changed.called


def test_starves() -> None:
    """Where the trunk takes nothing it waits for that."""
    pipe, trunk, _ = make()
    trunk.writable = False
    pipe.outlet.accept(Batch([b"a"]))
    pipe.pump()
    trunk.starve.assert_called_once_with(pipe)
    assert not trunk.send_data.called


def test_ends() -> None:
    """One that is to end does so when nothing waits in it any more."""
    pipe, trunk, _ = make()
    pipe.outlet.accept(Batch([b"a", b"b", b"c"]))
    pipe.ending = True
    pipe.pump()
    assert not trunk.end.called
    pipe.credited(2)
    assert trunk.send_data.call_count == 3
    trunk.end.assert_called_once_with(pipe)
    assert pipe.trunk is None


def test_lost() -> None:
    """A lost one notes what had been taken, for each queue; what waits goes on waiting."""
    pipe, _, exchange = make()
    join = Join(exchange, "Q")
    join.up = True
    pipe.add(join)
    pipe.outlet.accept(Batch([b"a", b"b", b"c", b"d"]))
    pipe.pump()
    pipe.credited(1)
    pipe.lost()
    assert (join.up, join.base, pipe.trunk, pipe.outlet.up) == (False, 1, None, False)
    exchange.pipe_lost.assert_called_once_with(pipe)
