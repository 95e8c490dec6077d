"""All connections, and the one to the same wiring."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest
import pytest_asyncio

from redpoll import Wiring
from redpoll.errors import PeerLost, ProtocolError, UnknownName
from redpoll.wiring import Limits
from redpoll.wiring.connection import NO_MESSAGES, LocalConnection, Pipe
from redpoll.wiring.names import AtLimit
from redpoll.wiring.protocol import Batch

pytestmark = pytest.mark.asyncio


class Narrow(LocalConnection):
    """Takes so much at a time."""

    room = 0

    @property
    def writable(self) -> bool:  # type: ignore[override]
        return self.room > 0

    def call_writable(self) -> None:
        self.called = getattr(self, "called", 0) + 1

    def send_data(self, pipe: Pipe, first: int, batch: Batch = NO_MESSAGES) -> None:
        self.room -= 1
        self.order = [*getattr(self, "order", []), pipe.number]


@pytest_asyncio.fixture
async def wiring() -> AsyncIterator[Wiring]:
    """A wiring."""
    async with Wiring() as made:
        yield made


def pipe(connection: LocalConnection, number: int, pieces: int) -> Pipe:
    """A pipe with so many pieces to send."""
    exchange = Mock(drainers=[], waiters=[], limits=Limits(), at_limit=AtLimit.WAIT)
    made = Pipe((exchange, ""), connection)
    made.open(Limits(), None, None)
    made.number = number
    made.connection = connection
    for _ in range(pieces):
        made.accept(Batch([bytes(40_000)]))
    return made


async def test_turns(wiring: Wiring) -> None:
    """Pipes that wait for a connection have their turns, and it is asked once to tell when it takes more."""
    connection = Narrow(wiring._board, b"", b"")
    pipes = [pipe(connection, number, 20) for number in (1, 2)]
    for each in pipes:
        each.pump()
        each.pump()
    assert connection.called == 1
    connection.room = 16
    connection.pump()
    assert connection.order == [1, 1, 1, 1, 2, 2, 2, 2] * 2
    assert connection.called == 2
    connection.room = 1000
    connection.pump()
    assert len(connection.order) == 40
    assert connection.called == 2


async def test_another_carries_it(wiring: Wiring) -> None:
    """A pipe that waited for one connection, and is carried by another, waits for that: it is asked, and sends all."""
    one, two = Narrow(wiring._board, b"", b""), Narrow(wiring._board, b"", b"")
    moved = pipe(one, 1, 20)
    moved.pump()
    moved.carried_by(two)
    moved.pump()
    assert one.called == two.called == 1
    one.room = two.room = 1000
    one.pump()
    two.pump()
    assert one.room == 1000
    assert len(two.order) == 20


async def test_local(wiring: Wiring) -> None:
    """The connection to the same wiring answers as any other."""
    connection = wiring._board.local
    assert connection.place == "here"
    with pytest.raises(UnknownName, match="no queue 'Q'"):
        await connection.request(
            {
                "word": "open",
                "pipe": 1,
                "first": 0,
                "at": 0,
                "exchange": "E",
                "queue": "Q",
                "missed": 0,
                "is_global": False,
            }
        )
    with pytest.raises(ProtocolError):
        await connection.request({"word": "dance"})


async def test_lost(wiring: Wiring) -> None:
    """One that is lost says so to its wiring, once, and answers nothing."""
    connection = LocalConnection(wiring._board, b"", b"")
    told: list[object] = []
    wiring._board.lost = lambda *what: told.append(what)
    error = PeerLost(None, "gone")
    connection.lose(error, final=True)
    connection.lose(error, final=True)
    assert told == [(connection, error, True)]
    with pytest.raises(PeerLost):
        await connection.request({"word": "describe"})
