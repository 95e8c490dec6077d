"""Pipes that end at queues: opened, opened again, kept while they are lost, and given up."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from redpoll import GLOBAL, Wiring
from redpoll.errors import NameTaken, PeerLost, WiringError
from redpoll.wiring import Gap, Limits, Queue, incoming
from redpoll.wiring.connection import Connection, LocalConnection
from tests.wiring.support import directory, get, until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def wiring() -> AsyncIterator[Wiring]:
    """A wiring with a queue that shows gaps."""
    async with Wiring() as made:
        await made.create_queue("Q", gaps=True, limits=Limits(messages=10))
        yield made


class Far(LocalConnection):
    """A connection whose other end is this test."""

    def send_credit(self, number: int, taken: int) -> None:
        """Nobody there wants to know."""

    def tell(self, word: dict[str, Any]) -> None:
        self.words = [*getattr(self, "words", []), word]


def connection_of(wiring: Wiring, run: bytes = b"run 1", identity: bytes = b"i") -> Far:
    """A connection to another wiring."""
    return Far(wiring._board, identity, run)


def word(**more: Any) -> dict[str, Any]:
    """A word that opens a pipe."""
    return {
        "word": "open",
        "pipe": 1,
        "exchange": "E",
        "is_global": True,
        "queue": "Q",
        "first": 0,
        "at": 0,
        "missed": 0,
        **more,
    }


def queue_of(wiring: Wiring) -> Queue:
    """The queue."""
    return wiring.queues[0]


def taken(queue: Queue) -> list[Any]:
    """All that waits."""
    found = []
    while (each := queue.receive_nowait()) is not None:
        found.append(each)
    return found


async def test_again(wiring: Wiring) -> None:
    """A pipe that was lost and is opened by the same run goes on where it was, whatever that says is missing."""
    opener = wiring._board.incoming
    first = connection_of(wiring)
    assert opener.open(first, word())["messages"] == 10
    first.data(1, 0, 5, [b"a", b"b", b"c"], 3)
    assert taken(queue_of(wiring)) == [b"a", b"b", b"c"]
    first.lose(PeerLost(None, ""), final=False)
    second = connection_of(wiring)
    again = opener.open(second, word(first=5, at=5, missed=99))
    assert (again["expected"], again["taken"]) == (3, 3)
    second.data(1, 5, 6, [b"f"], 1)
    assert taken(queue_of(wiring)) == [Gap("E", 2), b"f"]


async def test_left_and_back(wiring: Wiring) -> None:
    """A queue that left a lost pipe is in it from where it comes back; what was lost before it left is missing, once."""
    opener = wiring._board.incoming
    first = connection_of(wiring)
    opener.open(first, word())
    first.data(1, 0, 5, [b"a", b"b", b"c"], 3)
    first.lose(PeerLost(None, ""), final=False)
    second = connection_of(wiring)
    opener.close(second, {"word": "close", "pipe": 1, "queue": "Q", "at": 5})
    again = opener.open(second, word(first=5, at=7))
    # What waited in the queue holds the pipe back no longer; what was lost is not taken.
    assert (again["expected"], again["taken"]) == (3, 3)
    second.data(1, 5, 8, [b"f", b"g", b"h"], 3)
    assert taken(queue_of(wiring)) == [b"a", b"b", b"c", Gap("E", 2), b"h"]


async def test_started_anew(wiring: Wiring) -> None:
    """Another run of the same exchange takes over: the gap says so, and how many the former had said that it had."""
    opener = wiring._board.incoming
    first = connection_of(wiring)
    opener.open(first, word())
    first.data(1, 0, 7, [b"a"], 1)
    second = connection_of(wiring, b"run 2")
    opener.open(second, word(pipe=9))
    second.data(9, 0, 1, [b"b"], 1)
    assert taken(queue_of(wiring)) == [b"a", Gap("E", 6, restarted=True), b"b"]
    assert queue_of(wiring).stats.pipes == 1


@pytest.mark.parametrize(
    ("is_global", "identity", "same"), [(True, b"j", True), (False, b"i", True), (False, b"j", False)]
)
async def test_which_is_the_same(wiring: Wiring, is_global: bool, identity: bytes, same: bool) -> None:
    """A GLOBAL exchange is the same wherever it is; others are those of one identity."""
    opener = wiring._board.incoming
    opener.open(connection_of(wiring), word(is_global=is_global))
    opener.open(connection_of(wiring, b"run 2", identity), word(is_global=is_global))
    assert taken(queue_of(wiring)) == ([Gap("E", 0, restarted=True)] if same else [])


async def test_given_up(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that stays lost is given up, and what its sender had said that it had is missing."""
    monkeypatch.setattr(incoming, "KEPT_INCOMING", 0.01)
    opener = wiring._board.incoming
    connection = connection_of(wiring)
    opener.open(connection, word())
    connection.data(1, 0, 4, [b"a"], 1)
    connection.lose(PeerLost(None, ""), final=False)
    assert taken(queue_of(wiring)) == [b"a"]
    await until(lambda: queue_of(wiring).stats.gaps)
    assert taken(queue_of(wiring)) == [Gap("E", 3)]
    assert not opener._pipes


