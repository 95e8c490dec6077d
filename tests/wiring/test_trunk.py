"""What all trunks have, and the one to the same wiring."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest
import pytest_asyncio

from redpoll import Wiring
from redpoll.errors import PeerLost, ProtocolError, UnknownName
from redpoll.wiring import Limits
from redpoll.wiring.connection import NO_MESSAGES, LocalTrunk, Pipe
from redpoll.wiring.names import AtLimit
from redpoll.wiring.outlet import Outlet
from redpoll.wiring.protocol import Batch

pytestmark = pytest.mark.asyncio


class Narrow(LocalTrunk):
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


def pipe(trunk: LocalTrunk, number: int, pieces: int) -> Pipe:
    """A pipe with so many pieces to send."""
    outlet = Outlet(Limits(), AtLimit.WAIT)
    outlet.open(Limits(), None, None)
    made = Pipe(Mock(drainers=[], waiters=[]), number, outlet)
    made.trunk = trunk
    for _ in range(pieces):
        outlet.accept(Batch([bytes(40_000)]))
    return made


async def test_turns(wiring: Wiring) -> None:
    """Pipes that wait for a trunk have their turns, and it is asked once to tell when it takes more."""
    trunk = Narrow(wiring._board, b"", b"")
    pipes = [pipe(trunk, number, 20) for number in (1, 2)]
    for each in pipes:
        each.pump()
        each.pump()
    assert trunk.called == 1
    trunk.room = 16
    trunk.pump()
    assert trunk.order == [1, 1, 1, 1, 2, 2, 2, 2] * 2
    assert trunk.called == 2
    trunk.room = 1000
    trunk.pump()
    assert len(trunk.order) == 40
    assert trunk.called == 2


async def test_local(wiring: Wiring) -> None:
    """The trunk to the same wiring answers as any other."""
    trunk = wiring._board.local
    assert trunk.place == "here"
    with pytest.raises(UnknownName, match="no queue 'Q'"):
        await trunk.request(
            {
                "word": "open",
                "pipe": 1,
                "first": 0,
                "at": 0,
                "exchange": "E",
                "queue": "Q",
                "missed": 0,
                "everywhere": False,
            }
        )
    with pytest.raises(ProtocolError):
        await trunk.request({"word": "dance"})


async def test_lost(wiring: Wiring) -> None:
    """One that is lost says so to those who watch it, once, and answers nothing."""
    trunk = LocalTrunk(wiring._board, b"", b"")
    told: list[object] = []
    trunk.watchers[told.append] = None
    error = PeerLost(None, "gone")
    trunk.lose(error, final=True)
    trunk.lose(error, final=True)
    assert told == [error]
    with pytest.raises(PeerLost):
        await trunk.request({"word": "describe"})
