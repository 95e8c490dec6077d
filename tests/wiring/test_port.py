"""A pipe at the queues' end: when the other end is told what was taken."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from redpoll.wiring.connection import Port
from redpoll.wiring.inlet import Source
from redpoll.wiring.names import Limits
from tests.wiring.support import until

pytestmark = pytest.mark.asyncio


def make(limit: int) -> tuple[Port, Mock, Source]:
    """A port with a trunk that notes what it is to send."""
    trunk = Mock(run=b"run")
    port = Port("E", ("", "E"), 0, Limits(messages=limit), trunk, 7, 1, lambda _: None)
    source = Source(port.inlet, "Q", 0, False, lambda source, gap: None)
    port.inlet.sources["Q"] = source
    return port, trunk, source


def take(port: Port, source: Source, count: int) -> None:
    """Have messages come and be taken."""
    first = port.inlet.expected
    port.inlet.arrived(first, first + count, [b""] * count, 0)
    end, _ = source.pending.popleft()
    source.finish(end)


async def test_much_at_once() -> None:
    """When half of the limit is free that is told at once."""
    port, trunk, source = make(10)
    take(port, source, 5)
    trunk.send_credit.assert_called_once_with(7, 5)
    port.stop()


async def test_little_soon() -> None:
    """Less than that is told a little later, all in one."""
    port, trunk, source = make(100)
    take(port, source, 1)
    take(port, source, 2)
    assert not trunk.send_credit.called
    await until(lambda: trunk.send_credit.called)
    trunk.send_credit.assert_called_once_with(7, 3)


async def test_lost() -> None:
    """Where the trunk is lost nobody is told."""
    port, trunk, source = make(10)
    take(port, source, 1)
    port.lose()
    take(port, source, 9)
    port.tell()
    await asyncio.sleep(0)
    assert not trunk.send_credit.called
    assert port.trunk is None