async def test_said_goodbye(wiring: Wiring) -> None:
    """One whose sender says that it will not be back is given up at once."""
    connection = connection_of(wiring)
    wiring._board.incoming.open(connection, word())
    connection.data(1, 0, 2, [b"a"], 1)
    connection.lose(PeerLost(None, ""), final=True)
    assert taken(queue_of(wiring)) == [b"a", Gap("E", 1)]


async def test_missed(wiring: Wiring) -> None:
    """A queue that joins is told what its predecessor had not taken, before anything else."""
    connection = connection_of(wiring)
    wiring._board.incoming.open(connection, word(first=50, at=50, missed=12))
    connection.data(1, 50, 51, [b"x"], 1)
    assert taken(queue_of(wiring)) == [Gap("E", 12), b"x"]


async def test_smallest_room(wiring: Wiring) -> None:
    """A pipe has room for what each of its queues has."""
    await wiring.create_queue("R", limits=Limits(messages=None, bytes=7, resume=1.0))
    connection = connection_of(wiring)
    opener = wiring._board.incoming
    opener.open(connection, word())
    answer = opener.open(connection, word(queue="R"))
    assert (answer["messages"], answer["bytes"]) == (10, 7)
    assert len(connection.incoming) == 1


async def test_too_many(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """One other wiring has so many pipes to here and no more."""
    monkeypatch.setattr(incoming, "MAX_INCOMING", 2)
    connection = connection_of(wiring)
    for number in range(2):
        wiring._board.incoming.open(connection, word(pipe=number, exchange=f"E{number}"))
    with pytest.raises(WiringError, match="too many pipes of this wiring: the limit is 2"):
        wiring._board.incoming.open(connection, word(pipe=2, exchange="E2"))


async def test_queue_goes(wiring: Wiring) -> None:
    """Who sends to a queue that is deleted is told."""
    connection = connection_of(wiring)
    wiring._board.incoming.open(connection, word())
    await queue_of(wiring).delete()
    assert connection.words == [{"word": "gone", "pipe": 1, "queue": "Q", "taken": 0}]


async def test_pipe_by_another_connection(wiring: Wiring) -> None:
    """A pipe of the same run by which the queue has the exchange is named to another connection; else the pipe is opened."""
    opener = wiring._board.incoming
    first, second = connection_of(wiring), connection_of(wiring)
    opener.open(first, word())
    assert opener.open(second, word(pipe=2)) == {"elsewhere": 1, "lost": False}
    assert not second.incoming
    first.lose(PeerLost(None, ""), final=False)
    assert opener.open(second, word(pipe=3)) == {"elsewhere": 1, "lost": True}
    for number, other in ((4, connection_of(wiring, identity=b"j")), (5, connection_of(wiring, run=b"run 2"))):
        assert "messages" in opener.open(other, word(pipe=number))


async def test_another_pipe_by_the_same_connection(wiring: Wiring) -> None:
    """A queue has one pipe of an exchange also over one connection, which may be two at the other end."""
    opener = wiring._board.incoming
    connection = connection_of(wiring)
    opener.open(connection, word())
    assert opener.open(connection, word(pipe=2, missed=3)) == {"elsewhere": 1, "lost": False}
    assert list(connection.incoming) == [1]
    assert (queue_of(wiring).stats.pipes, queue_of(wiring).stats.missing) == (1, 0)


async def test_opened_again_by_the_same_connection(wiring: Wiring) -> None:
    """A pipe that is opened again was perhaps lost at the other end alone, which is told what arrived."""
    opener = wiring._board.incoming
    connection = connection_of(wiring)
    assert "expected" not in opener.open(connection, word())
    connection.data(1, 0, 1, [b"a"], 1)
    assert opener.open(connection, word(first=3, at=3))["expected"] == 1
    connection.data(1, 3, 3, [], 0)
    assert queue_of(wiring).stats.missing == 2


async def test_opened_again_by_another_connection(wiring: Wiring) -> None:
    """A pipe that another connection brings goes on where it was, and is not lost with the one that brought it before."""
    opener = wiring._board.incoming
    first, second = connection_of(wiring), connection_of(wiring)
    opener.open(first, word())
    first.data(1, 0, 1, [b"a"], 1)
    again = opener.open(second, word(first=1, at=1))
    assert again["expected"] == 1
    first.lose(PeerLost(None, ""), final=True)
    second.data(1, 1, 2, [b"b"], 1)
    assert taken(queue_of(wiring)) == [b"a", b"b"]
    assert queue_of(wiring).stats.pipes == 1


@pytest.mark.parametrize("process", ["one", "two"])
async def test_more_room_when_a_queue_has_left(process: str, request: pytest.FixtureRequest) -> None:
    """A queue that had room for little narrows the pipe that it shares with others as long as it is there."""
    if process == "two":
        request.getfixturevalue("apart")
    async with directory() as names, Wiring(names.address) as sends, Wiring(names.address) as takes:
        exchange = await sends.create_exchange("E", scope=GLOBAL, limits=Limits(messages=200))
        small, large = [
            await takes.create_queue(name, scope=GLOBAL, limits=Limits(messages=most))
            for name, most in (("small", 2), ("large", 100))
        ]
        for queue in (small, large):
            await takes.bind("E", queue.name)
        await exchange.send_many([b"both"] * 2)
        assert await get(large, 2) == await get(small, 2) == [b"both"] * 2
        await takes.unbind("E", "small")
        await exchange.send_many([b"one"] * 150)
        assert await get(large, 2) == [b"one"] * 2
        await until(lambda: large.stats.waiting > 90)
        assert await get(large, 148) == [b"one"] * 148


async def test_a_claim_is_checked_again(wiring: Wiring) -> None:
    """The name of an owner that is gone is given to nobody where that owner is back before the check ends."""
    opener = wiring._board.incoming
    first = connection_of(wiring, identity=b"owner")
    opener.open(first, word())
    first.lose(PeerLost(None, ""), final=False)
    claim = opener.asked(connection_of(wiring, b"run 2", b"other"), word(pipe=2))
    assert inspect.isawaitable(claim)
    back = connection_of(wiring, identity=b"owner")
    opener.open(back, word())
    with pytest.raises(NameTaken, match="another owner has it"):
        await claim
    back.data(1, 0, 1, [b"goes on"], 1)
    assert taken(queue_of(wiring)) == [b"goes on"]


async def test_a_claim_of_an_identity_is_checked_again(wiring: Wiring) -> None:
    """A claimed identity replaces no connection that its owner has had since the check began; a dead one it does."""
    opener = wiring._board.incoming

    class Claimant(Far):
        async def is_rival_of(self, holder: Connection) -> bool:
            checked.append(holder)
            if holder is dead:
                opener.open(live, word())
            return holder is live

    checked: list[Connection] = []
    dead, live = connection_of(wiring), connection_of(wiring)
    opener.open(dead, word())
    claim = opener.asked(Claimant(wiring._board, b"i", b"run 2"), word(pipe=2))
    assert inspect.isawaitable(claim)
    with pytest.raises(NameTaken, match="another owner has it"):
        await claim
    live.data(next(iter(live.incoming)), 0, 1, [b"goes on"], 1)
    assert taken(queue_of(wiring)) == [b"goes on"]
    assert checked == [dead, live]
